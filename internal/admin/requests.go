package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// FindRequest is the ClusterRegistration of that name, or else the one about the Cluster of that name that a person may
// decide about. Of several of one Cluster it names none: one of them may be an intruder's.
func (h *Hub) FindRequest(ctx context.Context, namespace, name string) (*fleet.ClusterRegistration, error) {
	list, err := h.Fleet.ClusterRegistrations(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ClusterRegistrations: %w", Explain(err, namespace))
	}
	var about []*fleet.ClusterRegistration
	identity := h.identityOf(ctx, namespace, name)
	for i := range list.Items {
		r := &list.Items[i]
		switch {
		case r.Name == name:
			return r, nil
		case isUndecided(r) && (view.OfRequest(r).Cluster == name || identity != "" && r.Spec.ClientID == identity):
			about = append(about, r)
		}
	}
	switch len(about) {
	case 0:
		return nil, fmt.Errorf("there is no ClusterRegistration %s/%s, and none that waits for a decision about a Cluster of that name: "+
			"`muster requests -A` shows all there are", namespace, name)
	case 1:
		return about[0], nil
	}
	return nil, fmt.Errorf("%d requests are about Cluster %s/%s: look at them with `muster -n %s requests -o wide` and name one: %s",
		len(about), namespace, name, namespace, strings.Join(namesOf(about), ", "))
}

// identityOf is the clientID of the Cluster, "" where there is none: a request for it may be for a Cluster that has another
// name than a new one would get.
func (h *Hub) identityOf(ctx context.Context, namespace, cluster string) string {
	found, err := h.Fleet.Clusters(namespace).Get(ctx, cluster, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return found.Spec.ClientID
}

// undecided are the reasons of requests for which the word of a person makes a difference.
var undecided = []string{
	fleet.ReasonWaitingForApproval, fleet.ReasonDenied, fleet.ReasonClientIDInUse, fleet.ReasonTokenMismatch,
}

func isUndecided(r *fleet.ClusterRegistration) bool {
	v := view.OfRequest(r)
	return v.State == view.StateWaiting && v.Reason == fleet.ReasonWaitingForApproval ||
		v.State == view.StateRefused && slices.Contains(undecided, v.Reason)
}

func namesOf(requests []*fleet.ClusterRegistration) (names []string) {
	for _, r := range requests {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return names
}

// Decide writes what a person has decided about the request, which must still be the one she has seen. The status
// subresource looks at a resourceVersion and not at a UID, so the request is read anew for each try.
func (h *Hub) Decide(ctx context.Context, request *fleet.ClusterRegistration, decision fleet.RegistrationApproval) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return h.decide(ctx, request, decision) })
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("ClusterRegistration %s/%s is gone, or another one has its name now: look at `muster requests` again", request.Namespace, request.Name)
	case err != nil:
		return fmt.Errorf("decide about ClusterRegistration %s/%s: %w", request.Namespace, request.Name, err)
	}
	return nil
}

func (h *Hub) decide(ctx context.Context, request *fleet.ClusterRegistration, decision fleet.RegistrationApproval) error {
	requests := h.Fleet.ClusterRegistrations(request.Namespace)
	latest, err := requests.Get(ctx, request.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err
	case latest.UID != request.UID:
		return apierrors.NewNotFound(fleet.SchemeGroupVersion.WithResource("clusterregistrations").GroupResource(), request.Name)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": latest.ResourceVersion},
		"status":   map[string]any{"approval": map[string]any{"decision": decision.Decision, "message": orNull(decision.Message)}},
	})
	if err != nil {
		return err
	}
	_, err = requests.Patch(ctx, request.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// orNull takes an earlier message away.
func orNull(message string) any {
	if message == "" {
		return nil
	}
	return message
}
