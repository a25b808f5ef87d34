package clusterimport

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// install has the pool install the agent, and takes note of the result.
func (p *pass) install(ctx context.Context) result.Result {
	member, problem := p.member()
	if problem != nil {
		return result.Stalled(problem.reason, problem.message)
	}
	values, out := p.ensureToken()
	if values == nil {
		return out
	}
	plan, out := p.plan(ctx, values)
	if plan == nil {
		return out
	}
	return p.attempt(member, plan)
}

// member is the connection to the member. The one to the hub's own cluster depends on more than the Secret, so it is not kept.
func (p *pass) member() (*member, *failure) {
	known := p.prepared.of(p.key(), version(p.secret))
	if known.member != nil && known.mode == p.wanted.tlsMode {
		return known.member, nil
	}
	parsed, err := parseKubeconfig(p.secret)
	if err != nil {
		return nil, failed(fleet.ReasonKubeconfigInvalid, "%s", err)
	}
	if isForOwn(p.secret) {
		return p.ownMember(parsed)
	}
	m, err := newMember(parsed, p.wanted.tlsMode)
	if err != nil {
		return nil, failed(fleet.ReasonKubeconfigInvalid, "the kubeconfig in Secret %s/%s cannot be used: %s",
			p.secret.Namespace, p.secret.Name, rootCause(err))
	}
	p.prepared.keep(p.key(), prepared{p.secret, p.wanted.tlsMode, m})
	return m, nil
}

// put has the pool bring a plan to the member, or says how that stands.
func (p *pass) put(m *member, plan *plan) attempt {
	return p.pool.attempt(p.key(), plan.inputs(m), p.pool.turns.among(m.server, func(ctx context.Context) callResult {
		defer m.close()
		return callResult{failure: m.install(ctx, plan)}
	}))
}

func (p *pass) attempt(m *member, plan *plan) result.Result {
	a := p.put(m, plan)
	switch problem := a.problem(p.Clock.Now()); {
	case problem != nil:
		return *problem
	case a.running:
		// What is asked for may change back before this is done, and then the agent has to be told so.
		p.cluster.Status.AgentConfigChanged = p.cluster.Status.AgentDeployedGeneration != nil
		return installing()
	}
	p.record(plan)
	return imported()
}

// installing is what an import is told as from its first pass on: a token that is made for it meanwhile is not worth a write of
// the status.
func installing() result.Result {
	return result.Wait(fleet.ReasonImporting, "installing the agent on the member")
}

// record writes into the status what was delivered.
func (p *pass) record(plan *plan) {
	status := &p.cluster.Status
	generation := p.cluster.Spec.RedeployAgentGeneration
	interval := p.wanted.gcInterval
	stale := p.staleNamespaces(plan.agentNamespace)

	status.AgentDeployedGeneration = &generation
	status.AgentMigrated, status.CattleNamespaceMigrated, status.AgentNamespaceMigrated = true, true, true
	status.AgentConfigChanged = false
	agentspec.WantedSettings(p.cluster.Spec).Record(status)
	status.APIServerURL = p.wanted.apiServerURL
	status.APIServerCAHash = registration.CAHash(p.wanted.apiServerCA)
	status.AgentTLSMode = string(p.wanted.tlsMode)
	status.GarbageCollectionInterval = &interval
	if plan.anew {
		status.Agent = fleet.AgentStatus{Namespace: p.cluster.Spec.AgentNamespace}
	}
	p.remember()
	plan.record(status.Import)
	status.Import.StaleAgentNamespaces = stale
	status.Import.Time = metav1.NewTime(p.Clock.Now())
}

func (p *plan) record(into *fleet.ImportStatus) {
	into.Registration, into.RegistrationOf = p.registration, p.registrationOf
	into.AgentNamespace, into.Generation, into.ManifestHash = p.agentNamespace, p.generation, p.manifest
	into.PullSecrets, into.PullSecretsHash = p.pull.names, p.pull.hash
}

// staleNamespaces are those of earlier agents, known from the last import or, after one by another release, from what the
// agent last reported.
func (p *pass) staleNamespaces(current string) []string {
	var stale []string
	before := p.cluster.Status.Agent.Namespace
	if last := p.cluster.Status.Import; last != nil {
		stale = append(stale, last.StaleAgentNamespaces...)
		before = last.AgentNamespace
	}
	if before != "" {
		stale = append(stale, before)
	}
	slices.Sort(stale)
	stale = slices.Compact(stale)
	return slices.DeleteFunc(stale, func(ns string) bool { return ns == current })
}

// ensureToken makes the token the agent is to register with and waits for its values.
func (p *pass) ensureToken() (*registration.Values, result.Result) {
	name := registration.ImportTokenName(p.cluster.Name)
	token, err := p.known.Get(p.cluster.Namespace, name)
	key := index.Key(p.cluster.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && p.made.IsExpected(key):
		return nil, installing().In(expectations.Timeout) // it may be gone before the cache has seen it
	case apierrors.IsNotFound(err):
		return nil, p.createToken(key, name)
	case err != nil:
		return nil, result.Retry(fleet.ReasonError, err)
	}
	p.made.Observed(key)
	if !ownedBy(token, p.cluster) {
		return nil, foreignToken(token).In(p.RecheckDelay())
	}
	waiting := p.awaitToken(token)
	if token.DeletionTimestamp != nil || token.Status.SecretName == "" {
		return nil, waiting
	}
	secret, err := p.values.Get(token.Namespace, token.Status.SecretName)
	if apierrors.IsNotFound(err) {
		return nil, waiting.In(result.Earliest(waiting.After, p.RecheckDelay()))
	} else if err != nil {
		return nil, result.Retry(fleet.ReasonError, err)
	}
	values, err := registration.DecodeValues(secret.Data[registration.ValuesKey])
	if err != nil || values.Token == "" {
		return nil, waiting
	}
	return &values, result.Done("", "")
}

// tokenPatience is how old a token gets that cannot be used yet before the status says that the import waits for it. Most are ready
// within milliseconds, and where hundreds are made at once a write for each would delay them all.
const tokenPatience = 30 * time.Second

func (p *pass) awaitToken(token *fleet.ClusterRegistrationToken) result.Result {
	if left := tokenPatience - p.Clock.Since(token.CreationTimestamp.Time); left > 0 {
		return installing().In(min(left, tokenPatience)) // its age is by another clock
	}
	return result.Wait(fleet.ReasonWaitingForToken, "preparing the token the agent registers with")
}

// foreignToken covers the token of an earlier Cluster of this name too: Kubernetes is about to remove that one.
func foreignToken(token *fleet.ClusterRegistrationToken) result.Result {
	return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
		"ClusterRegistrationToken %s/%s exists and is not of this Cluster; delete it", token.Namespace, token.Name))
}

func ownedBy(token *fleet.ClusterRegistrationToken, cluster *fleet.Cluster) bool {
	return slices.ContainsFunc(token.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == cluster.UID })
}

func (p *pass) createToken(key, name string) result.Result {
	_, err := p.tokens.Create(&fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.cluster.Namespace,
			Name:      name,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Cluster", Name: p.cluster.Name, UID: p.cluster.UID,
			}},
		},
		Spec: fleet.ClusterRegistrationTokenSpec{TTL: &metav1.Duration{Duration: importTokenTTL}},
	})
	switch {
	case err == nil:
		p.made.Expect(key)
	case !apierrors.IsAlreadyExists(err):
		return result.Retry(fleet.ReasonError, fmt.Errorf("creating ClusterRegistrationToken %s: %w", key, err))
	}
	return installing()
}
