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

// RequestPrefix precedes the name of a ClusterRegistration that is not to be taken for the name of a Cluster.
const RequestPrefix = "request/"

// FindRequest returns the ClusterRegistration with a name, or the only request about the Cluster with that name that a decision can affect. If
// several requests or both a Cluster and a request about another one have the name, it returns an error, because a request can be from an intruder,
// who chooses its name. Without the right to read the Cluster, a name alone selects no request either. With RequestPrefix, the name is that of a ClusterRegistration.
func (h *Hub) FindRequest(ctx context.Context, namespace, name string) (*fleet.ClusterRegistration, error) {
	requests := h.Fleet.ClusterRegistrations(namespace)
	if named, hasPrefix := strings.CutPrefix(name, RequestPrefix); hasPrefix {
		request, err := requests.Get(ctx, named, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("ClusterRegistration %s/%s: %w", namespace, named, err)
		}
		return request, nil
	}
	cluster, err := h.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{})
	isHidden := apierrors.IsForbidden(err) // who decides about requests need not have the right to read Clusters
	switch {
	case apierrors.IsNotFound(err), isHidden:
		cluster = nil
	case err != nil:
		return nil, fmt.Errorf("Cluster %s/%s: %w", namespace, name, err)
	}
	var found []*fleet.ClusterRegistration
	var names []string
	err = Each(ctx, requests.List, metav1.ListOptions{}, func(r *fleet.ClusterRegistration) error {
		switch {
		case r.Name == name:
			found, names = append(found, r), append(names, RequestPrefix+r.Name)
		case CanBeDecided(r) && view.IsAbout(r, name, cluster):
			found, names = append(found, r), append(names, r.Name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ClusterRegistrations: %w", h.Explain(err, namespace))
	}
	slices.Sort(names)
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("there is no ClusterRegistration %s/%s, and none that waits for a decision about a Cluster of that name: "+
			"`muster%s requests -A` lists all requests", namespace, name, h.Flags)
	case isHidden && found[0].Name == name && !view.IsAbout(found[0], name, &fleet.Cluster{}):
		return nil, fmt.Errorf("a request has the name %[2]s, but you have no right to read a Cluster %[1]s/%[2]s, which it may not be about: look at it with "+
			"`muster -n %[1]s requests -o wide`; to decide about it, name it %[3]s%[2]s", namespace, name, RequestPrefix)
	case len(found) > 1:
		return nil, fmt.Errorf("%d requests have the name of Cluster %s/%s or are about it: look at them with `muster -n %s requests -o wide` and name one: %s",
			len(found), namespace, name, namespace, strings.Join(names, ", "))
	case cluster != nil && !view.IsAbout(found[0], name, cluster):
		return nil, fmt.Errorf("no request about Cluster %s/%s waits for a decision. A request about another Cluster has its name: look at it with "+
			"`muster -n %s requests -o wide`; to decide about it, name it %s%s", namespace, name, namespace, RequestPrefix, name)
	}
	return found[0], nil
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
