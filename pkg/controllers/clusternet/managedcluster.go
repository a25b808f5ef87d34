package clusternet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// memberNameOf returns the name of the ManagedCluster, which is also the name of the request: an admission policy lets an agent create only a
// request with the name of a ManagedCluster that the agent may change.
func memberNameOf(clientID string) string { return v1beta1.RequestPrefix + clientID }

// onRegistration keeps the ManagedCluster of a granted registration, and deletes a registration whose request was deleted before.
func (h *handler) onRegistration(_ string, r *fleet.ClusterRegistration) (*fleet.ClusterRegistration, error) {
	if r == nil || r.DeletionTimestamp != nil || !registration.IsForClusternet(r, h.HubUser) {
		return r, nil
	}
	if !r.Status.Granted {
		ctx, cancel := h.Passes.Context()
		defer cancel()
		return r, h.deleteAbandoned(ctx, r)
	}
	cluster, err := h.clusters.Get(r.Namespace, r.Status.ClusterName)
	if apierrors.IsNotFound(err) || err == nil && cluster.DeletionTimestamp != nil {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	request, err := h.requests.Get(v1beta1.RequestPrefix + r.Spec.ClientID)
	if err == nil && r.Name == registration.ClusternetRequestName(string(request.UID)) && request.Status.Result != v1beta1.ResultApproved {
		return r, nil // its answer comes with the ManagedCluster
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	if err := h.ensureManagedCluster(ctx, cluster); err != nil {
		return r, err
	}
	return r, h.reportDisconnected(ctx, cluster)
}

// deleteAbandoned deletes a registration that was not granted and whose request was deleted. No agent reads its answer: a restarted agent sends
// another request, which gets another registration. A revoked registration stays, because it locks its agent out.
func (h *handler) deleteAbandoned(ctx context.Context, r *fleet.ClusterRegistration) error {
	if fleetstatus.Condition(r.Status.Conditions, fleet.ConditionGranted).Reason == fleet.ReasonCredentialRevoked {
		return nil
	}
	name := v1beta1.RequestPrefix + r.Spec.ClientID
	request, err := h.requests.Get(name)
	if err != nil || r.Name != registration.ClusternetRequestName(string(request.UID)) {
		// The cache can be older than the request.
		request, err = h.ClusternetClient.ClusterRegistrationRequests().Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("reading ClusterRegistrationRequest %s: %w", name, err)
	case err == nil && r.Name == registration.ClusternetRequestName(string(request.UID)):
		return nil
	}
	err = h.FleetClient.ClusterRegistrations(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion}, // it may have been granted since
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting ClusterRegistration %s/%s, whose ClusterRegistrationRequest %s was deleted: %w", r.Namespace, r.Name, name, err)
	}
	return nil
}

// ensureManagedCluster creates the ManagedCluster unless it exists.
func (h *handler) ensureManagedCluster(ctx context.Context, cluster *fleet.Cluster) error {
	namespace, name := registration.ClusterNamespace(cluster.Namespace, cluster.Name), memberNameOf(cluster.Spec.ClientID)
	if _, err := h.members.Get(namespace, name); !apierrors.IsNotFound(err) {
		return err
	}
	_, err := h.ClusternetClient.ManagedClusters(namespace).Create(ctx, &v1beta1.ManagedCluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels:      map[string]string{v1beta1.ClusterIDLabel: cluster.Spec.ClientID},
			Annotations: map[string]string{fleet.ClusterAnnotation: cluster.Name, fleet.WorkspaceAnnotation: cluster.Namespace},
		},
		Spec: v1beta1.ManagedClusterSpec{ClusterID: cluster.Spec.ClientID, SyncMode: "Pull"},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating ManagedCluster %s/%s: %w", namespace, name, err)
	}
	return nil
}

// reportDisconnected sets condition Ready of the ManagedCluster to Unknown while the agent is disconnected. The next heartbeat replaces it;
// the agent gets a conflict then and repeats it.
func (h *handler) reportDisconnected(ctx context.Context, cluster *fleet.Cluster) error {
	if !isDisconnected(cluster) {
		return nil
	}
	namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	member, err := h.members.Get(namespace, memberNameOf(cluster.Spec.ClientID))
	if err != nil || h.writtenMembers.IsStale(member) {
		return nil //nolint:nilerr // it is created, or changed, and then comes back
	}
	after := member.DeepCopy()
	if !meta.SetStatusCondition(&after.Status.Conditions, metav1.Condition{
		Type: v1beta1.ConditionReady, Status: metav1.ConditionUnknown, Reason: v1beta1.ReasonClusterStatusUnknown,
		Message: "the agent is disconnected, see condition Connected of the Cluster", LastTransitionTime: metav1.NewTime(h.Clock.Now()),
	}) {
		return nil
	}
	latest, changed, err := writes.Status(ctx, h.ClusternetClient.ManagedClusters(namespace), member, after)
	if changed {
		h.writtenMembers.Wrote(latest)
	}
	return err
}

// clusterOf returns the Cluster of a ManagedCluster, nil if there is none.
func (h *handler) clusterOf(member *v1beta1.ManagedCluster) *fleet.Cluster {
	cluster, err := h.clusters.Get(member.Annotations[fleet.WorkspaceAnnotation], member.Annotations[fleet.ClusterAnnotation])
	if err != nil || member.Namespace != registration.ClusterNamespace(cluster.Namespace, cluster.Name) || member.Name != memberNameOf(cluster.Spec.ClientID) {
		return nil
	}
	return cluster
}

// onManagedCluster copies a new heartbeat to the status of the Cluster, with the time at which it arrived by the hub's clock.
func (h *handler) onManagedCluster(key string, member *v1beta1.ManagedCluster) (*v1beta1.ManagedCluster, error) {
	if member == nil || member.DeletionTimestamp != nil {
		h.heartbeats.Delete(key)
		return member, nil
	}
	beat, ok := heartbeatOf(member.Status)
	last, seen := h.lastHeartbeat(key)
	if !ok || seen && last.sentHeartbeat == beat {
		return member, nil
	}
	now := h.Clock.Now()
	if delay := last.at.Add(heartbeatInterval).Sub(now); seen && delay > 0 {
		h.heartbeatQueue.EnqueueAfter(member.Namespace, member.Name, delay)
		return member, nil
	}
	cluster := h.clusterOf(member)
	if cluster == nil || cluster.DeletionTimestamp != nil || h.grantedFor(cluster) == nil {
		return member, nil
	}

	// A hub that has just started has recorded no heartbeat. A heartbeat with the report that the Cluster has may have been counted before; the
	// next heartbeat arrives before the agent counts as disconnected.
	report := reportOf(member.Status)
	before := *cluster.Status.Agent.DeepCopy()
	before.LastSeen = metav1.Time{}
	if !seen && !cluster.Status.Agent.LastSeen.IsZero() && equality.Semantic.DeepEqual(before, report) {
		h.heartbeats.Store(key, storedHeartbeat{beat, now})
		return member, nil
	}
	report.LastSeen = metav1.NewTime(now)
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/status/agent", "value": report}})
	if err != nil {
		return member, err
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	_, err = h.FleetClient.Clusters(cluster.Namespace).Patch(ctx, cluster.Name, types.JSONPatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return member, fmt.Errorf("writing the heartbeat of Cluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
	h.heartbeats.Store(key, storedHeartbeat{beat, now})
	return member, nil
}

// heartbeatInterval is the minimum time between two heartbeats that the hub copies for a Cluster. The interval that an agent reports is a second at
// least; only a thief of its token sends heartbeats faster, and each would be a write of the hub.
const heartbeatInterval = time.Second

// storedHeartbeat is a heartbeat that the hub has copied.
type storedHeartbeat struct {
	sentHeartbeat
	at time.Time
}

func (h *handler) lastHeartbeat(key string) (last storedHeartbeat, found bool) {
	stored, found := h.heartbeats.Load(key)
	if !found {
		return storedHeartbeat{}, false
	}
	return stored.(storedHeartbeat), true
}
