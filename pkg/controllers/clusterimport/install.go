package clusterimport

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// installPlan is what an import installs on the member, before its objects are rendered. Two plans with the same inputs render
// the same objects, so a call that has ended is recognized without rendering them again.
type installPlan struct {
	options         agentmanifest.Options
	scheduling      *fleet.AgentSchedulingCustomization
	agentConfig     string            // the document in the agent's ConfigMap
	bootstrap       map[string][]byte // the agent's bootstrap Secret
	registrationKey string            // the result of the function registrationKey
	registrationID  string
	reregister      bool      // the agent must register again, not only restart
	mayBeTaken      bool      // the Cluster has lost its agent, perhaps to another Cluster
	replacedBy      types.UID // of the Cluster that has replaced the agent and must keep it, empty if there is none
	generation      string
	manifestHash    string
	pullSecrets     pullSecrets
	agent           agentID
	leftovers       []agentmanifest.OwnedObject // objects of an earlier import that the Cluster no longer requires
	earlier         []string                    // namespaces in which earlier agents of the Cluster may still run
}

// plan decides what an import installs on the member.
func (i *Importer) plan(hub config.Hub, cluster *fleet.Cluster, f facts, info hubInfo, values *registration.Values, pull pullSecrets) (*installPlan, error) {
	last := cluster.Status.Import
	id := withEndpointAsCause(info, cluster, f.registrationID)
	key := registrationKey(cluster, id)
	generation := agentspec.InstalledGeneration(hub, cluster, key)
	agentConfig, err := config.Agent{
		ClientID:                  cluster.Spec.ClientID,
		Labels:                    registration.AgentConfigLabels(cluster.Labels),
		AgentTLSMode:              info.tlsMode,
		GarbageCollectionInterval: info.gcInterval,
	}.Document()
	return &installPlan{
		options:     agentspec.Options(i.Context, cluster, generation),
		scheduling:  cluster.Spec.AgentSchedulingCustomization,
		agentConfig: agentConfig,
		bootstrap: map[string][]byte{
			registration.BootstrapAPIServerURL:                []byte(info.apiServerURL),
			registration.BootstrapAPIServerCA:                 append([]byte{}, info.apiServerCA...), // the key exists even when empty
			registration.BootstrapWorkspace:                   []byte(values.Workspace),
			registration.BootstrapToken:                       []byte(values.Token),
			registration.BootstrapTokenName:                   []byte(values.TokenName),
			registration.BootstrapSystemRegistrationNamespace: []byte(values.SystemRegistrationNamespace),
			registration.BootstrapRegistrationKey:             []byte(key),
		},
		registrationKey: key,
		registrationID:  id,
		reregister:      last == nil || last.RegistrationKey != key || last.AgentNamespace != f.agentNamespace || f.agentLost,
		mayBeTaken:      agentspec.Disconnected(cluster),
		generation:      generation,
		manifestHash:    f.manifestHash,
		pullSecrets:     pull,
		earlier:         staleNamespaces(&cluster.Status, f.agentNamespace),
		agent:           agentIn(cluster, f.agentNamespace, i.SystemNamespace),
		leftovers:       append(schedulingLeftovers(cluster, f.agentNamespace), i.pullSecretLeftovers(hub, cluster)...),
	}, err
}

// inputs is a digest of everything from which the objects are rendered, and of the member.
func (p *installPlan) inputs(m *memberClient) (string, error) {
	hash, err := registration.StatusHash([]any{p.options, p.scheduling, p.agentConfig, p.bootstrap, p.pullSecrets.hash})
	return m.fingerprint + "/" + hash, err
}

// render returns the objects in the order of their creation: the Deployment comes after everything that its Pods need.
func (p *installPlan) render(renderer *agentmanifest.Renderer, pullSecretCopies []runtime.Object) ([]runtime.Object, error) {
	namespace := p.options.Namespace
	scheduling, err := agentmanifest.Scheduling(namespace, p.scheduling)
	if err != nil {
		return nil, err
	}
	manifest, err := renderer.Render(p.options)
	if err != nil {
		return nil, err
	}
	objects := append([]runtime.Object{namespaceObject(namespace)}, scheduling...)
	objects = append(objects, pullSecretCopies...)
	// A running agent registers as soon as it sees the bootstrap Secret, with the identity in the ConfigMap at that time.
	objects = append(objects,
		&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: registration.AgentConfigMap},
			Data:       map[string]string{registration.ConfigKey: p.agentConfig},
		},
		&corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: registration.BootstrapSecret},
			Data:       p.bootstrap,
		},
	)
	objects = append(objects, manifest...)
	return objects, label(objects, p.options.Scope)
}

func namespaceObject(name string) runtime.Object {
	return &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// label gives every object the label by which agents find their own objects, except Namespaces, which others may use.
func label(objects []runtime.Object, scope string) error {
	set, annotations, err := agentmanifest.ImportMarks(scope)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if _, shared := object.(*corev1.Namespace); shared {
			continue
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		accessor.SetLabels(labels.Merge(accessor.GetLabels(), set))
		accessor.SetAnnotations(labels.Merge(accessor.GetAnnotations(), annotations))
	}
	return nil
}

// schedulingLeftovers are scheduling objects that the Cluster does not require. The status does not say whether an earlier
// import created them: the Cluster may have changed again before the status was written. A first import has no leftovers. The PriorityClass stays
// if it belongs to another agent: see removePriorityClass.
func schedulingLeftovers(cluster *fleet.Cluster, agentNamespace string) (leftovers []agentmanifest.OwnedObject) {
	if cluster.Status.AgentDeployedGeneration == nil {
		return nil
	}
	if !requiresPriorityClass(cluster) {
		leftovers = append(leftovers, agentPriorityClass)
	}
	if wanted := cluster.Spec.AgentSchedulingCustomization; wanted == nil || wanted.PodDisruptionBudget == nil {
		leftovers = append(leftovers, agentmanifest.OwnedObject{
			Kind: "PodDisruptionBudget", Namespace: agentNamespace, Name: agentmanifest.PodDisruptionBudgetName,
		})
	}
	return leftovers
}

var agentPriorityClass = agentmanifest.OwnedObject{Kind: "PriorityClass", Name: agentmanifest.PriorityClassName}

func requiresPriorityClass(cluster *fleet.Cluster) bool {
	wanted := cluster.Spec.AgentSchedulingCustomization
	return wanted != nil && wanted.PriorityClass != nil
}

// pullSecrets identifies the image pull Secrets of the hub that are copied to a member. They are never part of a Bundle, because
// more people and components may read a Bundle than a Secret.
type pullSecrets struct {
	names []string
	hash  string // of their content, empty if there are none
}

// pullSecrets returns the image pull Secrets to copy to the member. It reads a Secret only if its current version was not read
// before; the digest of each version serves all Clusters.
func (i *Importer) pullSecrets(ctx context.Context, hub config.Hub, cluster *fleet.Cluster) (pullSecrets, result.Result) {
	names, copied := agentspec.PullSecrets(hub, cluster)
	if !copied || len(names) == 0 || i.isBesideHub(hub, cluster) {
		return pullSecrets{}, result.Done("", "")
	}
	var digests []string
	for _, name := range names {
		known, found := i.pullSecretDigests.Get(i.secretVersion(i.SystemNamespace, name))
		if !found {
			secret, out := i.pullSecret(ctx, name)
			if secret == nil {
				return pullSecrets{}, out
			}
			known = digest(secret.Type, secret.Data)
			i.pullSecretDigests.Add(version(secret), known)
		}
		digests = append(digests, name, known.(string))
	}
	return pullSecrets{names: names, hash: digest(digests)}, result.Done("", "")
}

// pullSecret reads an image pull Secret; if it is nil, the caller returns out.
func (i *Importer) pullSecret(ctx context.Context, name string) (secret *corev1.Secret, out result.Result) {
	secret, err := i.Kubernetes.CoreV1().Secrets(i.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, result.Stalled(fleet.ReasonPullSecretMissing, fmt.Sprintf(
			"image pull Secret %s/%s, named by imagePullSecrets of the hub's configuration, does not exist", i.SystemNamespace, name)).In(i.RecheckDelay())
	}
	if err != nil {
		return nil, result.Retry(fleet.ReasonError, fmt.Errorf("reading image pull Secret %s/%s: %w", i.SystemNamespace, name, err))
	}
	return secret, result.Done("", "")
}

// pullSecretCopies reads the image pull Secrets and returns their copies for the agent's namespace.
func (i *Importer) pullSecretCopies(ctx context.Context, names []string, agentNamespace string) (copies []runtime.Object, out result.Result) {
	for _, name := range names {
		secret, out := i.pullSecret(ctx, name)
		if secret == nil {
			return nil, out
		}
		copies = append(copies, &corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: secret.Name},
			Type:       secret.Type,
			Data:       secret.Data,
		})
	}
	return copies, result.Done("", "")
}

// pullSecretLeftovers are copies in the agent's namespace that the agent no longer uses. Among the Secrets that it uses may be one of a person that
// has replaced a copy of the same name.
func (i *Importer) pullSecretLeftovers(hub config.Hub, cluster *fleet.Cluster) (leftovers []agentmanifest.OwnedObject) {
	last, agentNamespace := cluster.Status.Import, agentspec.Namespace(i.Context, cluster)
	if last == nil || last.AgentNamespace != agentNamespace || i.isBesideHub(hub, cluster) {
		return nil
	}
	used, _ := agentspec.PullSecrets(hub, cluster)
	for _, name := range last.PullSecrets {
		if !slices.Contains(used, name) {
			leftovers = append(leftovers, agentmanifest.OwnedObject{Kind: "Secret", Namespace: agentNamespace, Name: name})
		}
	}
	return leftovers
}

// install applies the objects of the plan in their order and then deletes the leftovers. It deletes nothing before its replacement exists, except
// objects whose fields cannot be changed, so a connection that breaks at any point leaves a working agent. If the agent must register again, before
// has the credential of the agent that was there.
func (m *memberClient) install(ctx context.Context, plan *installPlan, objects []runtime.Object) (before installedAgent, problem *failure) {
	newNamespace := false
	for _, object := range objects {
		created, err := m.apply(ctx, object)
		if apierrors.IsInvalid(err) { // perhaps because of a field that cannot be changed
			switch replaced := object.(type) {
			case *schedulingv1.PriorityClass:
				err = m.replacePriorityClass(ctx, append([]string{plan.agent.namespace}, plan.earlier...), replaced)
			case *corev1.Secret:
				err = m.replaceSecret(ctx, plan.agent, replaced)
			}
		}
		if err != nil {
			return before, diagnose(m.server, "installing "+describe(object), err)
		}
		if _, isNamespace := object.(*corev1.Namespace); isNamespace {
			newNamespace = created
		}
		// The Deployment, which restarts the agent, follows the bootstrap Secret. Before it restarts, delete a credential that
		// the agent would use instead of registering again. A namespace that did not exist has none.
		if secret, isSecret := object.(*corev1.Secret); isSecret && secret.Name == registration.BootstrapSecret && plan.reregister && !newNamespace {
			if before, err = m.deleteUnmarkedCredential(ctx, plan.agent.namespace); err != nil {
				return before, diagnose(m.server, "removing the credential of an agent that would not register again", err)
			}
		}
	}
	return before, m.removeAll(ctx, plan.agent, plan.leftovers, "removing the unwanted")
}

func describe(object runtime.Object) string {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	accessor, err := meta.Accessor(object)
	if err != nil {
		return kind
	}
	return kind + " " + cache.MetaObjectToName(accessor).String()
}

// deleteUnmarkedCredential deletes a stored credential that does not record for which registration it was issued. Fleet's agent
// stores such a credential, uses it as long as it works, and ignores the new registration. Muster's agents compare the registration
// and keep the old credential until the new one works. before has the fields of the stored credential and, if it is deleted, its token.
func (m *memberClient) deleteUnmarkedCredential(ctx context.Context, agentNamespace string) (before installedAgent, err error) {
	stored, kubeconfig, err := m.storedCredential(ctx, agentNamespace)
	before.credential = stored
	if _, isMarked := stored[registration.BootstrapRegistrationKey]; err != nil || stored == nil || isMarked {
		return before, err
	}
	before.token, _ = tokenIn(kubeconfig) // one that is too large says nothing about the hub
	return before, m.remove(ctx, "Secret", agentNamespace, registration.CredentialSecret)
}

// agentID identifies one agent of a member. The scopes are the values of spec.agentNamespace with which an import may have marked its objects.
type agentID struct {
	namespace string
	scopes    []string
}

// agentIn identifies the agent of a Cluster in a namespace. The Cluster may have another spec.agentNamespace now than at the import into that namespace.
func agentIn(cluster *fleet.Cluster, namespace, systemNamespace string) agentID {
	agent := agentID{namespace, []string{cluster.Spec.AgentNamespace, namespace}}
	if namespace == systemNamespace { // that is the default
		agent.scopes = append(agent.scopes, "")
	}
	return agent
}

// removeAll deletes objects of the agent. A Secret that has none of the names of the inventory is a copy of an image pull Secret.
func (m *memberClient) removeAll(ctx context.Context, agent agentID, objects []agentmanifest.OwnedObject, messagePrefix string) *failure {
	for _, o := range objects {
		var err error
		switch {
		case o.Kind == "PriorityClass":
			err = m.removePriorityClass(ctx, agent)
		case o.Kind == "Secret" && !slices.Contains(agentmanifest.OwnedObjects(o.Namespace), o):
			_, err = m.removePullSecret(ctx, agent, o.Name)
		default:
			err = m.remove(ctx, o.Kind, o.Namespace, o.Name)
		}
		if err != nil {
			return diagnose(m.server, messagePrefix+" "+o.Kind+" "+o.Name, err)
		}
	}
	return nil
}

// removePullSecret deletes a copy of an image pull Secret. isForeign is true if the Secret stays because it does not have the marks of an import: a person has
// created it.
//
// On the hub's own cluster the agent deletes it: the rights of the hub there name only the image pull Secrets of the current configuration.
func (m *memberClient) removePullSecret(ctx context.Context, agent agentID, name string) (isForeign bool, err error) {
	member, err := m.asAgent(agent.namespace)
	if err != nil {
		return false, err
	}
	secrets, err := member.resource("Secret", agent.namespace)
	if err != nil {
		return false, err
	}
	stored, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if isMarked, err := agentmanifest.HasImportMarks(stored, agent.scopes...); err != nil || !isMarked {
		return !isMarked, err
	}
	return false, removeUID(ctx, secrets, stored)
}

// removeUID deletes an object, but not another one of its name.
func removeUID(ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	uid := object.GetUID()
	err := client.Delete(ctx, object.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// removePriorityClass deletes the PriorityClass of the agent. The class stays if it does not belong to this agent, or if perhaps the Deployment of another
// agent names it: all agents of a member share its name, and the API server refuses a Pod that names a missing class.
func (m *memberClient) removePriorityClass(ctx context.Context, agent agentID) error {
	classes, err := m.resource("PriorityClass", "")
	if err != nil {
		return err
	}
	class, err := classes.Get(ctx, agentmanifest.PriorityClassName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	if isOwned, err := agentmanifest.OwnsPriorityClass(class, agent.namespace, agent.scopes...); err != nil || !isOwned {
		return err
	}
	isUsed, err := m.isPriorityClassOfOthers(ctx, []string{agent.namespace})
	if apierrors.IsForbidden(err) {
		return nil // a Role of a person allows less; another agent may need the class
	} else if err != nil || isUsed {
		return err
	}
	return removeUID(ctx, classes, class)
}

// isPriorityClassOfOthers reports whether the Deployment of an agent in another namespace than these names the PriorityClass.
func (m *memberClient) isPriorityClassOfOthers(ctx context.Context, own []string) (bool, error) {
	deployments, err := m.resource("Deployment", metav1.NamespaceAll)
	if err != nil {
		return false, err
	}
	agents, err := deployments.List(ctx, metav1.ListOptions{FieldSelector: agentmanifest.DeploymentFieldSelector})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(agents.Items, func(d unstructured.Unstructured) bool {
		class, _, _ := unstructured.NestedString(d.Object, "spec", "template", "spec", "priorityClassName")
		return class == agentmanifest.PriorityClassName && !slices.Contains(own, d.GetNamespace())
	}), nil
}

var errForeignSecret = errors.New("a Secret of this name exists with another type, or is immutable, and no import has created it; delete it on the member, or name it in spec.agentPullSecrets")

// replaceSecret deletes a copy of an image pull Secret and creates the wanted one: the type of a Secret is immutable.
func (m *memberClient) replaceSecret(ctx context.Context, agent agentID, wanted *corev1.Secret) error {
	if isForeign, err := m.removePullSecret(ctx, agent, wanted.Name); err != nil {
		return err
	} else if isForeign {
		return errForeignSecret
	}
	_, err := m.apply(ctx, wanted)
	return err
}

var errPriorityClassInUse = errors.New("another agent of this member uses it")

// replacePriorityClass deletes the PriorityClass and creates the wanted one: its value is immutable. Agents of this Cluster run in the namespaces own.
func (m *memberClient) replacePriorityClass(ctx context.Context, own []string, wanted runtime.Object) error {
	isUsed, err := m.isPriorityClassOfOthers(ctx, own)
	if err != nil {
		return err
	}
	if isUsed {
		classes, err := m.resource("PriorityClass", "")
		if err != nil {
			return err
		}
		class, err := classes.Get(ctx, agentmanifest.PriorityClassName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		value, _, _ := unstructured.NestedInt64(class.Object, "value")
		policy := corev1.PreemptLowerPriority
		if text, _, _ := unstructured.NestedString(class.Object, "preemptionPolicy"); text == string(corev1.PreemptNever) {
			policy = corev1.PreemptNever
		}
		return fmt.Errorf("%w with value %d and preemptionPolicy %s; set the same here, or, to change it, remove "+
			"spec.agentSchedulingCustomization.priorityClass from the other Cluster until this one is imported", errPriorityClassInUse, value, policy)
	}
	if err := m.remove(ctx, "PriorityClass", "", agentmanifest.PriorityClassName); err != nil {
		return err
	}
	_, err = m.apply(ctx, wanted)
	return err
}
