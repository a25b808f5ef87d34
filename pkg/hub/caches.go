package hub

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	lassocache "github.com/rancher/lasso/pkg/cache"
	"github.com/rancher/lasso/pkg/client"
	"github.com/rancher/lasso/pkg/controller"
	"github.com/rancher/wrangler/v3/pkg/ratelimit"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	clusternet "github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/bundle"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
	"github.com/muster-fleet/muster/pkg/controllers/liveness"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/version"
)

// hubConfig returns the configuration of all clients of the hub.
func hubConfig(given *rest.Config) *rest.Config {
	cfg := rest.CopyConfig(given)
	cfg.RateLimiter = ratelimit.None
	cfg.UserAgent = "fleetcontroller/" + version.Version
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.AcceptContentTypes == "" {
		// Most objects of a registration are of built-in kinds, which are decoded several times as fast from protobuf. Custom
		// resources are served as JSON only.
		cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	return cfg
}

// builtIn returns the configuration of a client for built-in kinds only.
func builtIn(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	if cfg.ContentType == "" {
		cfg.ContentType = runtime.ContentTypeProtobuf
	}
	return cfg
}

// managedOnly are kinds of which a cluster may have a large number of objects. Only objects with the hub's label are kept in memory.
var managedOnly = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind(namespaceKind),
	corev1.SchemeGroupVersion.WithKind("Secret"),
	corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	coordinationv1.SchemeGroupVersion.WithKind(leaseKind),
	rbacv1.SchemeGroupVersion.WithKind("Role"),
	rbacv1.SchemeGroupVersion.WithKind("RoleBinding"),
	rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
	rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"),
}

// neverListed are kinds of which no controller lists the objects of one namespace.
var neverListed = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	coordinationv1.SchemeGroupVersion.WithKind(leaseKind),
	rbacv1.SchemeGroupVersion.WithKind("Role"),
	rbacv1.SchemeGroupVersion.WithKind("RoleBinding"),
}

const (
	clusterKind          = "Cluster"
	clusterGroupKind     = "ClusterGroup"
	requestKind          = "ClusterRegistration"
	tokenKind            = "ClusterRegistrationToken"
	bundleKind           = "Bundle"
	bundleDeploymentKind = "BundleDeployment"
	leaseKind            = "Lease"
	namespaceKind        = "Namespace"
)

// fleetKinds are the kinds of fleet.cattle.io of which the caches contain all objects.
var fleetKinds = []schema.GroupVersionKind{
	fleet.SchemeGroupVersion.WithKind(clusterKind),
	fleet.SchemeGroupVersion.WithKind(clusterGroupKind),
	fleet.SchemeGroupVersion.WithKind(requestKind),
	fleet.SchemeGroupVersion.WithKind(tokenKind),
	fleet.SchemeGroupVersion.WithKind(bundleKind),
	fleet.SchemeGroupVersion.WithKind(bundleDeploymentKind),
}

// clusternetKinds are watched only with Options.Clusternet.
var clusternetKinds = []schema.GroupVersionKind{
	clusternet.SchemeGroupVersion.WithKind("ClusterRegistrationRequest"),
	clusternet.SchemeGroupVersion.WithKind("ManagedCluster"),
}

var configMapKind = corev1.SchemeGroupVersion.WithKind("ConfigMap")

// cacheOptions limits the objects in the caches.
func cacheOptions(systemNamespace string) *lassocache.SharedCacheFactoryOptions {
	tweaks := map[schema.GroupVersionKind]lassocache.TweakListOptionsFunc{
		configMapKind: func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", registration.HubConfigMap).String()
		},
	}
	for _, kind := range managedOnly {
		tweaks[kind] = func(o *metav1.ListOptions) { o.LabelSelector = fleet.ManagedLabel + "=" + fleet.ManagedValue }
	}
	return &lassocache.SharedCacheFactoryOptions{
		KindTweakList: tweaks,
		KindNamespace: map[schema.GroupVersionKind]string{configMapKind: systemNamespace},
	}
}

// newFactory returns the factory of the hub's own caches and queues.
func newFactory(cfg *rest.Config, systemNamespace string) (*fairFactory, error) {
	clients, err := client.NewSharedClientFactory(cfg, nil)
	if err != nil {
		return nil, err
	}
	return newFairFactory(lassocache.NewSharedCachedFactory(stoppable{clients}, cacheOptions(systemNamespace))), nil
}

// stoppable lets the caches stop while the API server does not answer: after a failed list, lasso polls the health of the server, and the
// end of the context alone does not stop the polling.
type stoppable struct{ client.SharedClientFactory }

// IsHealthy reports whether the API server is healthy, or ctx has ended.
func (s stoppable) IsHealthy(ctx context.Context) bool {
	return ctx.Err() != nil || s.SharedClientFactory.IsHealthy(ctx)
}

// caches are all caches of a hub. They are created without controllers, so that a standby can fill them: controllers keep
// every event until they are started.
type caches struct {
	lifetime                      context.Context // the caches stop when it ends
	own                           *fairFactory
	fleet                         controller.SharedControllerFactory // own, unless the program that embeds the hub passes one
	ownKinds                      []schema.GroupVersionKind          // of the factory own
	fleetKinds                    []schema.GroupVersionKind          // of the factory fleet
	secrets, contents, configMaps cache.SharedIndexInformer          // by metadata; the last two are nil with disableBundles
	interner                      *interner
	large                         *largeObjects
	readLimit                     func()                         // of large
	transforms                    map[string]cache.TransformFunc // by kind; other kinds are kept whole
	agents                        preserve.AgentReports

	mu      sync.Mutex
	started bool
	running sync.WaitGroup
}

func newCaches(lifetime context.Context, cfg *rest.Config, o Options) (*caches, error) {
	ownKinds := append([]schema.GroupVersionKind{configMapKind}, managedOnly...)
	if o.Clusternet {
		ownKinds = append(ownKinds, clusternetKinds...)
	}
	own, err := newFactory(cfg, o.SystemNamespace)
	if err != nil {
		return nil, err
	}
	watching := rest.CopyConfig(cfg)
	watching.Timeout = 0 // it would end every watch
	metadataClient, err := metadata.NewForConfig(watching)
	if err != nil {
		return nil, err
	}
	c := &caches{
		lifetime: lifetime,
		own:      own, fleet: own, ownKinds: ownKinds, fleetKinds: fleetKinds,
		secrets:  metadataInformer(metadataClient, corev1.SchemeGroupVersion.WithResource("secrets"), foreignSecrets),
		interner: newInterner(), large: newLargeObjects(),
		transforms: managedTransforms(registration.SystemRegistrationNamespace(o.SystemNamespace)),
	}
	if o.SharedControllerFactory != nil {
		c.fleet = o.SharedControllerFactory
	}
	configMaps, err := corev1client.NewForConfig(builtIn(cfg))
	if err != nil {
		return nil, err
	}
	c.readLimit = func() { c.large.readLimit(lifetime, configMaps, o.SystemNamespace) }
	restore, reduceDeployment := cache.TransformFunc(restoreCluster), cache.TransformFunc(withoutOptions)
	if o.DisableBundles {
		restore, reduceDeployment = c.agents.Transform, withoutSpec
	}
	c.transforms[clusterKind] = restore
	if c.fleet == c.own { // a shared cache stays complete: an embedding server may use the other fields
		limited := func(first cache.TransformFunc) cache.TransformFunc {
			return c.large.transform(withSmallMetadata(first))
		}
		c.transforms[clusterKind] = limited(withSmallSpec(restore))
		c.transforms[clusterGroupKind] = limited(clustergroup.Reduce)
		c.transforms[requestKind], c.transforms[tokenKind] = limited(nil), limited(nil)
		c.transforms[bundleKind] = limited(withoutResources)
		c.transforms[bundleDeploymentKind] = reduceDeployment
	}
	if o.DisableBundles {
		c.ownKinds = slices.DeleteFunc(c.ownKinds, func(kind schema.GroupVersionKind) bool { return kind.Kind == "ClusterRole" })
	} else {
		c.contents = metadataInformer(metadataClient, fleet.SchemeGroupVersion.WithResource("contents"), "")
		c.configMaps = metadataInformer(metadataClient, corev1.SchemeGroupVersion.WithResource("configmaps"), foreignConfigMaps)
	}
	return c, nil
}

// factories returns the one or two factories.
func (c *caches) factories() []controller.SharedControllerFactory {
	if c.fleet == c.own {
		return []controller.SharedControllerFactory{c.own}
	}
	return []controller.SharedControllerFactory{c.own, c.fleet}
}

// fill starts the caches and returns when they are filled, or ctx has ended.
func (c *caches) fill(ctx context.Context) error {
	if err := c.start(); err != nil {
		return err
	}
	synced := []cache.InformerSynced{c.secrets.HasSynced}
	if c.contents != nil {
		synced = append(synced, c.contents.HasSynced, c.configMaps.HasSynced)
	}
	for _, factory := range c.factories() {
		factory.SharedCacheFactory().WaitForCacheSync(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	c.interner.forget()
	return nil
}

func (c *caches) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started {
		return nil
	}
	c.readLimit()
	if err := c.transform(c.own.SharedCacheFactory(), c.ownKinds); err != nil {
		return err
	}
	if err := c.transform(c.fleet.SharedCacheFactory(), c.fleetKinds); err != nil {
		return err
	}
	for _, factory := range c.factories() {
		if err := factory.SharedCacheFactory().Start(c.lifetime); err != nil {
			return err
		}
	}
	c.running.Go(func() {
		wait.UntilWithContext(c.lifetime, func(context.Context) { c.interner.forget() }, internTime)
	})
	c.running.Go(func() { c.secrets.RunWithContext(c.lifetime) })
	if c.contents != nil {
		c.running.Go(func() { c.contents.RunWithContext(c.lifetime) })
		c.running.Go(func() { c.configMaps.RunWithContext(c.lifetime) })
	}
	c.started = true
	return nil
}

// transform reduces the objects of these kinds in the caches to the fields that the hub needs.
func (c *caches) transform(factory lassocache.SharedCacheFactory, kinds []schema.GroupVersionKind) error {
	for _, kind := range kinds {
		informer, err := factory.ForKind(kind)
		if err != nil {
			return fmt.Errorf("watching kind %s: %w", kind, err)
		}
		if slices.Contains(neverListed, kind) {
			// lasso adds this index to all caches. Each cluster has a namespace, and an index takes 300 bytes for each of its values.
			delete(informer.GetIndexer().GetIndexers(), cache.NamespaceIndex)
		}
		// AddEventHandler returns an error only for an informer that was stopped.
		if c.fleet == c.own && countsMemory(kind) {
			_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: c.large.forget})
		}
		if kind.Kind == clusterKind {
			_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: c.agents.Forget})
		}
		c.interner.transform(informer, c.transforms[kind.Kind])
	}
	return nil
}

// managedTransforms returns the transforms of the kinds managedOnly.
func managedTransforms(registrationNamespace string) map[string]cache.TransformFunc {
	transforms := map[string]cache.TransformFunc{}
	for _, kind := range managedOnly {
		transforms[kind.Kind] = reduceManaged(registrationNamespace)
	}
	transforms[leaseKind] = liveness.Reduce
	return transforms
}

// restoreCluster adds the fields to the status of a Cluster that a hub with disableBundles has stored in an annotation.
func restoreCluster(object any) (any, error) {
	if cluster, ok := object.(*fleet.Cluster); ok {
		preserve.Restore(cluster)
	}
	return object, nil
}

// withSmallSpec returns a transform of Clusters that also drops the parts of the spec that are too large, and cuts the text of the agent that the
// CustomResourceDefinition of Fleet does not limit.
func withSmallSpec(first cache.TransformFunc) cache.TransformFunc {
	return func(object any) (any, error) {
		if cluster, ok := object.(*fleet.Cluster); ok {
			reduceSpec(&cluster.Spec)
			cluster.Status.Agent.DeploymentsStalled = fleetstatus.Cut(cluster.Status.Agent.DeploymentsStalled, fleetstatus.MaxStalled)
		}
		return first(object)
	}
}

// withoutResources replaces the resources of a Bundle, which may be as large as the API server permits, by their digest, and drops the rest of
// the spec if it is too large. It drops the annotation of kubectl apply, which contains the spec once more, with the resources. The hub reads a Bundle from
// the API server when it creates a Content.
func withoutResources(object any) (any, error) {
	if b, ok := object.(*fleet.Bundle); ok {
		delete(b.Annotations, corev1.LastAppliedConfigAnnotation)
		content.WithoutResources(&b.Spec)
		reduceBundle(&b.Spec)
	}
	return object, nil
}

// withoutOptions replaces the options of a BundleDeployment by their digests, and shortens what the agent reports. Both may be as large as the API
// server permits.
func withoutOptions(object any) (any, error) {
	if d, ok := object.(*fleet.BundleDeployment); ok {
		bundle.Reduce(&d.Spec)
		d.Status = fleetstatus.Shorten(d.Status)
	}
	return object, nil
}

// withoutSpec drops the large parts of a BundleDeployment. A hub with disableBundles reads only its deployment ID and its
// state.
func withoutSpec(object any) (any, error) {
	if d, ok := object.(*fleet.BundleDeployment); ok {
		s := d.Spec
		d.Spec = fleet.BundleDeploymentSpec{
			Paused: s.Paused, DeploymentID: s.DeploymentID, StagedDeploymentID: s.StagedDeploymentID, OCIContents: s.OCIContents,
			ValuesHash: s.ValuesHash, OffSchedule: s.OffSchedule, WaitingForValues: s.WaitingForValues,
			DownstreamResourcesGeneration: s.DownstreamResourcesGeneration,
		}
		d.Status = fleetstatus.Shorten(d.Status)
	}
	return object, nil
}

// startWorkers starts the work queues of all registered controllers, until ctx ends.
func (c *caches) startWorkers(ctx context.Context, workers int) error {
	for _, factory := range c.factories() {
		if err := factory.Start(ctx, workers); err != nil {
			return err
		}
	}
	return nil
}

// wait returns when the metadata caches have stopped.
func (c *caches) wait() { c.running.Wait() }

// The field selectors of the metadata caches save memory. foreignSecrets excludes the Secrets of ServiceAccount tokens and Helm releases, which are
// never kubeconfig Secrets, and foreignConfigMaps the root certificates that Kubernetes puts into each namespace.
const (
	foreignSecrets    = "type!=" + string(corev1.SecretTypeServiceAccountToken) + ",type!=helm.sh/release.v1"
	foreignConfigMaps = "metadata.name!=kube-root-ca.crt"
)

// metadataInformer watches the metadata of Secrets, ConfigMaps or Contents. The hub reads a whole object, for example a kubeconfig, when it needs it.
func metadataInformer(client metadata.Interface, resource schema.GroupVersionResource, fieldSelector string) cache.SharedIndexInformer {
	informer := metadatainformer.NewFilteredMetadataInformer(client, resource,
		metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) { o.FieldSelector = fieldSelector }).Informer()
	_ = informer.SetTransform(keepIdentity) // fails only for an informer that runs already
	return informer
}

// keepIdentity is the transform of the metadata caches. It keeps only the label that marks the hub's own objects. For a copy that the hub made,
// it keeps the annotation and a digest of the owners, too.
func keepIdentity(object any) (any, error) {
	m, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	kept := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, DeletionTimestamp: m.DeletionTimestamp,
	}}
	kept.Labels = managedLabelsOf(m)
	if strings.HasPrefix(m.Namespace, "cluster-") { // copies are in cluster namespaces
		kept.Annotations = bundle.CopyAnnotations(m)
	}
	return kept, nil
}

// managedLabelsOf returns the label of the hub's own objects if the object has it.
func managedLabelsOf(object metav1.Object) map[string]string {
	if object.GetLabels()[fleet.ManagedLabel] != fleet.ManagedValue {
		return nil
	}
	return managedLabels
}

// managedLabels is shared by all objects whose other labels are dropped.
var managedLabels = map[string]string{fleet.ManagedLabel: fleet.ManagedValue}
