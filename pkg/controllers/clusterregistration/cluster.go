package clusterregistration

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

// findCluster finds the Cluster that has the request's identity, or the name of the one to be made: that is made only after
// the request has been judged.
func (p *pass) findCluster(context.Context) result.Result {
	clientID := p.request.Spec.ClientID
	owners, err := p.known.GetByIndex(index.ByClientID, index.Key(p.request.Namespace, clientID))
	if err != nil {
		return failed(err)
	}
	sameName, err := p.clusterNamed(registration.ClusterName(clientID))
	if err != nil {
		return failed(err)
	}
	match := registration.MatchCluster(clientID, knownAll(owners), known(sameName))
	switch {
	case match.Refuse != nil:
		return refused(match.Refuse)
	case match.Wait != nil:
		return waiting(match.Wait)
	case match.Create != "" && p.hadCluster():
		return p.ownedElsewhere()
	case match.Create != "":
		p.newCluster = match.Create
		return ok
	}
	p.cluster = named(match.Use, append(owners, sameName)...)
	p.made.Observed(index.Key(p.cluster.Namespace, p.cluster.Name))
	return ok
}

func named(name string, clusters ...*fleet.Cluster) *fleet.Cluster {
	for _, c := range clusters {
		if c != nil && c.Name == name {
			return c
		}
	}
	return nil
}

// hadCluster says whether the request belongs to a Cluster that was deleted. It must not make the Cluster anew.
func (p *pass) hadCluster() bool {
	return slices.ContainsFunc(p.request.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Cluster" })
}

// ownedElsewhere refuses a request that belongs to a Cluster of another identity. One whose Cluster is gone Kubernetes is about to
// remove.
func (p *pass) ownedElsewhere() result.Result {
	for _, o := range p.request.OwnerReferences {
		cluster, err := p.clusterNamed(o.Name)
		switch {
		case err != nil:
			return failed(err)
		case cluster != nil && cluster.UID == o.UID && cluster.DeletionTimestamp == nil:
			return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
				"the request belongs to Cluster %s, which has another clientID; the agent has to register anew", cluster.Name))
		}
	}
	return result.Skip()
}

// clusterNamed reads the cache; nil means that there is none.
func (p *pass) clusterNamed(name string) (*fleet.Cluster, error) {
	cluster, err := p.known.Get(p.request.Namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return cluster, err
}

func knownAll(clusters []*fleet.Cluster) []registration.Known {
	all := make([]registration.Known, 0, len(clusters))
	for _, c := range clusters {
		all = append(all, *known(c))
	}
	return all
}

func known(c *fleet.Cluster) *registration.Known {
	if c == nil {
		return nil
	}
	return &registration.Known{Name: c.Name, ClientID: c.Spec.ClientID, Deleting: c.DeletionTimestamp != nil}
}

// createCluster leaves the rest to the cluster controller; the event of the namespace it makes brings the request back.
// One that exists already was created by another pass and is about to reach the cache.
func (p *pass) createCluster(context.Context) result.Result {
	if p.cluster != nil {
		return ok
	}
	wait := result.Wait(fleet.ReasonWaitingForCluster, fmt.Sprintf("waiting for Cluster %s to get its namespace", p.newCluster))
	key := index.Key(p.request.Namespace, p.newCluster)
	if p.made.IsExpected(key) {
		return wait.In(expectations.Timeout) // in case its event is lost
	}
	_, err := p.clusters.Create(p.clusterToMake())
	switch {
	case apierrors.IsInvalid(err):
		return result.Stalled(fleet.ReasonError, fmt.Sprintf(
			"Cluster %s cannot be made; correct spec.labels of ClusterRegistrationToken %s: %v", p.newCluster, p.token.Name, err))
	case err != nil && !apierrors.IsAlreadyExists(err):
		return failed(fmt.Errorf("creating Cluster %s/%s: %w", p.request.Namespace, p.newCluster, err))
	}
	p.made.Expect(key)
	return wait
}

func (p *pass) clusterToMake() *fleet.Cluster {
	labels := registration.NewClusterLabels(p.newCluster, p.request.Spec.ClusterLabels, p.Config.Get().IgnoreClusterRegistrationLabels)
	registration.ImposeLabels(labels, p.token.Spec.Labels)
	return &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.request.Namespace, Name: p.newCluster, Labels: labels, Finalizers: []string{fleet.ClusterFinalizer},
		},
		Spec: fleet.ClusterSpec{ClientID: p.request.Spec.ClientID},
	}
}

// clusterName is the name of the Cluster the request is about, which need not exist yet.
func (p *pass) clusterName() string {
	if p.cluster != nil {
		return p.cluster.Name
	}
	return p.newCluster
}

// leaveToOthers stops before anybody judges what is the business of another controller.
func (p *pass) leaveToOthers(context.Context) result.Result {
	if p.cluster == nil || p.cluster.Labels[fleet.ClusterManagementLabel] == "" {
		return ok
	}
	return result.Wait(fleet.ReasonManagedElsewhere, fmt.Sprintf(
		"Cluster %s is handed to another controller by its label %s", p.cluster.Name, fleet.ClusterManagementLabel))
}

// waitForNamespace looks whether the cluster controller has made the cluster namespace. The status only says that it has:
// which namespace that is, is computed, for an agent may have written to the status.
func (p *pass) waitForNamespace(context.Context) result.Result {
	if p.cluster.Status.Namespace != p.clusterNamespace() {
		return result.Wait(fleet.ReasonWaitingForCluster, fmt.Sprintf("waiting for Cluster %s to get its namespace", p.cluster.Name))
	}
	return ok
}

func (p *pass) clusterNamespace() string {
	return registration.ClusterNamespace(p.cluster.Namespace, p.cluster.Name)
}

// bindToCluster makes the Cluster the owner of the request, so that it goes with it. That holds for a request that will be
// refused as well: left behind by a deleted Cluster, it would make the Cluster anew.
func (p *pass) bindToCluster(context.Context) result.Result {
	if p.cluster == nil {
		return ok
	}
	owner := metav1.OwnerReference{
		APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Cluster", Name: p.cluster.Name, UID: p.cluster.UID,
	}
	if current := p.request.OwnerReferences; len(current) == 1 && current[0].UID == owner.UID {
		return ok
	}
	latest, err := writes.Merge(p.requests, p.request, map[string]any{
		"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{owner}},
	})
	if err != nil {
		return failed(err)
	}
	p.fresh.Wrote(latest)
	// The status may be newer than the one the pass began with: a person's approval that came meanwhile must stay.
	p.request, p.after = latest, latest.Status.DeepCopy()
	return ok
}

// keepCluster finds the Cluster of a granted request. When it is gone, Kubernetes removes the request with it.
func (p *pass) keepCluster(context.Context) result.Result {
	cluster, err := p.clusterNamed(p.request.Status.ClusterName)
	if err != nil {
		return failed(err)
	}
	if cluster == nil || cluster.DeletionTimestamp != nil {
		return result.Skip()
	}
	p.cluster = cluster
	return ok
}
