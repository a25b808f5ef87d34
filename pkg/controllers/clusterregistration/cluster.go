package clusterregistration

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/namespacekey"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

// findCluster returns the Cluster that has the request's clientID, or the name of the Cluster to create.
func (h *handler) findCluster(request *fleet.ClusterRegistration) (existing *fleet.Cluster, create string, out result.Result) {
	if request.Spec.TooLarge {
		return nil, "", result.Stalled(fleet.ReasonTooLarge, registration.TooLarge(request.Spec.Excess, fmt.Sprintf(
			"spec.clusterLabels takes more than %d KiB of the hub's memory, or spec.clientID or spec.clientRandom has more than %d characters, or %s; give the agent fewer labels",
			registration.MaxLabelsMemory>>10, registration.MaxClientIDLength, registration.MetadataTooLarge)))
	}
	clientID := request.Spec.ClientID
	owners, err := index.ClustersByClientID.Find(h.clusters, index.Key(request.Namespace, clientID))
	if err != nil {
		return nil, "", failed(err)
	}
	sameName, err := h.clusterNamed(request.Namespace, registration.ClusterName(clientID))
	if err != nil {
		return nil, "", failed(err)
	}

	match := registration.MatchCluster(clientID, owners, sameName)
	switch {
	case match.Refuse != nil:
		return nil, "", refused(match.Refuse)
	case match.Wait != nil:
		return nil, "", waiting(match.Wait)
	case match.Create != "":
		return nil, match.Create, h.mayCreateCluster(request)
	}
	return match.Use, "", done
}

// mayCreateCluster returns Done only if no Cluster owns the request: a request that belongs to a Cluster must not create a second one. If that Cluster
// is gone, Kubernetes is about to delete the request.
func (h *handler) mayCreateCluster(request *fleet.ClusterRegistration) result.Result {
	out := done
	for _, o := range request.OwnerReferences {
		if o.Kind != "Cluster" {
			continue
		}
		out = result.Skip()
		cluster, err := h.clusterNamed(request.Namespace, o.Name)
		switch {
		case err != nil:
			return failed(err)
		case cluster != nil && cluster.UID == o.UID && cluster.DeletionTimestamp == nil:
			return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
				"the request belongs to Cluster %s, which has another clientID; the agent has to register again", cluster.Name))
		}
	}
	return out
}

// clusterNamed returns a Cluster from the cache, nil if there is none of that name.
func (h *handler) clusterNamed(namespace, name string) (*fleet.Cluster, error) {
	cluster, err := h.clusters.Get(namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return cluster, err
}

// bindToCluster makes the Cluster the only owner of the request, and returns the latest version of the request.
func (h *handler) bindToCluster(ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster) (*fleet.ClusterRegistration, error) {
	if owners := request.OwnerReferences; len(owners) == 1 && owners[0].UID == cluster.UID {
		return request, nil
	}
	latest, err := writes.Merge(ctx, h.FleetClient.ClusterRegistrations(request.Namespace), request, map[string]any{
		"metadata": map[string]any{
			"ownerReferences": []metav1.OwnerReference{{
				APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID,
			}},
			// This ends the record of the field managers, which nobody needs of a request: the API server does not begin it again before an
			// apply. The write of the status then costs it a third less CPU, and the object has half the size.
			"managedFields": []any{struct{}{}},
		},
	})
	if err != nil {
		return nil, err
	}
	h.written.Wrote(latest)
	return latest, nil
}

// createCluster creates a Cluster, unless another pass has created it and the cache does not show it yet.
func (h *handler) createCluster(
	ctx context.Context, request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken, name string,
) result.Result {
	key := index.Key(request.Namespace, name)
	if h.createdClusters.IsExpected(key) {
		return waitingForNamespace(name)
	}
	hub := h.Config.Get()
	allowed, _ := registration.AllowedLabels(request.Spec.ClusterLabels, token.Spec, hub.Registration.AllowsAnyLabel())
	labels := registration.NewClusterLabels(name, allowed, hub.IgnoreClusterRegistrationLabels)
	registration.ImposeLabels(labels, token.Spec.Labels)
	if registration.IsForClusternet(request, h.HubUser) {
		labels[fleet.NonManagedAgentLabel] = "true" // a Clusternet agent does not deploy a Bundle, so it cannot update itself
	}
	var annotations map[string]string
	if !h.DisableBundles { // otherwise Fleet's own Cluster controller may create the namespace
		annotations = map[string]string{fleet.NamespaceDigestAnnotation: h.NamespaceKeys.New(request.Namespace, name)}
	}
	_, err := h.FleetClient.Clusters(request.Namespace).Create(ctx, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: request.Namespace, Name: name, Labels: labels, Annotations: annotations, Finalizers: []string{fleet.ClusterFinalizer},
		},
		Spec: fleet.ClusterSpec{ClientID: request.Spec.ClientID},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsInvalid(err):
		return result.Stalled(fleet.ReasonTokenInvalid, fmt.Sprintf(
			"Cluster %s cannot be created; correct spec.labels of ClusterRegistrationToken %s: %v", name, token.Name, err))
	case err != nil && !apierrors.IsAlreadyExists(err):
		return failed(fmt.Errorf("creating Cluster %s/%s: %w", request.Namespace, name, err))
	}
	h.createdClusters.Expect(key)
	return waitingForNamespace(name)
}

// hasNamespace reports whether the controller of Clusters has created the cluster namespace: the cached Namespace has the key that fits the
// digest on the Cluster, or Fleet created it. The status alone proves nothing: a user who may write it could name the namespace of a Cluster in
// another workspace. The controller of Clusters may write the first status only with the first heartbeat of the agent (firstStatusDelay), so it is
// not required. Where a new Cluster has no status, an agent of Fleet cannot send a heartbeat, so its request also waits for the status.
func (h *handler) hasNamespace(request *fleet.ClusterRegistration, cluster *fleet.Cluster) bool {
	name := clusterNamespace(cluster)
	isReported := cluster.Status.Namespace == name
	if !isReported && !registration.Renews(request) && !h.ClustersHaveStatus {
		return false
	}
	namespace, err := h.namespaces.Get(name)
	return err == nil && namespace.DeletionTimestamp == nil &&
		(namespacekey.IsFor(namespace, cluster) || h.DisableBundles && isReported && namespacekey.Names(namespace, cluster))
}

// waitingForNamespace returns a wait that ends with the event of the Namespace, or of the status of the Cluster. The timer is for a Cluster that is deleted before
// the cache shows it.
func waitingForNamespace(cluster string) result.Result {
	return result.Wait(fleet.ReasonWaitingForCluster, fmt.Sprintf("waiting for Cluster %s to get its namespace", cluster)).In(expectations.Timeout)
}

func clusterName(existing *fleet.Cluster, create string) string {
	if existing != nil {
		return existing.Name
	}
	return create
}

// clusterNamespace computes the namespace of a Cluster. The status only shows that it exists: an agent may write to the status.
func clusterNamespace(cluster *fleet.Cluster) string {
	return registration.ClusterNamespace(cluster.Namespace, cluster.Name)
}
