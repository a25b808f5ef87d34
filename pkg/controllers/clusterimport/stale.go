package clusterimport

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/outcome"
)

// afterImport is what is left to do on a Cluster whose agent is installed: cleaning up after an earlier one that was in
// another namespace, once the new one has checked in.
func (p *pass) afterImport(ctx context.Context, version string) outcome.Outcome {
	last := p.cluster.Status.Import
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
func (p *pass) installedMember(ctx context.Context, version string) (*member, outcome.Outcome) {
	if out := p.readSecret(ctx, version); !out.IsDone() {
		return nil, out
	}
	p.wanted.tlsMode = p.hub.TLSMode()
	member, problem := p.member()
	if problem != nil {
		return nil, outcome.Stalled(problem.reason, problem.message)
	}
	return member, outcome.Done("", "")
}

func (p *pass) cleanStale(m *member, last *fleet.ImportStatus) outcome.Outcome {
	key := types.NamespacedName{Namespace: p.cluster.Namespace, Name: p.cluster.Name + clean}
	stale := last.StaleAgentNamespaces
	a := p.pool.attempt(key, m.fingerprint+"/"+strings.Join(stale, ","), func(ctx context.Context) callResult {
		defer m.close()
		for _, namespace := range stale {
			if f := m.clean(ctx, namespace); f != nil {
				return callResult{failure: f}
			}
		}
		return callResult{}
	})
	switch {
	case a.result.failure != nil:
		return outcome.Stalled(a.result.failure.reason, a.result.failure.message).In(a.retryIn(p.Clock.Now()))
	case a.running:
		return imported()
	}
	p.pool.forget(key)
	changed := last.DeepCopy()
	changed.StaleAgentNamespaces = nil
	p.cluster.Status.Import = changed
	return imported()
}
