// Package index has the indexes that several controllers share. The cost of a look-up does not depend on the number of clusters.
package index

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strconv"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/rancher/wrangler/v3/pkg/generic"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Indexes with about as many keys as objects, see Bucketed.
var (
	// AccountsByRequest finds the ServiceAccounts of agents by the key of their request.
	AccountsByRequest = Bucketed[*corev1.ServiceAccount]{"muster.fleet.cattle.io/by-request", accountByRequest}
	// AccountsByNamespace finds the ServiceAccounts of a namespace.
	AccountsByNamespace = Bucketed[*corev1.ServiceAccount]{"muster.fleet.cattle.io/by-namespace", accountByNamespace}
	// ClustersByClientID finds Clusters by Key(namespace, clientID).
	ClustersByClientID = Bucketed[*fleet.Cluster]{"muster.fleet.cattle.io/by-client-id", clusterByClientID}
	// RequestsByClientID finds requests by Key(namespace, clientID).
	RequestsByClientID = Bucketed[*fleet.ClusterRegistration]{"muster.fleet.cattle.io/by-client-id", requestByClientID}
	// RequestsByUID finds requests by their UID.
	RequestsByUID = Bucketed[*fleet.ClusterRegistration]{"muster.fleet.cattle.io/by-uid", requestByUID}
)

const (
	// ByToken finds requests that are not granted, and tokens, by TokenKey(namespace, token name). The name is empty for requests that name no token.
	ByToken = "muster.fleet.cattle.io/by-token"
	// ByImportToken finds Clusters that the hub imports by the TokenKey of the token of the import.
	ByImportToken = "muster.fleet.cattle.io/by-import-token"
	// ByNewCluster finds requests that are not granted, by Key(namespace, name of the Cluster that would be created for them).
	ByNewCluster = "muster.fleet.cattle.io/by-new-cluster"
	// ByKubeconfig finds Clusters by Key(namespace, name) of their kubeconfig Secret.
	ByKubeconfig = "muster.fleet.cattle.io/by-kubeconfig"
	// ByReplacedCluster finds Clusters whose import has replaced the agent of another one by what status.import.replacedCluster says.
	ByReplacedCluster = "muster.fleet.cattle.io/by-replaced-cluster"
	// ByManagementName finds Clusters of all namespaces by the name that a management server has for the cluster.
	ByManagementName = "muster.fleet.cattle.io/by-management-name"
)

// Register adds the indexes. It is called once, before any controller is registered.
func Register(f fleetcontrollers.Interface, core corecontrollers.Interface) {
	AddTo[*fleet.Cluster](f.Cluster().Cache())
	AddTo[*fleet.ClusterRegistration](f.ClusterRegistration().Cache())
	AddTo[*fleet.ClusterRegistrationToken](f.ClusterRegistrationToken().Cache())
	AddTo[*corev1.ServiceAccount](core.ServiceAccount().Cache())
}

// AddTo adds the indexes of one kind to a cache.
func AddTo[T generic.RuntimeMetaObject](cache indexable[T]) {
	switch c := any(cache).(type) {
	case indexable[*fleet.Cluster]:
		ClustersByClientID.AddTo(c)
		c.AddIndexer(ByImportToken, clusterByImportToken)
		c.AddIndexer(ByKubeconfig, clusterByKubeconfig)
		c.AddIndexer(ByReplacedCluster, clusterByReplacedCluster)
		c.AddIndexer(ByManagementName, clusterByManagementName)
	case indexable[*fleet.ClusterRegistration]:
		RequestsByClientID.AddTo(c)
		RequestsByUID.AddTo(c)
		c.AddIndexer(ByToken, requestByToken)
		c.AddIndexer(ByNewCluster, requestByNewCluster)
	case indexable[*fleet.ClusterRegistrationToken]:
		c.AddIndexer(ByToken, tokenByName)
	case indexable[*corev1.ServiceAccount]:
		AccountsByRequest.AddTo(c)
		AccountsByNamespace.AddTo(c)
	}
}

// Registered reports whether the indexes exist: the factory has served a hub before, and its caches do not accept them again.
func Registered(f fleetcontrollers.Interface) bool {
	_, found := f.Cluster().Informer().GetIndexer().GetIndexers()[ClustersByClientID.Name]
	return found
}

// Metadata returns the metadata of an object from an informer of PartialObjectMetadata, or nil if the cache has none.
func Metadata(informer cache.SharedIndexInformer, key string) *metav1.PartialObjectMetadata {
	object, exists, err := informer.GetStore().GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	return object.(*metav1.PartialObjectMetadata)
}

// Names returns the names of objects.
func Names[T metav1.Object](objects []T) []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(objects))
	for _, o := range objects {
		names = append(names, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()})
	}
	return names
}

// Key joins a namespace, which contains no slash, and another string.
func Key(namespace, rest string) string { return namespace + "/" + rest }

// TokenKey is the key of a token. Agents send the name in a label, in which a long name is shortened.
func TokenKey(namespace, token string) string { return Key(namespace, registration.LabelValue(token)) }

// KubeconfigNamespace is the namespace of a Cluster's kubeconfig Secret.
func KubeconfigNamespace(cluster *fleet.Cluster) string {
	return cmp.Or(cluster.Spec.KubeConfigSecretNamespace, cluster.Namespace)
}

// clusterByClientID leaves out Clusters without a clientID: a request with an empty one must not match them.
func clusterByClientID(c *fleet.Cluster) []string {
	if c.Spec.ClientID == "" {
		return nil
	}
	return []string{Key(c.Namespace, c.Spec.ClientID)}
}

func clusterByImportToken(c *fleet.Cluster) ([]string, error) {
	if c.Spec.KubeConfigSecret == "" {
		return nil, nil
	}
	return []string{TokenKey(c.Namespace, registration.ImportTokenName(c.Name))}, nil
}

func clusterByKubeconfig(c *fleet.Cluster) ([]string, error) {
	if c.Spec.KubeConfigSecret == "" {
		return nil, nil
	}
	return []string{Key(KubeconfigNamespace(c), c.Spec.KubeConfigSecret)}, nil
}

func clusterByReplacedCluster(c *fleet.Cluster) ([]string, error) {
	if c.Status.Import == nil || c.Status.Import.ReplacedCluster == "" {
		return nil, nil
	}
	return []string{c.Status.Import.ReplacedCluster}, nil
}

func clusterByManagementName(c *fleet.Cluster) ([]string, error) {
	name := c.Labels[fleet.ManagementClusterLabel]
	if name == "" {
		return nil, nil
	}
	return []string{name}, nil
}

func requestByClientID(r *fleet.ClusterRegistration) []string {
	return []string{Key(r.Namespace, r.Spec.ClientID)}
}

func requestByToken(r *fleet.ClusterRegistration) ([]string, error) {
	if r.Status.Granted {
		return nil, nil
	}
	return []string{Key(r.Namespace, r.Labels[fleet.RegistrationTokenLabel])}, nil
}

func requestByUID(r *fleet.ClusterRegistration) []string { return []string{string(r.UID)} }

func requestByNewCluster(r *fleet.ClusterRegistration) ([]string, error) {
	if r.Status.Granted {
		return nil, nil
	}
	return []string{Key(r.Namespace, registration.ClusterName(r.Spec.ClientID))}, nil
}

func tokenByName(t *fleet.ClusterRegistrationToken) ([]string, error) {
	return []string{TokenKey(t.Namespace, t.Name)}, nil
}

// accountByRequest ignores ServiceAccounts elsewhere than in the cluster namespace: users of other workspaces may write the annotations on
// theirs.
func accountByRequest(a *corev1.ServiceAccount) []string {
	namespace, name := a.Annotations[fleet.ClusterRegistrationNamespaceAnnotation], a.Annotations[fleet.ClusterRegistrationAnnotation]
	if namespace == "" || name == "" || a.Namespace != registration.ClusterNamespace(namespace, a.Annotations[fleet.ClusterAnnotation]) {
		return nil
	}
	return []string{Key(namespace, name)}
}

func accountByNamespace(a *corev1.ServiceAccount) []string { return []string{a.Namespace} }

// Bucketed is an index whose keys each have one object or a few. client-go keeps a Go map for each value of an index, which takes 300
// bytes with one object in it. So the values of this index are 256 buckets of keys, and Find compares the keys of the objects in a bucket.
type Bucketed[T generic.RuntimeMetaObject] struct {
	// Name is the name of the index in the cache.
	Name string
	// Keys returns the keys of an object. It is also called for each object of a bucket when one is looked up.
	Keys func(object T) []string
}

// indexable and indexed are the parts of a cache that the index needs.
type (
	indexable[T generic.RuntimeMetaObject] interface {
		AddIndexer(name string, keys generic.Indexer[T])
	}
	indexed[T generic.RuntimeMetaObject] interface {
		GetByIndex(name, key string) ([]T, error)
	}
)

// AddTo adds the index to a cache.
func (b Bucketed[T]) AddTo(cache indexable[T]) {
	cache.AddIndexer(b.Name, func(object T) (buckets []string, _ error) {
		for _, key := range b.Keys(object) {
			buckets = append(buckets, Bucket(key))
		}
		return buckets, nil
	})
}

// Find returns the objects that have the key.
func (b Bucketed[T]) Find(cache indexed[T], key string) (found []T, err error) {
	all, err := cache.GetByIndex(b.Name, Bucket(key))
	for _, object := range all {
		if slices.Contains(b.Keys(object), key) {
			found = append(found, object)
		}
	}
	return found, err
}

// seed is not known outside of the process, so nobody can choose keys that all have the same bucket.
var seed = maphash.MakeSeed()

// Buckets is the number of values that a Bucketed index has at most. Each takes 300 bytes.
const Buckets = 256

// Bucket returns the value of an index under which an object with the key is found.
func Bucket(key string) string { return strconv.Itoa(int(maphash.String(seed, key) % Buckets)) }
