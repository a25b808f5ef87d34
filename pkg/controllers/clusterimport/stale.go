package clusterimport

import (
	"context"
	"encoding/json"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// afterImport is what is left to do on a Cluster whose agent is installed: copying image pull Secrets that have changed, and
// cleaning up after an earlier agent that was in another namespace, once the new one has checked in.
func (p *pass) afterImport(ctx context.Context, version string) result.Result {
	last := p.cluster.Status.Import
	if out, settled := p.refreshPullSecrets(ctx, version); !settled {
		return out
	}
	if len(last.StaleAgentNamespaces) == 0 {
		p.pool.forget(p.key())
		return imported()
	}
	if p.cluster.Status.Agent.LastSeen.IsZero() || p.cluster.Status.Agent.Namespace != last.AgentNamespace {
		return imported()
	}
	member, out := p.installedMember(ctx, version)
	if member == nil {
		return out
	}
	return p.cleanStale(member, last)
}

// installedMember is the connection to a member that has its agent, or why there is none.
func (p *pass) installedMember(ctx context.Context, version string) (*member, result.Result) {
	if out := p.readSecret(ctx, version); !out.IsDone() {
		return nil, out
	}
	p.wanted.tlsMode = p.hub.TLSMode()
	member, problem := p.member()
	if problem != nil {
		return nil, result.Stalled(problem.reason, problem.message)
	}
	return member, result.Done("", "")
}

// cleanMoved removes an agent from a namespace it has moved away from, with the copies of image pull Secrets and the history
// of the Helm release by which it kept itself up to date there. The release is not uninstalled: some of its objects, such as
// the namespace's default ServiceAccount, are not only its own.
func (m *member) cleanMoved(ctx context.Context, cluster *fleet.Cluster, namespace string, pullSecrets []string) *failure {
	if f := m.clean(ctx, namespace); f != nil {
		return f
	}
	if err := m.handOver(ctx, cluster, namespace, cluster.Status.Import.AgentNamespace); err != nil {
		return diagnose(m.server, "removing the agent's earlier hold on its Helm releases", err)
	}
	left := []named{{"Secret", namespace, registration.PendingSecret}, {"Lease", namespace, registration.AgentName}}
	for _, name := range pullSecrets {
		left = append(left, named{"Secret", namespace, name})
	}
	if f := m.removeAll(ctx, left, "removing the agent's earlier"); f != nil {
		return f
	}
	if err := m.forgetRelease(ctx, cluster, namespace); err != nil {
		return diagnose(m.server, "removing the history of the agent's earlier Helm release", err)
	}
	return nil
}

// handOver gives what an agent deployed to the one that took its place in another namespace. Agents know their releases by
// the labels of the history, in which their own namespace is: two hubs may have agents on one member.
func (m *member) handOver(ctx context.Context, cluster *fleet.Cluster, from, to string) error {
	before := release.Owner{Namespace: from, ClusterNamespace: cluster.Namespace, ClusterName: cluster.Name}
	after := release.Owner{Namespace: to, ClusterNamespace: cluster.Namespace, ClusterName: cluster.Name}
	patch, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"labels": after.Labels()}})
	if err != nil {
		return err
	}
	everywhere, err := m.resource("Secret", metav1.NamespaceAll)
	if err != nil {
		return err
	}
	revisions, err := everywhere.List(ctx, metav1.ListOptions{LabelSelector: before.Selector().String()})
	if err != nil {
		return err
	}
	for _, r := range revisions.Items {
		if r.GetNamespace() == from && r.GetLabels()[release.DeploymentLabel] == registration.LabelValue(registration.AgentBundleName(cluster.Name)) {
			continue // the earlier agent's own, which is forgotten
		}
		if err := m.relabel(ctx, r, patch); err != nil {
			return err
		}
	}
	return nil
}

func (m *member) relabel(ctx context.Context, revision unstructured.Unstructured, patch []byte) error {
	secrets, err := m.resource("Secret", revision.GetNamespace())
	if err != nil {
		return err
	}
	_, err = secrets.Patch(ctx, revision.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: registration.FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (m *member) forgetRelease(ctx context.Context, cluster *fleet.Cluster, namespace string) error {
	_, name := release.Place(registration.AgentBundleName(cluster.Name), fleet.BundleDeploymentOptions{DefaultNamespace: namespace})
	secrets, err := m.resource("Secret", namespace)
	if err != nil {
		return err
	}
	err = secrets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
		LabelSelector: labels.Set{"owner": "helm", "name": name}.String(),
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (p *pass) cleanStale(m *member, last *fleet.ImportStatus) result.Result {
	key := types.NamespacedName{Namespace: p.cluster.Namespace, Name: p.cluster.Name + clean}
	stale := last.StaleAgentNamespaces
	a := p.pool.attempt(key, m.fingerprint+"/"+strings.Join(stale, ","), p.pool.turns.among(m.server, func(ctx context.Context) callResult {
		defer m.close()
		agent, err := m.asAgent(last.AgentNamespace)
		if err != nil {
			return callResult{failure: failed(fleet.ReasonError, "%s", err)}
		}
		for _, namespace := range stale {
			if f := agent.cleanMoved(ctx, p.cluster, namespace, last.PullSecrets); f != nil {
				return callResult{failure: f}
			}
		}
		return callResult{}
	}))
	switch problem := a.problem(p.Clock.Now()); {
	case problem != nil:
		return *problem
	case a.running:
		return imported()
	}
	p.pool.forget(key)
	changed := last.DeepCopy()
	changed.StaleAgentNamespaces = nil
	p.cluster.Status.Import = changed
	return imported()
}
