package clusterimport

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// releases are what agents have deployed on a member.
type releases interface {
	List(ctx context.Context, selector labels.Selector) ([]release.Found, error)
	Uninstall(ctx context.Context, namespace, name string, options release.Options) error
	Forget(ctx context.Context, namespace, name string) error
}

func helmReleases(config *rest.Config) (releases, error) { return release.New(config) }

// Part removes from the member of a deleted Cluster what its agent has deployed, and then the agent. It is tried once.
func (s *Step) Part(ctx context.Context, cluster *fleet.Cluster, until time.Time) result.Result {
	if cluster.Spec.KubeConfigSecret == "" {
		return result.Skip()
	}
	p := &pass{Step: s, cluster: cluster, hub: s.Config.Get()}
	untouched := p.untouched()
	p.pool.cancel(p.key()) // it would install the agent that is to go
	if untouched {
		return result.Done("", "")
	}
	return p.part(ctx, until)
}

// untouched says whether nothing was ever sent to the member: the first that an import does is to make a token. That alone does
// not say it, for a token is deleted before its Cluster when their namespace is, and the import may be half-way.
func (p *pass) untouched() bool {
	_, err := p.known.Get(p.cluster.Namespace, registration.ImportTokenName(p.cluster.Name))
	_, parting := p.pool.last(p.parting())
	return p.cluster.Status.AgentDeployedGeneration == nil && apierrors.IsNotFound(err) &&
		!p.wasCalled() && !p.pool.busy(p.key()) && !parting
}

// wasCalled says whether the last word about the import is about a call to the member, which may have left something there even
// if it failed.
func (p *pass) wasCalled() bool {
	switch result.Get(p.cluster.Status.Conditions, fleet.ConditionImported).Reason {
	case fleet.ReasonImporting, fleet.ReasonImported, fleet.ReasonUnreachable, fleet.ReasonCertificateUntrusted,
		fleet.ReasonUnauthorized, fleet.ReasonForbidden, fleet.ReasonMemberError, fleet.ReasonError:
		return true
	}
	return false
}

// parting is the call of the farewell.
func (p *pass) parting() (key types.NamespacedName, inputs string) {
	key = p.key()
	key.Name += clean
	return key, "farewell/" + string(p.cluster.UID)
}

func (p *pass) part(ctx context.Context, until time.Time) result.Result {
	key, inputs := p.parting()
	rest := until.Sub(p.Clock.Now())
	last, tried := p.pool.last(key, inputs)
	if !tried && rest > 0 {
		member, out := p.installedMember(ctx, p.secrets.of(index.KubeconfigNamespace(p.cluster), p.cluster.Spec.KubeConfigSecret))
		if member == nil {
			return noWay(out)
		}
		last = p.pool.attempt(key, inputs, p.farewell(member).call(rest, &p.pool.turns))
	}
	switch {
	case last.running && rest > 0:
		return result.Wait(fleet.ReasonFarewell, fmt.Sprintf(
			"removing the agent and what it deployed from the member, until %s at the latest", until.UTC().Format(time.RFC3339))).In(rest)
	case last.running, !tried && rest <= 0:
		return result.Stalled(fleet.ReasonFarewellTimeout, "the member did not answer in time")
	case last.result.failure != nil:
		return result.Stalled(last.result.failure.reason, last.result.failure.message)
	}
	return result.Done("", "")
}

// noWay is why the member cannot be reached at all. Nobody waits for what may never come.
func noWay(out result.Result) result.Result {
	if out.IsWait() {
		return result.Stalled(out.Reason, "there is no kubeconfig any more: "+out.Message)
	}
	return out
}

// farewell is what there is to remove, and how to tell that it is this Cluster's.
type farewell struct {
	member          *member
	cluster         *fleet.Cluster
	agentNamespaces []string
	pullSecrets     []string
	releases        func(*rest.Config) (releases, error)
}

func (p *pass) farewell(m *member) *farewell {
	f := &farewell{
		member: m, cluster: p.cluster, agentNamespaces: []string{p.installedNamespace()}, releases: helmReleases,
	}
	if last := p.cluster.Status.Import; last != nil {
		f.agentNamespaces = append(f.agentNamespaces, last.StaleAgentNamespaces...)
		f.pullSecrets = last.PullSecrets
	}
	return f
}

func (f *farewell) call(rest time.Duration, turns *turns) call {
	alone := turns.alone(f.member.server, func(ctx context.Context) callResult {
		return callResult{failure: f.run(ctx)}
	})
	return func(ctx context.Context) callResult {
		ctx, cancel := context.WithTimeout(ctx, rest)
		defer cancel()
		defer f.member.close()
		return alone(ctx)
	}
}

func (f *farewell) run(ctx context.Context) *failure {
	if err := f.member.greet(ctx); err != nil {
		return diagnose(f.member.server, "connecting to the member", err)
	}
	found := false
	for _, namespace := range f.agentNamespaces {
		ours, err := f.isOurs(ctx, namespace)
		if err != nil {
			return diagnose(f.member.server, "looking whose the agent is", err)
		}
		if !ours {
			continue
		}
		found = true
		if problem := f.clean(ctx, namespace); problem != nil {
			return problem
		}
	}
	return f.doubt(found)
}

// doubt is why what an agent deployed may be left although nothing failed. The Helm releases of agents of another release have
// no labels by which the hub could find them; those agents report neither version nor generation.
func (f *farewell) doubt(found bool) *failure {
	agent := f.cluster.Status.Agent
	switch {
	case agent.LastSeen.IsZero():
		return nil
	case !found:
		return failed(fleet.ReasonAgentUnaware, "the agent is not where it was installed on the member any more; what it deployed may be left")
	case agent.Version == "" && agent.Generation == "":
		return failed(fleet.ReasonAgentUnaware,
			"the agent was of a release that does not mark what it deploys: the agent is removed, its Helm releases may be left")
	}
	return nil
}

// clean begins with the Deployment, so that nothing deploys again what is removed, and ends with the objects by which isOurs
// knows the agent, so that it can be cut off anywhere and begun again.
func (f *farewell) clean(ctx context.Context, namespace string) *failure {
	if problem := f.member.stop(ctx, namespace); problem != nil {
		return problem
	}
	if err := f.uninstall(ctx, namespace); err != nil {
		return diagnose(f.member.server, "removing what the agent deployed", err)
	}
	return f.member.removeAll(ctx, f.objects(namespace), "removing the agent's")
}

// objects are in the order of their removal.
func (f *farewell) objects(namespace string) []named {
	evidence := []named{
		{"Secret", namespace, registration.CredentialSecret},
		{"ConfigMap", namespace, registration.AgentConfigMap},
	}
	objects := slices.DeleteFunc(agentObjects(namespace), func(o named) bool { return slices.Contains(evidence, o) })
	objects = append(objects,
		named{"Secret", namespace, registration.PendingSecret},
		named{"ConfigMap", namespace, registration.AgentHubConfigMap},
		named{"Lease", namespace, registration.AgentName},
	)
	for _, name := range f.pullSecrets {
		objects = append(objects, named{"Secret", namespace, name})
	}
	if wanted := f.cluster.Spec.AgentSchedulingCustomization; wanted != nil && wanted.PriorityClass != nil {
		objects = append(objects, named{"PriorityClass", "", agentmanifest.PriorityClassName})
	}
	return append(objects, evidence...)
}

// uninstall removes what the agent has deployed for this Cluster. The agent's own release is only forgotten: its objects are
// removed by name, those of the member that nobody may remove, such as the namespace's default ServiceAccount, are not.
func (f *farewell) uninstall(ctx context.Context, agentNamespace string) error {
	member, err := f.member.asAgent(agentNamespace)
	if err != nil {
		return err
	}
	client, err := f.releases(member.config)
	if err != nil {
		return err
	}
	owner := release.Owner{Namespace: agentNamespace, ClusterNamespace: f.cluster.Namespace, ClusterName: f.cluster.Name}
	found, err := client.List(ctx, owner.Selector())
	if err != nil {
		return err
	}
	own := registration.LabelValue(registration.AgentBundleName(f.cluster.Name))
	for _, r := range found {
		if r.Labels[release.DeploymentLabel] == own {
			err = client.Forget(ctx, r.Namespace, r.Name)
		} else {
			err = client.Uninstall(ctx, r.Namespace, r.Name, r.Options())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
