package clusterimport

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// pullSecrets are the image pull Secrets that are copied to a member. They never travel in a Bundle, which more people and
// components may read than a Secret.
type pullSecrets struct {
	names  []string
	copies []runtime.Object
	hash   string // of their content, empty where there are none
}

// pullSecrets reads them.
func (p *pass) pullSecrets(ctx context.Context) (s pullSecrets, problem *failure, err error) {
	names, copied := agentspec.PullSecrets(p.hub, p.cluster)
	if !copied || len(names) == 0 {
		return s, nil, nil
	}
	var digests []string
	for _, name := range names {
		secret, err := p.Kubernetes.CoreV1().Secrets(p.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return s, p.pullSecretMissing(name), nil
		} else if err != nil {
			return s, nil, err
		}
		digests = append(digests, name, p.noteDigest(secret))
		s.copies = append(s.copies, p.copyOf(secret))
	}
	s.names, s.hash = names, joined(digests)
	return s, nil, nil
}

func (p *pass) pullSecretMissing(name string) *failure {
	return failed(fleet.ReasonPullSecretMissing,
		"image pull Secret %s/%s, named by imagePullSecrets of the hub's configuration, does not exist", p.SystemNamespace, name)
}

func (p *pass) copyOf(secret *corev1.Secret) runtime.Object {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.agentNamespace(), Name: secret.Name},
		Type:       secret.Type,
		Data:       secret.Data,
	}
}

// noteDigest remembers the digest of a version of a Secret, so that a thousand Clusters need it read once.
func (p *pass) noteDigest(secret *corev1.Secret) string {
	content := digest(secret.Type, secret.Data)
	p.digests.Add(version(secret), content)
	return content
}

func joined(digests []string) string {
	if len(digests) == 0 {
		return ""
	}
	return digest(digests)
}

// pullSecretsHash is the hash of what is wanted on the member. It reads only Secrets of versions that nobody has read yet.
func (p *pass) pullSecretsHash(ctx context.Context) (hash string, problem *failure, err error) {
	names, copied := agentspec.PullSecrets(p.hub, p.cluster)
	if !copied {
		return "", nil, nil
	}
	var digests []string
	for _, name := range names {
		known, found := p.digests.Get(p.secrets.of(p.SystemNamespace, name))
		if !found {
			s, problem, err := p.pullSecrets(ctx)
			return s.hash, problem, err
		}
		digests = append(digests, name, known.(string))
	}
	return joined(digests), nil, nil
}

// refreshPullSecrets copies the image pull Secrets again when they have changed, and nothing else. It is settled when there
// was nothing to do.
func (p *pass) refreshPullSecrets(ctx context.Context, version string) (out result.Result, settled bool) {
	last := p.cluster.Status.Import
	hash, problem, err := p.pullSecretsHash(ctx)
	switch {
	case err != nil:
		return result.Retry(fleet.ReasonError, err), false
	case problem != nil && p.hasAllPullSecrets(last):
		return imported(), true // one that is deleted and made again leaves the copies alone
	case problem != nil:
		return result.Stalled(problem.reason, problem.message).In(p.RecheckDelay()), false
	case hash == last.PullSecretsHash:
		return imported(), true
	}
	member, out := p.installedMember(ctx, version)
	if member == nil {
		return out, false
	}
	return p.copyPullSecrets(ctx, member), false
}

func (p *pass) hasAllPullSecrets(last *fleet.ImportStatus) bool {
	names, _ := agentspec.PullSecrets(p.hub, p.cluster)
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(last.PullSecrets, name) })
}

func (p *pass) copyPullSecrets(ctx context.Context, m *member) result.Result {
	plan, out := p.pullPlan(ctx)
	if plan == nil {
		return out
	}
	a := p.put(m, plan)
	switch problem := a.problem(p.Clock.Now()); {
	case problem != nil:
		return *problem
	case a.running:
		return imported()
	}
	changed := p.cluster.Status.Import.DeepCopy()
	changed.PullSecrets, changed.PullSecretsHash = plan.pull.names, plan.pull.hash
	p.cluster.Status.Import = changed
	return imported()
}

// pullPlan is a plan of nothing but the copies.
func (p *pass) pullPlan(ctx context.Context) (*plan, result.Result) {
	pull, problem, err := p.pullSecrets(ctx)
	if err != nil {
		return nil, result.Retry(fleet.ReasonError, err)
	}
	if problem != nil {
		return nil, result.Stalled(problem.reason, problem.message).In(p.RecheckDelay())
	}
	objects := append([]runtime.Object{p.namespace()}, pull.copies...)
	if err := p.mark(objects); err != nil {
		return nil, result.Retry(fleet.ReasonError, err)
	}
	leftovers := p.leftPullSecrets(pull.names)
	fingerprint, err := registration.StatusHash([]any{objects, len(leftovers)})
	if err != nil {
		return nil, result.Retry(fleet.ReasonError, err)
	}
	return &plan{objects: objects, leftovers: leftovers, pull: pull, fingerprint: fingerprint}, result.Done("", "")
}

// leftPullSecrets are copies that are wanted no more where the agent is.
func (p *pass) leftPullSecrets(wanted []string) (left []named) {
	last := p.cluster.Status.Import
	if last == nil || last.AgentNamespace != p.agentNamespace() {
		return nil
	}
	for _, name := range last.PullSecrets {
		if !slices.Contains(wanted, name) {
			left = append(left, named{"Secret", last.AgentNamespace, name})
		}
	}
	return left
}
