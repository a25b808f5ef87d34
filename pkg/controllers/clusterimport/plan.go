package clusterimport

import (
	"context"
	"fmt"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// importTokenTTL is how long an installed agent has to register.
const importTokenTTL = 12 * time.Hour

// plan is everything that is to be on the member.
type plan struct {
	agentNamespace string
	registration   string
	registrationOf string
	generation     string
	manifest       string
	anew           bool // the agent is to register, not only to restart
	pull           pullSecrets
	objects        []runtime.Object
	leftovers      []named // what an earlier import may have made and the Cluster no longer asks for
	fingerprint    string
}

// inputs tells one plan for one member from another. It has no secret in it but the digest.
func (p *plan) inputs(m *member) string { return m.fingerprint + "/" + p.fingerprint }

// plan returns what to install, or why that cannot be said yet.
func (p *pass) plan(ctx context.Context, values *registration.Values) (*plan, result.Result) {
	pull, problem, err := p.pullSecrets(ctx)
	if err != nil {
		return nil, result.Retry(fleet.ReasonError, err)
	}
	if problem != nil {
		return nil, result.Stalled(problem.reason, problem.message).In(p.RecheckDelay())
	}
	made := p.draft(pull)
	if made.objects, err = p.objects(values, made); err != nil {
		return nil, result.Stalled(fleet.ReasonSettingsInvalid, fmt.Sprintf("the agent cannot be installed with these settings: %s", err))
	}
	if made.fingerprint, err = registration.StatusHash(made.objects); err != nil {
		return nil, result.Retry(fleet.ReasonError, err)
	}
	return made, result.Done("", "")
}

// draft is a plan but for its objects.
func (p *pass) draft(pull pullSecrets) *plan {
	last, namespace := p.cluster.Status.Import, p.agentNamespace()
	registrationOf := atAnotherWay(p.cluster, p.facts.registrationFor, p.wanted)
	key := registrationKey(p.cluster, registrationOf)
	return &plan{
		agentNamespace: namespace,
		registration:   key,
		registrationOf: registrationOf,
		generation:     agentspec.InstalledGeneration(p.hub, p.cluster, key),
		manifest:       p.facts.manifest,
		anew:           last == nil || last.Registration != key || last.AgentNamespace != namespace,
		pull:           pull,
		leftovers:      append(p.leftovers(), p.leftPullSecrets(pull.names)...),
	}
}

// leftovers are scheduling settings that are not wanted, and that an earlier import may have made. The status does not tell
// which it made: the Cluster may have changed again before that was written. A first import is spared the look.
func (p *pass) leftovers() []named {
	if p.cluster.Status.AgentDeployedGeneration == nil {
		return nil
	}
	wanted := p.cluster.Spec.AgentSchedulingCustomization
	var unwanted []named
	if wanted == nil || wanted.PriorityClass == nil {
		unwanted = append(unwanted, named{"PriorityClass", "", agentmanifest.PriorityClassName})
	}
	if wanted == nil || wanted.PodDisruptionBudget == nil {
		unwanted = append(unwanted, named{"PodDisruptionBudget", p.agentNamespace(), agentmanifest.PodDisruptionBudgetName})
	}
	return unwanted
}

// objects are in the order of their creation: the Deployment comes when all that its pods need is there.
func (p *pass) objects(values *registration.Values, made *plan) ([]runtime.Object, error) {
	scheduling, err := agentmanifest.Scheduling(p.agentNamespace(), p.cluster.Spec.AgentSchedulingCustomization)
	if err != nil {
		return nil, err
	}
	manifest, err := p.forms.Render(agentspec.Options(p.Context, p.cluster, made.generation))
	if err != nil {
		return nil, err
	}
	agentConfig, err := p.agentConfig()
	if err != nil {
		return nil, err
	}
	objects := append([]runtime.Object{p.namespace()}, scheduling...)
	objects = append(objects, made.pull.copies...)
	// A running agent registers as soon as it sees the Secret, with the identity the ConfigMap gives it by then.
	objects = append(objects, agentConfig, p.bootstrapSecret(values, made.registration))
	objects = append(objects, manifest...)
	return objects, p.mark(objects)
}

func (p *pass) namespace() runtime.Object {
	return &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: p.agentNamespace()},
	}
}

func (p *pass) bootstrapSecret(values *registration.Values, key string) runtime.Object {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.agentNamespace(), Name: registration.BootstrapSecret},
		Data: map[string][]byte{
			registration.BootstrapAPIServerURL:                []byte(p.wanted.apiServerURL),
			registration.BootstrapAPIServerCA:                 append([]byte{}, p.wanted.apiServerCA...), // the key is there even when empty
			registration.BootstrapClusterNamespace:            []byte(values.ClusterNamespace),
			registration.BootstrapToken:                       []byte(values.Token),
			registration.BootstrapTokenName:                   []byte(values.TokenName),
			registration.BootstrapSystemRegistrationNamespace: []byte(values.SystemRegistrationNamespace),
			registration.BootstrapRegistration:                []byte(key),
		},
	}
}

func (p *pass) agentConfig() (runtime.Object, error) {
	document, err := config.Agent{
		ClientID:                  p.cluster.Spec.ClientID,
		Labels:                    registration.AgentConfigLabels(p.cluster.Labels),
		AgentTLSMode:              p.wanted.tlsMode,
		GarbageCollectionInterval: p.wanted.gcInterval,
	}.Document()
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.agentNamespace(), Name: registration.AgentConfigMap},
		Data:       map[string]string{registration.ConfigKey: document},
	}, err
}

// mark gives every object the label by which agents recognise what belongs to them. Namespaces are shared and stay as
// they are.
func (p *pass) mark(objects []runtime.Object) error {
	hash, annotations, err := apply.GetLabelsAndAnnotations(registration.AgentBootstrapSetID(p.cluster.Spec.AgentNamespace), nil)
	if err != nil {
		return err
	}
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		if _, shared := object.(*corev1.Namespace); shared {
			continue
		}
		accessor.SetLabels(labels.Merge(accessor.GetLabels(), hash))
		accessor.SetAnnotations(labels.Merge(accessor.GetAnnotations(), annotations))
	}
	return nil
}
