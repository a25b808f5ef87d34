package clusterimport

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// disable removes the agent of the hub's own cluster, where the configuration says that it has none.
func (p *pass) disable(ctx context.Context) result.Result {
	disabled := result.Done(fleet.ReasonLocalAgentDisabled, "the configuration says bootstrap.localAgentDisabled")
	if p.cluster.Status.AgentDeployedGeneration == nil {
		return disabled
	}
	if out := p.bundleGone(); !out.IsDone() {
		return out
	}
	version := p.secrets.of(index.KubeconfigNamespace(p.cluster), p.cluster.Spec.KubeConfigSecret)
	member, out := p.installedMember(ctx, version)
	if member == nil {
		return out
	}
	hub, err := p.Kubernetes.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	return p.removeAgent(member, string(hub.UID), disabled)
}

// bundleRecheck is how often the agent's BundleDeployment is looked for while the agent is being removed.
const bundleRecheck = time.Second

// bundleGone waits until the agent has nothing to deploy itself by.
func (p *pass) bundleGone() result.Result {
	namespace, name := registration.ClusterNamespace(p.cluster.Namespace, p.cluster.Name), registration.AgentBundleName(p.cluster.Name)
	_, err := p.deployments.Get(namespace, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return result.Done("", "")
	case err != nil:
		return result.Retry(fleet.ReasonError, fmt.Errorf("looking for BundleDeployment %s/%s: %w", namespace, name, err))
	}
	return result.Wait(fleet.ReasonImporting, fmt.Sprintf(
		"removing the agent of the hub's own cluster: waiting for BundleDeployment %s/%s to go, by which it would put itself back", namespace, name)).In(bundleRecheck)
}

func (p *pass) removeAgent(m *member, hubUID string, disabled result.Result) result.Result {
	key, namespace := p.key(), p.installedNamespace()
	key.Name += clean
	a := p.pool.attempt(key, "disable/"+m.fingerprint+"/"+namespace, func(ctx context.Context) callResult {
		defer m.close()
		if f := m.mustBe(ctx, hubUID); f != nil {
			return callResult{failure: f}
		}
		return callResult{failure: m.clean(ctx, namespace)}
	})
	switch problem := a.problem(p.Clock.Now()); {
	case problem != nil:
		return *problem
	case a.running:
		return result.Wait(fleet.ReasonImporting, "removing the agent of the hub's own cluster")
	}
	p.pool.forget(key)
	status := &p.cluster.Status
	status.Agent, status.AgentDeployedGeneration, status.AgentConfigChanged, status.Import = fleet.AgentStatus{}, nil, false, nil
	return disabled
}

// installedNamespace is where the agent was installed last.
func (p *pass) installedNamespace() string {
	if last := p.cluster.Status.Import; last != nil {
		return last.AgentNamespace
	}
	if reported := p.cluster.Status.Agent.Namespace; reported != "" {
		return reported
	}
	return p.agentNamespace()
}

// mustBe compares clusters by the UID of kube-system: a kubeconfig that leads elsewhere must not cost another cluster its
// agent.
func (m *member) mustBe(ctx context.Context, uid string) *failure {
	namespaces, err := m.resource("Namespace", "")
	if err != nil {
		return failed(fleet.ReasonError, "%s", err)
	}
	found, err := namespaces.Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return diagnose(m.server, "looking which cluster this is", err)
	}
	if string(found.GetUID()) != uid {
		return failed(fleet.ReasonKubeconfigInvalid,
			"the kubeconfig of the hub's own cluster leads to another one, %s, whose agent is left alone; correct the Secret", m.server)
	}
	return nil
}
