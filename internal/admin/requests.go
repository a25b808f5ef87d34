package admin

import (
	"context"
	"encoding/json"
	"errors"
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

// FindRequest returns the ClusterRegistration with a name, or the only request about the Cluster with that name that a decision can affect. If
// there are several such requests, it returns an error, because one of them can be from an intruder.
func (h *Hub) FindRequest(ctx context.Context, namespace, name string) (*fleet.ClusterRegistration, error) {
	requests := h.Fleet.ClusterRegistrations(namespace)
	named, err := requests.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return named, nil
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("ClusterRegistration %s/%s: %w", namespace, name, err)
	}
	clientID := ""
	if cluster, err := h.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
		clientID = cluster.Spec.ClientID
	}
	var about []*fleet.ClusterRegistration
	var names []string
	err = Each(ctx, requests.List, metav1.ListOptions{}, func(r *fleet.ClusterRegistration) error {
		if CanBeDecided(r) && view.IsAbout(r, name, clientID) {
			about, names = append(about, r), append(names, r.Name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ClusterRegistrations: %w", h.Explain(err, namespace))
	}
	slices.Sort(names)
	switch len(about) {
	case 0:
		return nil, fmt.Errorf("there is no ClusterRegistration %s/%s, and none that waits for a decision about a Cluster of that name: "+
			"`muster%s requests -A` lists all requests", namespace, name, h.Flags)
	case 1:
		return about[0], nil
	}
	return nil, fmt.Errorf("%d requests are about Cluster %s/%s: look at them with `muster -n %s requests -o wide` and name one: %s",
		len(about), namespace, name, namespace, strings.Join(names, ", "))
}

// CanBeDecided reports whether the request waits for an approval, or was refused for a reason that an approval overrides.
func CanBeDecided(r *fleet.ClusterRegistration) bool {
	switch v := view.OfRequest(r); v.Reason {
	case fleet.ReasonWaitingForApproval:
		return v.State == view.StateWaiting || v.State == view.StateRefused
	case fleet.ReasonDenied, fleet.ReasonClientIDInUse, fleet.ReasonTokenMismatch:
		return v.State == view.StateRefused
	}
	return false
}

// Decide writes a decision about a request, unless another request has its name now. A patch can have a resourceVersion as a precondition but no
// UID, so each attempt reads the request again.
func (h *Hub) Decide(ctx context.Context, request *fleet.ClusterRegistration, decision fleet.RegistrationApproval) error {
	approval := map[string]any{"decision": decision.Decision, "message": nil} // null removes an earlier message
	if decision.Message != "" {
		approval["message"] = decision.Message
	}
	requests := h.Fleet.ClusterRegistrations(request.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		latest, err := requests.Get(ctx, request.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case latest.UID != request.UID:
			return apierrors.NewNotFound(fleet.SchemeGroupVersion.WithResource("clusterregistrations").GroupResource(), request.Name)
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": latest.ResourceVersion}, "status": map[string]any{"approval": approval},
		})
		if err != nil {
			return err
		}
		_, err = requests.Patch(ctx, request.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("ClusterRegistration %s/%s was deleted, or replaced by another with the same name: look at `muster%s requests -A` again", request.Namespace, request.Name, h.Flags)
	case err != nil:
		return fmt.Errorf("decide about ClusterRegistration %s/%s: %w", request.Namespace, request.Name, err)
	}
	return nil
}

// AwaitGranted waits until the hub has granted a request that was approved. It fails if the hub refuses the request for another reason.
func (h *Hub) AwaitGranted(ctx context.Context, request *fleet.ClusterRegistration) error {
	_, err := awaited[*fleet.ClusterRegistration]{
		what: fmt.Sprintf("ClusterRegistration %s/%s", request.Namespace, request.Name), get: h.Fleet.ClusterRegistrations(request.Namespace).Get,
		name: request.Name, status: "the hub has not answered: is a fleet-controller running?",
		check: func(latest *fleet.ClusterRegistration) (bool, string, error) {
			v := view.OfRequest(latest)
			status := fmt.Sprintf("%s: %s: %s", v.State, v.Reason, v.Message)
			switch {
			case latest.UID != request.UID:
				return false, "", errDeleted
			case v.State == view.StateRefused && !CanBeDecided(latest):
				return false, "", errors.New(status)
			}
			return v.State == view.StateGranted, status, nil
		},
	}.wait(ctx)
	return err
}
