package bundle

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	secretKind    = "Secret"
	configMapKind = "ConfigMap"
)

// resource is a Secret or a ConfigMap that a BundleDeployment names in downstreamResources, or a Secret with the account for a server
// from which the agent downloads.
type resource struct {
	kind, name string
	// account is the type of the copy of a Secret with an account, and empty for downstreamResources.
	account corev1.SecretType
}

func (r resource) String() string { return r.kind + " " + r.name }

// field is the field of a Bundle that names the resource.
func (r resource) field() string {
	switch r.account {
	case registration.SecretTypeHelmOp:
		return "helmOpOptions"
	case registration.SecretTypeOCI:
		return "contentsId"
	default:
		return "downstreamResources"
	}
}

// accountsOf are the Secrets with the accounts for OCI artifacts and for a chart that the agent downloads. The Secret for an artifact
// has its name.
func accountsOf(helmOp *fleet.GenericMap, artifacts ...string) (all []resource) {
	for _, artifact := range artifacts {
		if r := (resource{secretKind, artifact, registration.SecretTypeOCI}); artifact != "" && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	if helmOp != nil {
		if name, _ := helmOp.Data["helmOpSecretName"].(string); name != "" {
			all = append(all, resource{secretKind, name, registration.SecretTypeHelmOp})
		}
	}
	return all
}

// copiesOf are the Secrets and ConfigMaps that a BundleDeployment names. Case does not matter in a kind.
func copiesOf(deployment *fleet.BundleDeployment) (all []resource) {
	all = accountsOf(deployment.Spec.HelmChartOptions)
	if deployment.Spec.OCIContents {
		all = append(all, accountsOf(nil, contentOf(deployment.Spec.DeploymentID), contentOf(deployment.Spec.StagedDeploymentID))...)
	}
	for _, named := range slices.Concat(deployment.Spec.Options.DownstreamResources, deployment.Spec.StagedOptions.DownstreamResources) {
		if r := resourceOf(named); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// downstreamOf are the Secrets and ConfigMaps that a Bundle or one of its targets names.
func downstreamOf(b *fleet.Bundle) (all []resource) {
	all = accountsOf(b.Spec.HelmOpOptions, b.Spec.ContentsID)
	named := b.Spec.DownstreamResources
	for _, t := range b.Spec.Targets {
		named = slices.Concat(named, t.DownstreamResources)
	}
	for _, n := range named {
		all = append(all, resourceOf(n))
	}
	return all
}

func resourceOf(named fleet.DownstreamResource) resource {
	for _, kind := range []string{secretKind, configMapKind} {
		if strings.EqualFold(named.Kind, kind) {
			return resource{kind: kind, name: named.Name}
		}
	}
	return resource{kind: named.Kind, name: named.Name}
}

// copyResources copies the Secrets and ConfigMaps that BundleDeployments name, raises their downstreamResourcesGeneration if the content
// of a copy is another one, and deletes copies that none names any more. It returns the names of the copies. BundleDeployments that are
// kept as they are keep their copies. A Secret or ConfigMap that does not exist holds up the agent, and not the hub.
func (d *Deployer) copyResources(
	ctx context.Context, cluster *fleet.Cluster, assignments []assignment, kept []*fleet.BundleDeployment,
) (secrets, configMaps []string, failures []error) {
	users, named := map[resource][]*fleet.BundleDeployment{}, map[resource]bool{}
	uses := map[string]resource{} // by kind and name
	for _, a := range assignments {
		for _, r := range copiesOf(a.existing) {
			named[r] = true
		}
		for _, r := range copiesOf(a.wanted) {
			users[r] = append(users[r], a.wanted)
		}
	}
	for _, deployment := range kept {
		for _, r := range copiesOf(deployment) {
			users[r] = append(users[r], deployment)
		}
	}

	generations := map[resource]int64{}
	namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	inOrder := func(a, b resource) int {
		return cmp.Or(strings.Compare(a.String(), b.String()), strings.Compare(string(a.account), string(b.account)))
	}
	for _, r := range slices.SortedFunc(maps.Keys(users), inOrder) {
		if first, found := uses[r.String()]; found { // a Cluster has one copy, and the two would be of different types
			failures = append(failures, &foreignCopyError{resource: r, namespace: cluster.Namespace, why: fmt.Sprintf(
				"is named in %s and in %s; name another Secret in one of them", first.field(), r.field())})
			continue
		}
		uses[r.String()] = r
		generation, err := d.copies.ensure(ctx, cluster.Namespace, r, users[r])
		generations[r] = generation
		if err != nil {
			failures = append(failures, err)
			if known := d.copies.find(r.kind, key{Namespace: namespace, Name: r.name}); known == nil || !isCopy(known) {
				continue // it may be an object that the agent must not read
			}
		}
		if r.kind == secretKind {
			secrets = append(secrets, r.name)
		} else {
			configMaps = append(configMaps, r.name)
		}
	}
	for _, a := range assignments {
		for _, r := range copiesOf(a.wanted) {
			if r.account != "" {
				continue // the agent reads it when it deploys
			}
			a.wanted.Spec.DownstreamResourcesGeneration = max(a.wanted.Spec.DownstreamResourcesGeneration, generations[r])
		}
	}
	for r := range named {
		if _, isUsed := uses[r.String()]; isUsed {
			continue
		}
		failures = append(failures, d.copies.delete(ctx, namespace, r))
	}
	return secrets, configMaps, failures
}

// copies copies the Secrets and ConfigMaps that BundleDeployments name from the namespace of the Bundle to the cluster namespace. It
// knows sources and copies by their metadata. An annotation of a copy has the version of the source, so a pass that changes nothing
// reads neither.
type copies struct{ *app.Context }

// copied is what the annotation of a copy has: the number that spec.downstreamResourcesGeneration must reach for agents to copy this
// content, and the version of the source.
type copied struct {
	generation int64
	source     string
}

func (c copied) String() string { return strconv.FormatInt(c.generation, 10) + " " + c.source }

// parseCopied returns the annotation of a copy, and false if an object is none.
func parseCopied(object metav1.Object) (copied, bool) {
	generation, source, found := strings.Cut(object.GetAnnotations()[fleet.CopyAnnotation], " ")
	n, err := strconv.ParseInt(generation, 10, 64)
	return copied{n, source}, found && err == nil
}

// isCopy reports whether the hub made a copy.
func isCopy(object metav1.Object) bool {
	_, found := parseCopied(object)
	return found
}

// ensure makes the copy of a resource for the BundleDeployments that name it. They own the copy. It returns the generation of the
// content: if the content is another one, that is higher than the generation of each of them.
func (c *copies) ensure(ctx context.Context, namespace string, r resource, users []*fleet.BundleDeployment) (generation int64, err error) {
	target := key{Namespace: users[0].Namespace, Name: r.name}
	source := c.find(r.kind, key{Namespace: namespace, Name: r.name})
	if source == nil {
		return 0, &missingSourceError{r, namespace}
	}
	next := copied{1, string(source.UID) + "/" + source.ResourceVersion}
	meta := metav1.ObjectMeta{Namespace: target.Namespace, Name: target.Name}
	for _, user := range users {
		next.generation = max(next.generation, user.Spec.DownstreamResourcesGeneration+1)
		owner := *metav1.NewControllerRef(user, deploymentKind)
		if len(meta.OwnerReferences) > 0 { // an object has one controller at most
			owner.Controller = nil
		}
		meta.OwnerReferences = append(meta.OwnerReferences, owner)
	}
	if known := c.find(r.kind, target); known != nil {
		if last, found := parseCopied(known); found && last.source == next.source && equality.Semantic.DeepEqual(known.OwnerReferences, meta.OwnerReferences) {
			return last.generation, nil
		}
	}

	if r.kind == secretKind {
		secrets := c.Kubernetes.CoreV1().Secrets
		from, err := secrets(namespace).Get(ctx, r.name, metav1.GetOptions{})
		if err != nil {
			return 0, fmt.Errorf("reading Secret %s/%s to copy it: %w", namespace, r.name, err)
		}
		ofHub := strings.HasPrefix(string(from.Type), fleet.ReservedPrefix) && from.Type != r.account
		if ofHub || !registration.IsCopiedType(string(from.Type)) {
			return 0, &foreignCopyError{resource: r, namespace: namespace, why: "is of type " + string(from.Type) + ", which is not copied; name another Secret in " + r.field()}
		}
		next.source = string(from.UID) + "/" + from.ResourceVersion
		if r.account != "" {
			meta.Labels = map[string]string{fleet.InternalSecretLabel: "true"}
		}
		return copyTo(ctx, secrets(target.Namespace), &corev1.Secret{ObjectMeta: meta, Type: cmp.Or(r.account, from.Type), Data: from.Data}, r, next,
			func(a, b *corev1.Secret) bool { return a.Type == b.Type && equality.Semantic.DeepEqual(a.Data, b.Data) },
			func(to, from *corev1.Secret) {
				to.Type, to.Data, to.Labels = from.Type, from.Data, labels.Merge(to.Labels, from.Labels)
			})
	}
	configMaps := c.Kubernetes.CoreV1().ConfigMaps
	from, err := configMaps(namespace).Get(ctx, r.name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("reading ConfigMap %s/%s to copy it: %w", namespace, r.name, err)
	}
	next.source = string(from.UID) + "/" + from.ResourceVersion
	return copyTo(ctx, configMaps(target.Namespace), &corev1.ConfigMap{ObjectMeta: meta, Data: from.Data, BinaryData: from.BinaryData}, r, next,
		func(a, b *corev1.ConfigMap) bool {
			return equality.Semantic.DeepEqual(a.Data, b.Data) && equality.Semantic.DeepEqual(a.BinaryData, b.BinaryData)
		},
		func(to, from *corev1.ConfigMap) { to.Data, to.BinaryData = from.Data, from.BinaryData })
}

// copyClient has the methods of client-go's clients that copyTo needs.
type copyClient[T metav1.Object] interface {
	Create(ctx context.Context, object T, o metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Update(ctx context.Context, object T, o metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// copyTo creates or corrects a copy, and returns the generation of its content.
func copyTo[T metav1.Object](
	ctx context.Context, client copyClient[T], wanted T, r resource, next copied, isSame func(a, b T) bool, setContent func(to, from T),
) (int64, error) {
	wanted.SetAnnotations(map[string]string{fleet.CopyAnnotation: next.String()})
	_, err := client.Create(ctx, wanted, metav1.CreateOptions{})
	if err == nil {
		return next.generation, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return 0, fmt.Errorf("copying %s to namespace %s: %w", r, wanted.GetNamespace(), err)
	}
	existing, err := client.Get(ctx, r.name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("reading the copy of %s in namespace %s: %w", r, wanted.GetNamespace(), err)
	}
	last, found := parseCopied(existing)
	if !found && !isFleetCopy(existing) {
		return 0, &foreignCopyError{resource: r, namespace: wanted.GetNamespace(), why: "exists and is no copy; delete or rename it"}
	}
	if found && isSame(existing, wanted) {
		next.generation = last.generation
		wanted.SetAnnotations(map[string]string{fleet.CopyAnnotation: next.String()})
	}
	if found && last == next && equality.Semantic.DeepEqual(existing.GetOwnerReferences(), wanted.GetOwnerReferences()) {
		return next.generation, nil // the cache does not show it yet
	}
	setContent(existing, wanted)
	existing.SetOwnerReferences(wanted.GetOwnerReferences())
	existing.SetAnnotations(wanted.GetAnnotations())
	_, err = client.Update(ctx, existing, metav1.UpdateOptions{})
	if apierrors.IsInvalid(err) { // the type of a Secret cannot change, nor anything of an immutable object
		err = client.Delete(ctx, r.name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(existing.GetUID()))})
		if err == nil {
			_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
		}
	}
	if err != nil {
		return 0, fmt.Errorf("changing the copy of %s in namespace %s: %w", r, wanted.GetNamespace(), err)
	}
	return next.generation, nil
}

// isFleetCopy reports whether Fleet's hub made a copy: a BundleDeployment of another name owns it. The Secret with Helm values has the
// name of its owner.
func isFleetCopy(object metav1.Object) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owner.Kind == deploymentKind.Kind && owner.APIVersion == deploymentKind.GroupVersion().String() && owner.Name != object.GetName()
}

// delete deletes a copy that no BundleDeployment of the Cluster names any more.
func (c *copies) delete(ctx context.Context, namespace string, r resource) error {
	known := c.find(r.kind, key{Namespace: namespace, Name: r.name})
	if known == nil || !isCopy(known) {
		return nil
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(known.UID))}
	var err error
	if r.kind == secretKind {
		err = c.Kubernetes.CoreV1().Secrets(namespace).Delete(ctx, r.name, options)
	} else {
		err = c.Kubernetes.CoreV1().ConfigMaps(namespace).Delete(ctx, r.name, options)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the copy of %s in namespace %s: %w", r, namespace, err)
	}
	return nil
}

// find returns the metadata of a Secret or ConfigMap, or nil if the cache has none.
func (c *copies) find(kind string, k key) *metav1.PartialObjectMetadata {
	informer := c.ConfigMaps
	if kind == secretKind {
		informer = c.Secrets
	}
	return findMetadata(informer, k)
}

func findMetadata(informer cache.SharedIndexInformer, k key) *metav1.PartialObjectMetadata {
	object, exists, err := informer.GetStore().GetByKey(k.String())
	if err != nil || !exists {
		return nil
	}
	return object.(*metav1.PartialObjectMetadata)
}

// missingSourceError reports that a Bundle names a Secret or ConfigMap that does not exist, or a Secret of a type that the cache does not
// have. Its creation enqueues the Clusters.
type missingSourceError struct {
	resource
	namespace string
}

// Error names the object and the field.
func (e *missingSourceError) Error() string {
	if e.kind == secretKind {
		return fmt.Sprintf("Secret %s/%s, which %s names, does not exist, or is a ServiceAccount token or a Helm release, which are not copied; create one of another type",
			e.namespace, e.name, e.field())
	}
	return fmt.Sprintf("%s %s/%s, which %s names, does not exist; create it", e.kind, e.namespace, e.name, e.field())
}

// foreignCopyError reports that a Secret or ConfigMap cannot be copied.
type foreignCopyError struct {
	resource
	namespace, why string
}

// Error names the object and what is wrong.
func (e *foreignCopyError) Error() string {
	return fmt.Sprintf("%s %s/%s %s", e.kind, e.namespace, e.name, e.why)
}
