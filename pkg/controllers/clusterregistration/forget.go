package clusterregistration

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// refusedByCreator finds refused requests by who created them, as far as that is known.
const refusedByCreator = "muster.fleet.cattle.io/refused-by-creator"

func creatorOfRefused(request *fleet.ClusterRegistration) ([]string, error) {
	granted := result.Get(request.Status.Conditions, fleet.ConditionGranted)
	if request.Status.Granted || granted.Status != corev1.ConditionFalse || granted.Reason == fleet.ReasonError {
		return nil, nil // an error passes
	}
	return []string{index.Key(request.Namespace, request.Annotations[fleet.CreatorAnnotation])}, nil
}

// forget deletes refused requests when their time is over, and the oldest of too many: nobody else does, and whoever has stolen
// a token could fill the hub with them. It comes after the request was judged once more.
func (h *handler) forget(request *fleet.ClusterRegistration, out result.Result) error {
	keys, _ := creatorOfRefused(request)
	if !out.IsStalled() || len(keys) == 0 {
		return nil
	}
	refused, err := h.cache.GetByIndex(refusedByCreator, keys[0])
	if err != nil {
		return err
	}
	known := map[string]*fleet.ClusterRegistration{request.Name: request}
	for _, r := range refused {
		if r.DeletionTimestamp == nil {
			known[r.Name] = r
		}
	}
	now := h.Clock.Now()
	for _, name := range registration.Forgotten(refusedOf(known), now) {
		uid := known[name].UID
		err := h.requests.Delete(request.Namespace, name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting the refused ClusterRegistration %s/%s: %w", request.Namespace, name, err)
		}
	}
	if left := request.CreationTimestamp.Add(registration.RefusedLifetime).Sub(now); left > 0 {
		h.requests.EnqueueAfter(request.Namespace, request.Name, left)
	}
	return nil
}

func refusedOf(requests map[string]*fleet.ClusterRegistration) (all []registration.Refused) {
	for name, r := range requests {
		all = append(all, registration.Refused{Name: name, Created: r.CreationTimestamp.Time, Decided: r.Status.Approval != nil})
	}
	return all
}
