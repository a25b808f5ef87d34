//go:build !race

// The race detector needs memory of its own for each object, so its build measures something else.

package hub

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	lassocache "github.com/rancher/lasso/pkg/cache"
	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// builtInObject is an object that is decoded from protobuf, as the API server sends it.
type builtInObject interface {
	metav1.Object
	kruntime.Object
	Marshal() ([]byte, error)
	Unmarshal(data []byte) error
}

// unstarted has caches that are not started: the test fills their stores.
type unstarted struct {
	lassocache.SharedCacheFactory
	informers map[string]*informed
}

func (u unstarted) ForKind(kind schema.GroupVersionKind) (cache.SharedIndexInformer, error) {
	return u.informers[kind.Kind], nil
}

// newBuiltIn returns an empty object of the kind.
func newBuiltIn(kind string) builtInObject {
	return map[string]builtInObject{
		namespaceKind: &corev1.Namespace{}, "ServiceAccount": &corev1.ServiceAccount{}, leaseKind: &coordinationv1.Lease{},
		"Role": &rbacv1.Role{}, "RoleBinding": &rbacv1.RoleBinding{},
	}[kind]
}

// clusterObjects returns the objects of one cluster: those that the hub gives an agent that renews its credential, as the golden file of
// clusterregistration has them, the cluster namespace, and a Lease, by their kinds.
func clusterObjects(t *testing.T, rights string, n int) map[string][]builtInObject {
	t.Helper()
	cluster, request := fmt.Sprintf("cluster-%012d", n), fmt.Sprintf("request-%05d", n)
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: request}}
	owner.SetGroupVersionKind(fleet.SchemeGroupVersion.WithKind("ClusterRegistration"))
	setLabels, setAnnotations, err := apply.GetLabelsAndAnnotations(registration.OwnedSetID("cluster-registration", "fleet-default", request), owner)
	require.NoError(t, err)

	namespace := registration.ClusterNamespace("fleet-default", cluster)
	texts := strings.NewReplacer("request-abc", request, "cluster-fleet-default-member-cc969adb1789", namespace, "member", cluster)
	objects := map[string][]builtInObject{}
	for document := range strings.SplitSeq(texts.Replace(rights), "---\n# ") {
		kind, _, _ := strings.Cut(document, "\n")
		object := newBuiltIn(kind)
		if object == nil { // before the first one
			continue
		}
		require.NoError(t, yaml.Unmarshal([]byte("# "+document), object))
		object.SetLabels(labels.Merge(object.GetLabels(), setLabels))
		object.SetAnnotations(labels.Merge(object.GetAnnotations(), setAnnotations))
		objects[kind] = append(objects[kind], object)
	}
	account := objects["ServiceAccount"][0]
	belongs := map[string]string{fleet.ClusterAnnotation: cluster, fleet.WorkspaceAnnotation: "fleet-default"}
	objects[namespaceKind] = []builtInObject{&corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name: namespace, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue, corev1.LabelMetadataName: namespace},
			Annotations: labels.Merge(belongs, map[string]string{fleet.NamespaceKeyAnnotation: string(uuid.NewUUID())}),
		},
		Spec:   corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}}
	objects[leaseKind] = []builtInObject{&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: account.GetName(), Labels: account.GetLabels(), Annotations: labels.Merge(belongs, setAnnotations),
	}}}
	return objects
}

// The memory of the hub grows with the number of clusters. Most objects of a cluster are of the kinds in this test.
func TestMemoryOfACluster(t *testing.T) {
	const clusters, limit = 1000, 7200
	rights, err := os.ReadFile("../controllers/clusterregistration/testdata/rights-of-one-that-renews.golden.yaml")
	require.NoError(t, err)
	encoded := map[string][][]byte{}
	for n := range clusters {
		for kind, objects := range clusterObjects(t, string(rights), n) {
			for i, object := range objects {
				object.SetUID(uuid.NewUUID())
				object.SetResourceVersion(fmt.Sprint(10*n + i))
				object.SetCreationTimestamp(metav1.NewTime(time.Now()))
				data, err := object.Marshal()
				require.NoError(t, err)
				encoded[kind] = append(encoded[kind], data)
			}
		}
	}

	c := &caches{interner: newInterner(), transforms: managedTransforms("registrations")}
	caches := unstarted{informers: map[string]*informed{}}
	for _, kind := range managedOnly {
		informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, nil, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		caches.informers[kind.Kind] = &informed{SharedIndexInformer: informer, store: informer.GetStore()}
	}
	require.NoError(t, c.transform(caches, managedOnly))
	first := heap.InUse()
	for kind, all := range encoded {
		before, informer := heap.InUse(), caches.informers[kind]
		for _, data := range all {
			object := newBuiltIn(kind)
			require.NoError(t, object.Unmarshal(data))
			kept, err := informer.transform(object)
			require.NoError(t, err)
			require.NoError(t, informer.store.Add(kept))
		}
		t.Logf("%s: %d objects, %d bytes with the interner's entries", kind, len(all)/clusters, (heap.InUse()-before)/clusters)
	}
	c.interner = nil // its entries expire
	for _, i := range caches.informers {
		i.transform = nil
	}
	each := (heap.InUse() - first) / clusters
	t.Logf("all: %d bytes", each)
	assert.Less(t, each, limit, "bytes for the objects of each cluster")
	for kind, all := range encoded {
		assert.Len(t, caches.informers[kind].store.List(), len(all))
	}
}

// A tenant writes as many objects as he wants, and each takes as much memory as one object may. The garbage collector of the hub lets the heap grow
// by 35 %, so what is kept must be a quarter below the 50 MiB of resident memory that one workspace may take, with the plans of its Bundles.
func TestMemoryOfAHostileWorkspace(t *testing.T) {
	sample.Long(t)
	const objects, limit, plans = 30, 37 << 20, 16 << 20
	emptyObjects := func(count int) string { return "[" + strings.Repeat("{},", count) + "{}]" }
	c, caches, add := filled(t)
	before := heap.InUse()
	for _, row := range []struct{ kind, spec string }{
		{clusterKind, `{"templateValues":{"a":` + emptyObjects(10_000) + `},"agentEnvVars":[{"name":"A","value":"` + strings.Repeat("x", 64_000) + `"}]}`},
		{bundleKind, `{"targets":[{"clusterSelector":{}}],"helm":{"values":{"a":` + emptyObjects(60_000) + `,"b":"RANDOM"}}}`},
		{bundleKind, `{"targets":[{"clusterSelector":{}}],"helm":{"values":{"a":[` + strings.Repeat("1.0,", 20_000) + `"RANDOM"]}}}`},
		{clusterGroupKind, `{"selector":{"matchExpressions":[{"key":"a","operator":"In","values":["` + strings.Repeat("x", 1_000_000) + `"]}]}}`},
		{"ClusterRegistration", `{"clientID":"c"}`},
		{"ClusterRegistrationToken", `{"clientIDs":["` + strings.Repeat("x", 1_000_000) + `"]}`},
	} {
		for n := range objects {
			spec := strings.Replace(row.spec, "RANDOM", noise(100_000), 1) // equal values of several Bundles are in memory once
			add(row.kind, fmt.Sprintf(`{"metadata":{"namespace":"hostile","name":"x-%d","uid":"%s-%d","annotations":{"a":"%s"}},"spec":%s}`,
				n, row.kind, n, strings.Repeat("x", 250_000), spec))
		}
		t.Logf("with %d of kind %s: %d MiB", objects, row.kind, (heap.InUse()-before)>>20)
		assert.Len(t, caches.informers[row.kind].store.List(), objects)
	}
	kept := heap.InUse() - before
	t.Logf("all: %d MiB, and up to %d MiB for the plans", kept>>20, plans>>20)
	assert.Less(t, kept, limit-plans, "bytes that a hostile workspace takes in the caches")
	assert.Greater(t, kept, config.DefaultWorkspaceMemoryMiB<<19, "the limit is used")
	runtime.KeepAlive(c)
	runtime.KeepAlive(caches)
}

// usualValues are Helm values of 30 KiB, of which 22 KiB are text that hardly becomes smaller when it is compressed if hasCertificates.
func usualValues(bundle int, hasCertificates bool) string {
	var all strings.Builder
	if hasCertificates {
		fmt.Fprintf(&all, `"ca":%q,`, noise(22<<10*3/4))
	}
	fmt.Fprintf(&all, `"name":"bundle-%d"`, bundle)
	for n := 0; all.Len() < 30<<10; n++ {
		fmt.Fprintf(&all, `,"service-%d":{"enabled":true,"image":{"repository":"registry.example.com/team/service-%d","tag":"v1.%d.%d"},"replicas":%d,
			"resources":{"requests":{"cpu":"%dm","memory":"%dMi"},"limits":{"memory":"%dMi"}},"env":[{"name":"LEVEL","value":"info"}],"tolerations":[]}`,
			n, n, n%7, bundle*31%97, n%5, 50+n*13%400, 64+n*37%900, 128+n*53%2000)
	}
	return all.String()
}

// Helm values take five times their JSON when they are decoded.
func TestMemoryOfHelmValuesInCaches(t *testing.T) {
	const bundles, limit = 200, 9 << 10
	c, caches, add := filled(t)
	before := heap.InUse()
	for n := range bundles {
		add(bundleKind, fmt.Sprintf(`{"metadata":{"namespace":"large","name":"b-%d","uid":"%d"},"spec":{"targets":[{"clusterSelector":{}}],"helm":{"values":{%s}}}}`,
			n, n, usualValues(n, false)))
	}
	c.interner.forget()
	each := (heap.InUse() - before) / bundles
	t.Logf("%d bytes", each)
	assert.Less(t, each, limit, "bytes for each Bundle")
	runtime.KeepAlive(c)
	runtime.KeepAlive(caches)
}

// A large workspace that is not hostile keeps everything, with the default limit.
func TestMemoryOfALargeWorkspace(t *testing.T) {
	sample.Long(t)
	const bundles = 1000
	for name, row := range map[string]struct {
		hasCertificates bool
		annotation      int // bytes that kubectl apply writes
	}{
		"usual values":                      {},
		"values that hardly become smaller": {hasCertificates: true},
		"written by kubectl apply":          {annotation: 40_000},
	} {
		t.Run(name, func(t *testing.T) {
			c, caches, add := filled(t)
			for n := range bundles {
				add(bundleKind, fmt.Sprintf(`{"metadata":{"namespace":"large","name":"b-%d","uid":"%d","annotations":{"kubectl.kubernetes.io/last-applied-configuration":%q}},
					"spec":{"targets":[{"clusterSelector":{}}],"helm":{"values":{%s}}}}`, n, n, strings.Repeat("x", row.annotation), usualValues(n, row.hasCertificates)))
			}
			require.Len(t, caches.informers[bundleKind].store.List(), bundles)
			for _, object := range caches.informers[bundleKind].store.List() {
				require.False(t, object.(*fleet.Bundle).Spec.TooLarge)
			}
			if w := c.large.workspaces["large"]; w != nil {
				t.Logf("%d KiB count", w.total>>10)
			}
		})
	}
}
