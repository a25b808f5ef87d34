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
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	secretKind    = "Secret"
	configMapKind = "ConfigMap"
)

// maxSources is the number of Secrets and ConfigMaps that a Bundle may name. Each takes some 500 bytes in an index, fifteen times its JSON, and is
// looked up in each pass over each Cluster.
const maxSources = 1000

// copySource is a Secret or a ConfigMap that a BundleDeployment names in downstreamResources, or a Secret with the login for a server
// from which the agent downloads.
type copySource struct {
	kind, name string
	// loginType is the type of the copy of a Secret with a login, and empty for downstreamResources.
	loginType corev1.SecretType
}

func (s copySource) String() string { return s.kind + " " + s.name }

// field returns the name of the field of a Bundle that names the source.
func (s copySource) field() string {
	switch s.loginType {
	case registration.SecretTypeHelmOp:
		return "helmOpOptions"
	case registration.SecretTypeOCI:
		return "contentsId"
	default:
		return "downstreamResources"
	}
}

// loginsOf returns the Secrets with the logins for OCI artifacts and for a chart that the agent downloads. The Secret for an artifact has the
// name of the artifact.
func loginsOf(helmOp *fleet.GenericMap, artifacts ...string) (all []copySource) {
	for _, artifact := range artifacts {
		if s := (copySource{secretKind, artifact, registration.SecretTypeOCI}); artifact != "" && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	if helmOp != nil {
		if name, _ := helmOp.Data["helmOpSecretName"].(string); name != "" {
			all = append(all, copySource{secretKind, name, registration.SecretTypeHelmOp})
		}
	}
	return all
}

// sourcesOf returns the Secrets and ConfigMaps that a BundleDeployment names. Case does not matter in a kind.
func sourcesOf(deployment *fleet.BundleDeployment) (all []copySource) {
	all = loginsOf(deployment.Spec.HelmChartOptions)
	digests := deployment.Spec.CachedDigests
	if digests != nil && deployment.Spec.HelmChartOptions == nil {
		for _, s := range decodeSources(digests.HelmChartOptions) {
			all = append(all, copySource{s.kind, s.name, registration.SecretTypeHelmOp})
		}
	}
	if deployment.Spec.OCIContents {
		all = append(all, loginsOf(nil, contentOf(deployment.Spec.DeploymentID), contentOf(deployment.Spec.StagedDeploymentID))...)
	}
	seen := map[copySource]bool{} // Fleet's hub does not limit their number
	add := func(s copySource) {
		if !seen[s] {
			seen[s] = true
			all = append(all, s)
		}
	}
	for _, named := range slices.Concat(deployment.Spec.Options.DownstreamResources, deployment.Spec.StagedOptions.DownstreamResources) {
		add(sourceOf(named))
	}
	if digests != nil { // those in the options that the cache has dropped
		for _, s := range slices.Concat(decodeSources(digests.Options), decodeSources(digests.StagedOptions)) {
			add(s)
		}
	}
	return all
}

// sourcesOfBundle returns the Secrets and ConfigMaps that a Bundle or one of its targets names.
func sourcesOfBundle(b *fleet.Bundle) (all []copySource) {
	all = loginsOf(b.Spec.HelmOpOptions, b.Spec.ContentsID)
	for _, named := range b.Spec.DownstreamResources {
		all = append(all, sourceOf(named))
	}
	for _, t := range b.Spec.Targets {
		for _, named := range t.DownstreamResources {
			all = append(all, sourceOf(named))
		}
	}
	return all
}

func sourceOf(named fleet.DownstreamResource) copySource {
	for _, kind := range []string{secretKind, configMapKind} {
		if strings.EqualFold(named.Kind, kind) {
			return copySource{kind: kind, name: named.Name}
		}
	}
	return copySource{kind: named.Kind, name: named.Name}
}

// ensureCopies copies the Secrets and ConfigMaps that BundleDeployments name, raises their downstreamResourcesGeneration if the content
// of a copy has changed, and deletes copies that none names any more. It returns the names of the copies, and by Bundle
// what the storage limit of the workspace keeps from the Cluster. A Secret or ConfigMap that does not exist delays the agent, and not the hub.
func (d *Deployer) ensureCopies(
	ctx context.Context, cluster *fleet.Cluster, assignments []assignment,
) (secrets, configMaps []string, overStorage map[key]storageExcess, failures []error) {
	overStorage = map[key]storageExcess{}
	dependents, earlier := map[copySource][]*fleet.BundleDeployment{}, map[copySource]bool{}
	chosen := map[string]copySource{} // by kind and name
	for _, a := range assignments {
		for _, s := range sourcesOf(a.existing) {
			earlier[s] = true
		}
		for _, s := range sourcesOf(a.wanted) {
			dependents[s] = append(dependents[s], a.wanted)
		}
	}

	generations := map[copySource]int64{}
	namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	inOrder := func(a, b copySource) int {
		return cmp.Or(strings.Compare(a.String(), b.String()), strings.Compare(string(a.loginType), string(b.loginType)))
	}
	for _, s := range slices.SortedFunc(maps.Keys(dependents), inOrder) {
		if first, found := chosen[s.String()]; found { // a Cluster has one copy, and the two would be of different types
			failures = append(failures, &unusableError{s.kind, key{Namespace: cluster.Namespace, Name: s.name}, fmt.Sprintf(
				"is named in %s and in %s; name another Secret in one of them", first.field(), s.field())})
			continue
		}
		chosen[s.String()] = s
		generation, err := int64(0), d.checkRoomForCopy(cluster, s, dependents[s])
		if err == nil {
			generation, err = d.copies.ensure(ctx, cluster.Namespace, s, dependents[s], func(size, counted int64) error {
				return d.reserveStorage(cluster, bundleOf(dependents[s][0]), storageExcess{size: size, source: s}, counted, func() (int64, error) {
					return d.copies.sizeOf(ctx, s, namespace)
				})
			})
		}
		generations[s] = generation
		if err != nil {
			failures = append(failures, err)
			noteStorageExcess(overStorage, err, dependents[s]...)
			if !d.copies.exists(ctx, s, namespace) {
				continue // the agent may have no right to read the object of that name
			}
		}
		if s.kind == secretKind {
			secrets = append(secrets, s.name)
		} else {
			configMaps = append(configMaps, s.name)
		}
	}
	for _, a := range assignments {
		for _, s := range sourcesOf(a.wanted) {
			if s.loginType != "" {
				continue // the agent reads it when it deploys
			}
			a.wanted.Spec.DownstreamResourcesGeneration = max(a.wanted.Spec.DownstreamResourcesGeneration, generations[s])
		}
	}
	for s := range earlier {
		if _, isNeeded := chosen[s.String()]; isNeeded {
			continue
		}
		failures = append(failures, d.copies.delete(ctx, namespace, s))
	}
	return secrets, configMaps, overStorage, failures
}

// checkRoomForCopy returns an error if there is no copy of a source yet, and no room for one even without content: the hub reads no source then. A
// Bundle may name a thousand for each Cluster.
func (d *Deployer) checkRoomForCopy(cluster *fleet.Cluster, s copySource, dependents []*fleet.BundleDeployment) error {
	namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	if d.copies.find(s.kind, key{Namespace: namespace, Name: s.name}) != nil || d.copies.find(s.kind, key{Namespace: cluster.Namespace, Name: s.name}) == nil {
		return nil
	}
	least := copyVersion{}.bytes(len(dependents))
	if limit := d.Config.Get().Bundles.WorkspaceLimit(); !d.countedSizes(cluster.Namespace).fits(namespace, s.String(), least, limit-d.smallExcess(cluster.Namespace)) {
		return &storageError{bundleOf(dependents[0]), storageExcess{size: least, source: s, atLeast: true}, limit}
	}
	return nil
}

// copies copies the Secrets and ConfigMaps that BundleDeployments name from the namespace of the Bundle to the cluster namespace.
// The caches have the metadata of sources and copies. An annotation of a copy has the version of the source, so a pass that changes nothing
// reads neither.
type copies struct{ *app.Context }

// copyVersion is the annotation of a copy: the number that spec.downstreamResourcesGeneration must reach for agents to copy this
// content, and the version of the source.
type copyVersion struct {
	generation    int64
	sourceVersion string
	size          int64 // of the content, as it counts for the storage limit; noSize in a copy of Fleet's hub
}

// noSize is the size of a copy whose annotation has none. Such a copy does not count.
const noSize = -1

const (
	copyOverhead = 2 << 10 // is counted for each copy, in addition to its content and to the owners beyond freeOwners
	freeOwners   = 4       // are part of copyOverhead, so that the limit does not prevent their addition to a copy
	ownerSize    = 256     // is counted for each further owner
)

// bytes returns what a copy with that number of owners counts for the storage limit.
func (v copyVersion) bytes(owners int) int64 {
	if v.size == noSize {
		return 0
	}
	return copyOverhead + v.size + int64(max(0, owners-freeOwners))*ownerSize
}

// countedCopySize returns what a copy counts, according to its metadata in the cache.
func countedCopySize(copied *metav1.PartialObjectMetadata) int64 {
	version, found := parseCopyVersion(copied)
	if !found {
		return 0
	}
	owners, _, _ := strings.Cut(copied.Annotations[ownersAnnotation], " ")
	number, _ := strconv.Atoi(owners)
	return version.bytes(number)
}

func (v copyVersion) String() string {
	return fmt.Sprint(v.generation, " ", v.sourceVersion, " ", v.size)
}

// parseCopyVersion returns the annotation of a copy, and false if the object is not a copy.
func parseCopyVersion(object metav1.Object) (copyVersion, bool) {
	generation, source, found := strings.Cut(object.GetAnnotations()[fleet.CopyAnnotation], " ")
	n, err := strconv.ParseInt(generation, 10, 64)
	source, text, hasSize := strings.Cut(source, " ")
	size, sizeErr := strconv.ParseInt(text, 10, 64)
	if !hasSize || sizeErr != nil || size < 0 {
		size = noSize
	}
	return copyVersion{n, source, size}, found && err == nil
}

const (
	// maxCopyVersion is more than the length of every copyVersion: three numbers and a UID.
	maxCopyVersion = 128
	// ownersAnnotation exists only in the caches of metadata. It has the number of the owners of a copy, and a digest of them and of whether the copy
	// is that of a login.
	ownersAnnotation = "muster.fleet.cattle.io/copy-owners"
)

// CopyAnnotations returns the annotations that the caches of metadata keep of an object in a cluster namespace. Any user who may create a
// Namespace can give it such a name and put objects with many owners into it. So the caches keep a digest of the owners of a copy, which has
// one for each BundleDeployment, and no annotation of other objects.
func CopyAnnotations(object metav1.Object) map[string]string {
	version := object.GetAnnotations()[fleet.CopyAnnotation]
	if !isCopy(object) || len(version) > maxCopyVersion {
		return nil
	}
	return map[string]string{fleet.CopyAnnotation: version, ownersAnnotation: ownersDigest(object)}
}

func ownersDigest(object metav1.Object) string {
	owners := object.GetOwnerReferences()
	digest, err := registration.StatusHash([]any{owners, object.GetLabels()[fleet.InternalSecretLabel]})
	if err != nil {
		panic(fmt.Sprintf("strings always marshal: %v", err))
	}
	return fmt.Sprint(len(owners), " ", digest)
}

// isCopy reports whether the hub made a copy.
func isCopy(object metav1.Object) bool {
	_, found := parseCopyVersion(object)
	return found
}

// ensure makes the copy of a source for the BundleDeployments that name it. They own the copy. It returns the generation of the
// content: if the content has changed, that is higher than the generation of each of them. It
// calls reserve with the size of the copy, and with what is counted already for the copy that this one replaces.
func (c *copies) ensure(
	ctx context.Context, namespace string, s copySource, dependents []*fleet.BundleDeployment, reserve func(size, counted int64) error,
) (generation int64, err error) {
	target := key{Namespace: dependents[0].Namespace, Name: s.name}
	source := c.find(s.kind, key{Namespace: namespace, Name: s.name})
	if source == nil {
		return 0, &missingSourceError{s, namespace}
	}
	next := copyVersion{1, sourceVersionOf(source), 0}
	meta := metav1.ObjectMeta{Namespace: target.Namespace, Name: target.Name}
	if s.loginType != "" {
		meta.Labels = map[string]string{fleet.InternalSecretLabel: "true"}
	}
	for _, dependent := range dependents {
		next.generation = max(next.generation, dependent.Spec.DownstreamResourcesGeneration+1)
		owner := *metav1.NewControllerRef(dependent, deploymentKind)
		if len(meta.OwnerReferences) > 0 { // an object has one controller at most
			owner.Controller = nil
		}
		meta.OwnerReferences = append(meta.OwnerReferences, owner)
	}
	last, counted := copyVersion{}, int64(0)
	if known := c.find(s.kind, target); known != nil {
		var found bool
		if last, found = parseCopyVersion(known); found && last.sourceVersion == next.sourceVersion && known.Annotations[ownersAnnotation] == ownersDigest(&meta) {
			return last.generation, nil
		}
		counted = countedCopySize(known)
	}

	if s.kind == secretKind {
		from, err := c.Kubernetes.CoreV1().Secrets(namespace).Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return 0, fmt.Errorf("reading Secret %s/%s to copy it: %w", namespace, s.name, err)
		}
		ofHub := strings.HasPrefix(string(from.Type), fleet.ReservedPrefix) && from.Type != s.loginType
		if ofHub || !registration.IsCopiedType(string(from.Type)) {
			return 0, &unusableError{s.kind, keyOf(from), "is of type " + string(from.Type) + ", which is not copied; name another Secret in " + s.field()}
		}
		next.sourceVersion, next.size = sourceVersionOf(from), toCount(contentSize(from.Data, nil), last.size)
		if err := reserve(next.bytes(len(dependents)), counted); err != nil {
			return 0, err
		}
		return copyTo(ctx, c.Kubernetes.CoreV1().Secrets(target.Namespace), &corev1.Secret{ObjectMeta: meta, Type: cmp.Or(s.loginType, from.Type), Data: from.Data}, s, next,
			func(a, b *corev1.Secret) bool { return a.Type == b.Type && equality.Semantic.DeepEqual(a.Data, b.Data) },
			func(to, from *corev1.Secret) {
				to.Type, to.Data, to.Labels = from.Type, from.Data, labels.Merge(to.Labels, from.Labels)
			})
	}
	from, err := c.Kubernetes.CoreV1().ConfigMaps(namespace).Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("reading ConfigMap %s/%s to copy it: %w", namespace, s.name, err)
	}
	next.sourceVersion, next.size = sourceVersionOf(from), toCount(contentSize(from.BinaryData, from.Data), last.size)
	if err := reserve(next.bytes(len(dependents)), counted); err != nil {
		return 0, err
	}
	return copyTo(ctx, c.Kubernetes.CoreV1().ConfigMaps(target.Namespace), &corev1.ConfigMap{ObjectMeta: meta, Data: from.Data, BinaryData: from.BinaryData}, s, next,
		func(a, b *corev1.ConfigMap) bool {
			return equality.Semantic.DeepEqual(a.Data, b.Data) && equality.Semantic.DeepEqual(a.BinaryData, b.BinaryData)
		},
		func(to, from *corev1.ConfigMap) { to.Data, to.BinaryData = from.Data, from.BinaryData })
}

// contentSize returns the size of the data of a Secret or ConfigMap.
func contentSize(data map[string][]byte, texts map[string]string) (size int64) {
	for name, value := range data {
		size += int64(len(name) + len(value))
	}
	for name, value := range texts {
		size += int64(len(name) + len(value))
	}
	return size
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
	ctx context.Context, client copyClient[T], wanted T, s copySource, next copyVersion, isSame func(a, b T) bool, setContent func(to, from T),
) (int64, error) {
	wanted.SetAnnotations(map[string]string{fleet.CopyAnnotation: next.String()})
	_, err := client.Create(ctx, wanted, metav1.CreateOptions{})
	if err == nil {
		return next.generation, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return 0, fmt.Errorf("copying %s to namespace %s: %w", s, wanted.GetNamespace(), err)
	}
	existing, err := client.Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("reading the copy of %s in namespace %s: %w", s, wanted.GetNamespace(), err)
	}
	last, found := parseCopyVersion(existing)
	if !found && !isFleetCopy(existing) {
		return 0, &unusableError{s.kind, keyOf(existing), "exists and is no copy; delete or rename it"}
	}
	switch equal := isSame(existing, wanted); {
	case equal && found:
		next.generation = last.generation
	case equal: // the BundleDeployments have the generation of Fleet's hub, so that the move from that hub deploys nothing again
		next.generation = max(1, next.generation-1)
	case found: // the cache may have the BundleDeployments before the last change
		next.generation = max(next.generation, last.generation+1)
	}
	wanted.SetAnnotations(map[string]string{fleet.CopyAnnotation: next.String()})
	if found && last == next && ownersDigest(existing) == ownersDigest(wanted) {
		return next.generation, nil // the cache does not show it yet
	}
	setContent(existing, wanted)
	existing.SetOwnerReferences(wanted.GetOwnerReferences())
	existing.SetAnnotations(wanted.GetAnnotations())
	_, err = client.Update(ctx, existing, metav1.UpdateOptions{})
	if apierrors.IsInvalid(err) { // the type of a Secret cannot change, nor anything of an immutable object
		err = client.Delete(ctx, s.name, writes.IfUID(existing))
		if err == nil {
			_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
		}
	}
	if err != nil {
		return 0, fmt.Errorf("changing the copy of %s in namespace %s: %w", s, wanted.GetNamespace(), err)
	}
	return next.generation, nil
}

// isFleetCopy reports whether Fleet's hub made a copy: a BundleDeployment of another name owns it. The Secret with Helm values has the
// name of its owner.
func isFleetCopy(object metav1.Object) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owner.Kind == deploymentKind.Kind && owner.APIVersion == deploymentKind.GroupVersion().String() && owner.Name != object.GetName()
}

// exists reports whether a cluster namespace has a copy of a source that this hub or Fleet's hub has made.
func (c *copies) exists(ctx context.Context, s copySource, namespace string) bool {
	known := c.find(s.kind, key{Namespace: namespace, Name: s.name})
	if known == nil || isCopy(known) {
		return known != nil
	}
	live, _, err := c.read(ctx, s, namespace) // the cache has no owners
	return err == nil && isFleetCopy(live)
}

// sizeOf returns what a copy that this hub or Fleet's hub has made would count, 0 if there is none.
func (c *copies) sizeOf(ctx context.Context, s copySource, namespace string) (int64, error) {
	if c.find(s.kind, key{Namespace: namespace, Name: s.name}) == nil {
		return 0, nil
	}
	live, size, err := c.read(ctx, s, namespace)
	if apierrors.IsNotFound(err) || err == nil && !isCopy(live) && !isFleetCopy(live) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return copyVersion{size: size}.bytes(len(live.GetOwnerReferences())), nil
}

// read returns the object with the name of a source in a cluster namespace, and the size of its content.
func (c *copies) read(ctx context.Context, s copySource, namespace string) (metav1.Object, int64, error) {
	if s.kind == secretKind {
		secret, err := c.Kubernetes.CoreV1().Secrets(namespace).Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return nil, 0, fmt.Errorf("reading the copy of %s in namespace %s: %w", s, namespace, err)
		}
		return secret, contentSize(secret.Data, nil), nil
	}
	configMap, err := c.Kubernetes.CoreV1().ConfigMaps(namespace).Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return nil, 0, fmt.Errorf("reading the copy of %s in namespace %s: %w", s, namespace, err)
	}
	return configMap, contentSize(configMap.BinaryData, configMap.Data), nil
}

// delete deletes a copy that no BundleDeployment of the Cluster names any more.
func (c *copies) delete(ctx context.Context, namespace string, s copySource) error {
	known := c.find(s.kind, key{Namespace: namespace, Name: s.name})
	if known == nil || !isCopy(known) {
		return nil
	}
	options := writes.IfUID(known)
	var err error
	if s.kind == secretKind {
		err = c.Kubernetes.CoreV1().Secrets(namespace).Delete(ctx, s.name, options)
	} else {
		err = c.Kubernetes.CoreV1().ConfigMaps(namespace).Delete(ctx, s.name, options)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the copy of %s in namespace %s: %w", s, namespace, err)
	}
	return nil
}

// withEarlierCopy returns the cluster namespaces with a copy of an earlier version of a source.
func (c *copies) withEarlierCopy(workspace string, source changedSource) (namespaces []string) {
	latest := ""
	if object := c.find(source.kind, key{Namespace: workspace, Name: source.name}); object != nil {
		latest = sourceVersionOf(object)
	}
	found, _ := c.metadata(source.kind).GetIndexer().ByIndex(bySourceUID, string(source.uid)) // fails only without the index
	for _, object := range found {
		copied := object.(*metav1.PartialObjectMetadata)
		if version, _ := parseCopyVersion(copied); version.sourceVersion != latest {
			namespaces = append(namespaces, copied.Namespace)
		}
	}
	return namespaces
}

// sourceVersionOf returns the version of a source, as copies have it.
func sourceVersionOf(source metav1.Object) string {
	return string(source.GetUID()) + "/" + source.GetResourceVersion()
}

// find returns the metadata of a Secret or ConfigMap, or nil if the cache has none.
func (c *copies) find(kind string, k key) *metav1.PartialObjectMetadata {
	return index.Metadata(c.metadata(kind), k.String())
}

func (c *copies) metadata(kind string) cache.SharedIndexInformer {
	if kind == secretKind {
		return c.SecretMetadata
	}
	return c.ConfigMapMetadata
}

// missingSourceError reports that a Bundle names a Secret or ConfigMap that does not exist, or a Secret of a type that the cache does not
// have. Its creation enqueues the Clusters.
type missingSourceError struct {
	copySource
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
