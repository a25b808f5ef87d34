package clusterimport

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/access"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/standing"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Condition is Imported.
func (s *Step) Condition() string { return fleet.ConditionImported }

// Leaves has Reconcile called for a Cluster too that is handed to another controller: a kubeconfig that was read for an import
// under way must not stay in memory.
func (s *Step) Leaves() {}

// Forget drops the calls to the member of a Cluster that is gone.
func (s *Step) Forget(key string) {
	namespace, name := kv.RSplit(key, "/")
	s.prepared.drop(types.NamespacedName{Namespace: namespace, Name: name})
	s.pool.forgetAll(key)
}

// Reconcile imports the Cluster if anything asks for it.
func (s *Step) Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	out, key := s.reconcile(ctx, cluster), types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
	if !out.IsWait() && !s.pool.busy(key) {
		s.prepared.drop(key)
	}
	return out
}

func (s *Step) reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	hub := s.Config.Get()
	switch {
	case cluster.Labels[fleet.ClusterManagementLabel] != "":
		return result.Skip()
	case cluster.Spec.KubeConfigSecret == "":
		return result.Done(fleet.ReasonAgentInitiated, "")
	case cluster.Spec.Quarantined:
		return result.Skip() // an import would bring the agent back; condition Registered says why there is none
	case agentspec.LocalDisabled(hub, cluster):
		return (&pass{Step: s, cluster: cluster, hub: hub}).disable(ctx)
	}
	p := &pass{Step: s, cluster: cluster, hub: hub}
	return p.run(ctx)
}

// pass is one look at one Cluster that has a kubeconfig.
type pass struct {
	*Step
	cluster *fleet.Cluster
	hub     config.Hub
	facts   facts

	secret *corev1.Secret
	wanted delivery
}

func (p *pass) key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.cluster.Namespace, Name: p.cluster.Name}
}

func (p *pass) run(ctx context.Context) result.Result {
	version := p.secrets.of(index.KubeconfigNamespace(p.cluster), p.cluster.Spec.KubeConfigSecret)
	if err := p.learn(); err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	why := whyImport(p.cluster, p.facts)
	if why == "" && version == "" {
		return imported() // the Secret is away; the member runs its agent and does not miss it
	}
	if why == "" && seen(p.cluster.Status.Import, version, settingsHash(p.hub)) {
		return p.afterImport(ctx, version)
	}
	if out := p.readSecret(ctx, version); !out.IsDone() {
		return out
	}
	if out := p.decideDelivery(); !out.IsDone() {
		return out
	}
	if why == "" && delivered(p.cluster.Status, p.wanted) {
		p.remember()
		return imported()
	}
	if out := p.vanishedKeys(); !out.IsDone() {
		return out
	}
	return p.install(ctx)
}

// learn finds out what a decision needs.
func (p *pass) learn() error {
	requests, err := standing.Of(p.requests, p.cluster)
	p.facts = facts{
		agentNamespace:  p.agentNamespace(),
		tokenGone:       p.tokenGone(),
		served:          agentspec.ServedByBundle(p.hub, p.cluster),
		manifest:        agentspec.ManifestHash(agentspec.Options(p.Context, p.cluster, "")),
		registrationFor: registrationFor(p.cluster, requests, p.Clock.Now()),
	}
	return err
}

// tokenGone says whether the token the agent was given to register with is there no more.
func (p *pass) tokenGone() bool {
	_, err := p.known.Get(p.cluster.Namespace, registration.ImportTokenName(p.cluster.Name))
	return apierrors.IsNotFound(err)
}

func imported() result.Result { return result.Done(fleet.ReasonImported, "") }

func (p *pass) agentNamespace() string { return agentspec.Namespace(p.Context, p.cluster) }

// readSecret reads the kubeconfig Secret itself, which no cache holds. In a namespace the Cluster has no business in, one
// that is not there is told like one that does not allow it: which Secrets others have is not for it to find out.
func (p *pass) readSecret(ctx context.Context, version string) result.Result {
	namespace, name := index.KubeconfigNamespace(p.cluster), p.cluster.Spec.KubeConfigSecret
	if version == "" {
		return p.secretMissing()
	}
	if p.secret = p.prepared.of(p.key(), version).secret; p.secret == nil {
		secret, err := p.Kubernetes.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return p.secretMissing()
		case err != nil:
			return result.Retry(fleet.ReasonError, fmt.Errorf("reading kubeconfig Secret %s/%s: %w", namespace, name, err))
		}
		p.secret = secret
		p.prepared.keep(p.key(), prepared{secret: secret})
	}
	if !access.MayUse(p.cluster, p.secret) {
		return p.secretNotAllowed()
	}
	return result.Done("", "")
}

// secretMissing drops what was made of a Secret that was deleted while an import was under way: the import waits, perhaps for
// ever, and a kubeconfig is not kept for that.
func (p *pass) secretMissing() result.Result {
	p.prepared.drop(p.key())
	if !access.Nearby(p.cluster) {
		return p.secretNotAllowed()
	}
	return result.Wait(fleet.ReasonWaitingForKubeconfig, fmt.Sprintf("waiting for kubeconfig Secret %s/%s",
		index.KubeconfigNamespace(p.cluster), p.cluster.Spec.KubeConfigSecret)).Told()
}

func (p *pass) secretNotAllowed() result.Result {
	return result.Stalled(fleet.ReasonKubeconfigNotAllowed, fmt.Sprintf(
		"Secret %s/%s is in another namespace and does not allow this one, or does not exist; its owner annotates it with %s=%s",
		index.KubeconfigNamespace(p.cluster), p.cluster.Spec.KubeConfigSecret, fleet.KubeconfigAllowedAnnotation, p.cluster.Namespace))
}

func (p *pass) decideDelivery() result.Result {
	wanted, problem := decideDelivery(p.hub, p.secret.Data)
	if problem != nil {
		return result.Stalled(problem.reason, problem.message)
	}
	p.wanted = wanted
	return result.Done("", "")
}

// settle is how long a new kubeconfig Secret may take to get its optional keys back.
const settle = 30 * time.Second

// vanishedKeys waits a moment when the Secret no longer says where the hub is, although it did. Management servers delete
// the Secret, make it again and add the keys a moment later; until then the agent would be sent to another address and
// back.
func (p *pass) vanishedKeys() result.Result {
	last := p.cluster.Status.Import
	if last == nil || !(last.APIServerURLFromSecret && !p.wanted.urlFromSecret || last.APIServerCAFromSecret && !p.wanted.caFromSecret) {
		return result.Done("", "")
	}
	age := p.Clock.Since(p.secret.CreationTimestamp.Time)
	if age >= settle {
		return result.Done("", "")
	}
	return result.Skip().In(settle - age)
}

// remember notes what was looked at, when it asks for nothing new.
func (p *pass) remember() {
	last := p.cluster.Status.Import
	if last == nil {
		// Another release installed this agent, and may have done so elsewhere: there it has its identity.
		last = &fleet.ImportStatus{AgentNamespace: cmp.Or(p.cluster.Status.Agent.Namespace, p.agentNamespace())}
	} else {
		last = last.DeepCopy()
	}
	last.KubeConfigSecretVersion = version(p.secret)
	last.SettingsHash = settingsHash(p.hub)
	last.APIServerURLFromSecret, last.APIServerCAFromSecret = p.wanted.urlFromSecret, p.wanted.caFromSecret
	p.cluster.Status.Import = last
}
