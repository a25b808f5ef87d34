package orphans

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/leaving"
)

// kind is one kind of objects that can be orphaned.
type kind struct {
	name string
	// made are the objects in the cache that were made for something, and are not being deleted already.
	made func() ([]made, error)
	// one is such an object, by its name.
	one func(name types.NamespacedName) (made, bool)
	// remove deletes one object, as it was seen.
	remove func(object made) error
}

// made is an object that was made for something.
type made struct {
	namespace, name string
	uid             types.UID
	owner           owner
}

func madeBy[T metav1.Object](list []T, ownerOf func(T) owner) []made {
	var all []made
	for _, object := range list {
		if o := ownerOf(object); o != none && object.GetDeletionTimestamp() == nil {
			all = append(all, made{object.GetNamespace(), object.GetName(), object.GetUID(), o})
		}
	}
	return all
}

func (m made) asSeen() metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &m.uid}}
}

func oneBy[T metav1.Object](object T, err error, ownerOf func(T) owner) (made, bool) {
	if err != nil {
		return made{}, false
	}
	all := madeBy([]T{object}, ownerOf)
	if len(all) == 0 {
		return made{}, false
	}
	return all[0], true
}

type lists[T any] interface {
	Get(namespace, name string) (T, error)
	List(namespace string, selector labels.Selector) ([]T, error)
}

type listsAll[T any] interface {
	Get(name string) (T, error)
	List(selector labels.Selector) ([]T, error)
}

type deletes interface {
	Delete(namespace, name string, options *metav1.DeleteOptions) error
}

type deletesAll interface {
	Delete(name string, options *metav1.DeleteOptions) error
}

func namespaced[T metav1.Object](name string, cache lists[T], client deletes, ownerOf func(T) owner) kind {
	return kind{
		name: name,
		made: func() ([]made, error) {
			all, err := cache.List("", labels.Everything())
			return madeBy(all, ownerOf), err
		},
		one: func(key types.NamespacedName) (made, bool) {
			object, err := cache.Get(key.Namespace, key.Name)
			return oneBy(object, err, ownerOf)
		},
		remove: func(m made) error {
			options := m.asSeen()
			return client.Delete(m.namespace, m.name, &options)
		},
	}
}

func clusterWide[T metav1.Object](name string, cache listsAll[T], client deletesAll, ownerOf func(T) owner) kind {
	return kind{
		name: name,
		made: func() ([]made, error) {
			all, err := cache.List(labels.Everything())
			return madeBy(all, ownerOf), err
		},
		one: func(key types.NamespacedName) (made, bool) {
			object, err := cache.Get(key.Name)
			return oneBy(object, err, ownerOf)
		},
		remove: func(m made) error {
			options := m.asSeen()
			return client.Delete(m.name, &options)
		},
	}
}

// Names of kinds, as the metrics have them.
const (
	namespaces = "Namespace"
	bundles    = "Bundle"
)

// kindsOf are in the order in which they are looked at: what gives rights first. BundleDeployments go with their Namespace,
// and Contents with the BundleDeployments. A request or a token has owner references to most of what it was given, and its
// own controller takes back the rest; here it is caught what they all missed.
func kindsOf(c *app.Context) []kind {
	requests, clusterBundles := c.Fleet.ClusterRegistration(), c.Fleet.Bundle()
	ns, accounts, secrets := c.Core.Namespace(), c.Core.ServiceAccount(), c.Core.Secret()
	roles, bindings, clusterBindings := c.RBAC.Role(), c.RBAC.RoleBinding(), c.RBAC.ClusterRoleBinding()
	return []kind{
		namespaced("ServiceAccount", accounts.Cache(), accounts, func(o *corev1.ServiceAccount) owner { return ownerOfRights(o) }),
		clusterWide("ClusterRoleBinding", clusterBindings.Cache(), clusterBindings, func(o *rbacv1.ClusterRoleBinding) owner { return ownerOfRights(o) }),
		namespaced("RoleBinding", bindings.Cache(), bindings, func(o *rbacv1.RoleBinding) owner { return ownerOfRights(o) }),
		namespaced("Role", roles.Cache(), roles, func(o *rbacv1.Role) owner { return ownerOfRights(o) }),
		namespaced("Secret", secrets.Cache(), secrets, ownerOfCredential(c.RegistrationNamespace())),
		namespaced("ClusterRegistration", requests.Cache(), requests, ownerOfRequest),
		namespaced(bundles, clusterBundles.Cache(), clusterBundles, ownerOfBundle),
		clusterWide(namespaces, ns.Cache(), ns, ownerOfNamespace),
	}
}

// look is how an owner is looked for: in the cache, which is free, and on the API server, whose word counts.
type look struct {
	cached, live func(namespace, name string) error
	// needed says whether what was made for an owner that is gone is needed all the same, for a while; nil where it never is.
	needed func(ctx context.Context, namespace, name string) (bool, error)
}

type gets[T any] interface {
	Get(namespace, name string) (T, error)
}

type getsLive[T any] interface {
	Get(namespace, name string, options metav1.GetOptions) (T, error)
}

func looking[T any](cache gets[T], client getsLive[T]) look {
	return look{
		cached: func(namespace, name string) error {
			_, err := cache.Get(namespace, name)
			return err
		},
		live: func(namespace, name string) error {
			_, err := client.Get(namespace, name, metav1.GetOptions{})
			return err
		},
	}
}

func ownersOf(c *app.Context) map[string]look {
	clusters, requests, tokens := c.Fleet.Cluster(), c.Fleet.ClusterRegistration(), c.Fleet.ClusterRegistrationToken()
	ofRequests := looking[*fleet.ClusterRegistration](requests.Cache(), requests)
	ofRequests.needed = leaving.Agents{Kubernetes: c.Kubernetes, Accounts: c.Core.ServiceAccount().Cache(), Clusters: clusters}.Need
	return map[string]look{
		kindCluster: looking[*fleet.Cluster](clusters.Cache(), clusters),
		kindRequest: ofRequests,
		kindToken:   looking[*fleet.ClusterRegistrationToken](tokens.Cache(), tokens),
	}
}
