package view

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// StateGranted is that of a ClusterRegistration whose agent has what it asked for.
const StateGranted = "Granted"

// Request is a ClusterRegistration as a person sees it.
type Request struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Cluster is the one the request is about: the one it belongs to, or the one that would be made.
	Cluster  string `json:"cluster"`
	ClientID string `json:"clientID"`
	// Token is the ClusterRegistrationToken that the request names, and Creator who the API server says created it.
	Token   string            `json:"token,omitempty"`
	Creator string            `json:"creator,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	State   string            `json:"state"`
	Reason  string            `json:"reason,omitempty"`
	Message string            `json:"message,omitempty"`
	Created *metav1.Time      `json:"created,omitempty"`
}

// OfRequest condenses a ClusterRegistration.
func OfRequest(r *fleet.ClusterRegistration) Request {
	v := Request{
		Namespace: r.Namespace, Name: r.Name, Cluster: clusterOf(r), ClientID: r.Spec.ClientID,
		Token: r.Labels[fleet.RegistrationTokenLabel], Creator: r.Annotations[fleet.CreatorAnnotation],
		Labels: r.Spec.ClusterLabels,
	}
	if !r.CreationTimestamp.IsZero() {
		v.Created = r.CreationTimestamp.DeepCopy()
	}
	v.State, v.Reason, v.Message = requestState(r)
	return v
}

func clusterOf(r *fleet.ClusterRegistration) string {
	if r.Status.ClusterName != "" {
		return r.Status.ClusterName
	}
	for _, owner := range r.OwnerReferences {
		if owner.Kind == "Cluster" {
			return owner.Name
		}
	}
	return registration.ClusterName(r.Spec.ClientID)
}

func requestState(r *fleet.ClusterRegistration) (state, reason, message string) {
	granted := find(r.Status.Conditions, fleet.ConditionGranted)
	switch {
	case r.DeletionTimestamp != nil:
		return StateDeleting, "", ""
	case granted == nil && r.Status.Granted, is(granted, corev1.ConditionTrue):
		return StateGranted, "", ""
	case granted == nil:
		return StateNew, "", notLookedAt
	case is(granted, corev1.ConditionFalse):
		return StateRefused, granted.Reason, granted.Message
	}
	return StateWaiting, granted.Reason, granted.Message
}
