package hub

import (
	"context"
	"fmt"
	"hash/maphash"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	clusternet "github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// own is a string with memory of its own, as in an object that was decoded.
func own(s string) string { return strings.Clone(s) }

func someBinding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: own("cluster-a"), Name: own("binding"),
			Labels: map[string]string{own("managed"): own("true")}, Annotations: map[string]string{own("of"): own("somebody")},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: own("v1"), Kind: own("Owner"), Name: own("somebody"), UID: "uid"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		RoleRef: rbacv1.RoleRef{APIGroup: own("rbac"), Kind: own("Role"), Name: own("reader")},
	}
}

func address(m any) uintptr { return reflect.ValueOf(m).Pointer() }

func someRole() *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: own("cluster-a"), Name: own("reader")}}
}

func TestIntern(t *testing.T) {
	t.Run("objects stay equal but for managedFields", func(t *testing.T) {
		w := newInterner()
		want := someBinding()
		want.ManagedFields = nil
		assert.Equal(t, want, w.intern(nil, someBinding()))
		assert.Equal(t, someRole(), w.intern(nil, someRole()))
		assert.Equal(t, &rbacv1.ClusterRoleBinding{RoleRef: want.RoleRef}, w.intern(nil, &rbacv1.ClusterRoleBinding{RoleRef: someBinding().RoleRef}))
		assert.Equal(t, "no object", w.intern(nil, "no object"))
	})
	t.Run("no object keeps generateName, whose length the API server does not limit in an update", func(t *testing.T) {
		generated := metav1.ObjectMeta{GenerateName: "x"}
		for _, object := range []metav1.Object{
			&coordinationv1.Lease{ObjectMeta: generated}, &rbacv1.Role{ObjectMeta: generated}, &fleet.Cluster{ObjectMeta: generated},
			&fleet.ClusterRegistrationToken{ObjectMeta: generated}, &clusternet.ManagedCluster{ObjectMeta: generated},
			&clusternet.ClusterRegistrationRequest{ObjectMeta: generated},
		} {
			assert.Empty(t, newInterner().intern(nil, object).(metav1.Object).GetGenerateName(), "%T", object)
		}
	})
	t.Run("equal strings and maps are in memory once", func(t *testing.T) {
		w := newInterner()
		one, other, role := someBinding(), someBinding(), someRole()
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"managed": "true"}}}
		odd := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"managed": "false"}}}
		d := &fleet.BundleDeployment{}
		d.Spec.DeploymentID, d.Spec.StagedDeploymentID, d.Status.AppliedDeploymentID = own("s-1:2"), own("s-1:2"), own("s-1:2")
		for _, object := range []any{one, other, role, account, odd, d} {
			w.intern(nil, object)
		}
		for _, same := range [][]string{
			{one.Namespace, other.Namespace, role.Namespace},
			{one.Annotations["of"], other.Annotations["of"], one.OwnerReferences[0].Name},
			{one.RoleRef.Kind, other.RoleRef.Kind},
			{one.Name, other.Name},
			{d.Spec.DeploymentID, d.Spec.StagedDeploymentID, d.Status.AppliedDeploymentID},
		} {
			for _, s := range same[1:] {
				assert.Same(t, unsafe.StringData(same[0]), unsafe.StringData(s), same[0])
			}
		}
		assert.Equal(t, address(one.Labels), address(other.Labels))
		assert.Equal(t, address(one.Annotations), address(other.Annotations))
		assert.Equal(t, address(one.Labels), address(account.Labels), "of another kind")
		assert.NotEqual(t, address(one.Labels), address(odd.Labels))
		assert.Equal(t, map[string]string{"managed": "false"}, odd.Labels)
	})
	t.Run("different maps of one sum", func(t *testing.T) {
		w := newInterner()
		m, another := map[string]string{"a": "b"}, map[string]string{"b": "a"}
		assert.NotEqual(t, w.sum(m), w.sum(another))
		w.maps[w.sum(m)] = another
		assert.Equal(t, m, w.stringMap(nil, m))
		assert.Equal(t, m, w.stringMap(nil, m))
	})
	t.Run("conditions have no spare capacity", func(t *testing.T) {
		w := newInterner()
		conditions := func() []genericcondition.GenericCondition {
			return append(make([]genericcondition.GenericCondition, 0, 8), genericcondition.GenericCondition{
				Type: own("Ready"), Status: corev1.ConditionStatus(own("True")), Reason: own("Ready"), Message: own("all is well"),
				LastUpdateTime: own("2026-01-02T12:00:00Z"), LastTransitionTime: own("2026-01-02T12:00:00Z"),
			})
		}
		cluster, request, bundle, deployment := &fleet.Cluster{}, &fleet.ClusterRegistration{}, &fleet.Bundle{}, &fleet.BundleDeployment{}
		for object, kept := range map[any]*[]genericcondition.GenericCondition{
			cluster: &cluster.Status.Conditions, request: &request.Status.Conditions,
			bundle: &bundle.Status.Conditions, deployment: &deployment.Status.Conditions,
		} {
			*kept = conditions()
			w.intern(nil, object)
			assert.Equal(t, conditions(), *kept)
			assert.Less(t, cap(*kept), 8)
		}
	})
}

// informed is an informer that is not started: the test fills its store.
type informed struct {
	cache.SharedIndexInformer
	store     cache.Store
	transform cache.TransformFunc
}

func (i *informed) GetStore() cache.Store { return i.store }

func (i *informed) SetTransform(t cache.TransformFunc) error {
	i.transform = t
	return nil
}

func TestInternResources(t *testing.T) {
	w := newInterner()
	bundle := func() *fleet.Bundle {
		return &fleet.Bundle{Spec: fleet.BundleSpec{Resources: []fleet.BundleResource{{Content: own("kind: Deployment")}}}}
	}
	one, other := bundle(), bundle()
	w.intern(nil, one)
	w.intern(nil, other)
	assert.Equal(t, bundle(), one)
	assert.Same(t, unsafe.StringData(one.Spec.Resources[0].Content), unsafe.StringData(other.Spec.Resources[0].Content))
}

func TestInternResourceLists(t *testing.T) {
	clusterWith := func(cpu string) *fleet.Cluster {
		list := func() corev1.ResourceList {
			return corev1.ResourceList{"cpu": resource.MustParse(cpu), "pods": resource.MustParse("330")}
		}
		return &fleet.Cluster{Status: fleet.ClusterStatus{Agent: fleet.AgentStatus{Capacity: list(), Allocatable: list()}}}
	}
	w, one, other, larger := newInterner(), clusterWith("8"), clusterWith("8"), clusterWith("16")
	for _, cluster := range []*fleet.Cluster{one, other, larger, {}} {
		w.intern(nil, cluster)
	}
	assert.Equal(t, address(one.Status.Agent.Capacity), address(other.Status.Agent.Allocatable))
	assert.Equal(t, clusterWith("16"), larger)
}

func TestInternReports(t *testing.T) {
	cluster := func() *fleet.Cluster {
		c := &fleet.Cluster{Status: fleet.ClusterStatus{Namespace: own("cluster-ns")}}
		eachText(reflect.ValueOf(&c.Status.Agent).Elem(), "", func(path string, text reflect.Value) { text.SetString(own("the " + path)) })
		return c
	}
	w, one, other := newInterner(), cluster(), cluster()
	w.intern(nil, one)
	w.intern(nil, other)
	assert.Equal(t, cluster(), other)
	assert.Same(t, unsafe.StringData(one.Status.Namespace), unsafe.StringData(other.Status.Namespace))

	first := map[string]string{}
	eachText(reflect.ValueOf(&one.Status.Agent).Elem(), "", func(path string, text reflect.Value) { first[path] = text.String() })
	var different []string
	eachText(reflect.ValueOf(&other.Status.Agent).Elem(), "", func(path string, text reflect.Value) {
		if unsafe.StringData(first[path]) != unsafe.StringData(text.String()) {
			different = append(different, path)
		}
	})
	assert.ElementsMatch(t, []string{
		".Instance", ".PossessionProof", // of one agent
		".APIServer.Message", ".DeploymentsStalled", ".KeptReleases.Names", // few agents report them
	}, different)
}

// eachText calls do with each string of a struct and of the structs to which it points. It creates those that are missing.
func eachText(of reflect.Value, path string, do func(path string, text reflect.Value)) {
	for i := range of.NumField() {
		field, name := of.Field(i), path+"."+of.Type().Field(i).Name
		switch {
		case field.Kind() == reflect.String:
			do(name, field)
		case field.Kind() == reflect.Pointer && field.Type().Elem().Kind() == reflect.Struct && field.Type().Elem().PkgPath() == reflect.TypeFor[fleet.AgentStatus]().PkgPath():
			if field.IsNil() {
				field.Set(reflect.New(field.Type().Elem()))
			}
			eachText(field.Elem(), name, do)
		}
	}
}

func TestInternStructs(t *testing.T) {
	bundle := func(chart string) *fleet.Bundle {
		b := &fleet.Bundle{}
		b.Spec.Helm = &fleet.HelmOptions{TakeOwnership: true, Chart: chart}
		b.Spec.Targets = []fleet.BundleTarget{{ClusterName: own("member"), ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"chart": chart}}}}
		return b
	}
	w, agent, second, other, again := newInterner(), bundle(""), bundle(""), bundle("app"), bundle("")
	for _, object := range []any{agent, second, other, again, &fleet.Bundle{}} {
		w.intern(nil, object)
	}
	assert.Same(t, agent.Spec.Helm, second.Spec.Helm)
	assert.Same(t, agent.Spec.Targets[0].ClusterSelector, second.Spec.Targets[0].ClusterSelector)
	assert.Same(t, unsafe.StringData(agent.Spec.Targets[0].ClusterName), unsafe.StringData(second.Spec.Targets[0].ClusterName))
	assert.Equal(t, bundle("app"), other)
	assert.Equal(t, bundle(""), again)

	request := &fleet.ClusterRegistration{Spec: fleet.ClusterRegistrationSpec{ClientID: own("id")}}
	clusters := make([]*fleet.Cluster, 3)
	for i, address := range []string{"one", "one", "two"} {
		clusters[i] = &fleet.Cluster{Spec: fleet.ClusterSpec{ClientID: own("id")}}
		clusters[i].Status.Agent.Hub = &fleet.AgentHub{APIServerURL: own(address)}
		w.intern(nil, clusters[i])
	}
	w.intern(nil, request)
	assert.Same(t, clusters[0].Status.Agent.Hub, clusters[1].Status.Agent.Hub)
	assert.Equal(t, "two", clusters[2].Status.Agent.Hub.APIServerURL)
	assert.Same(t, unsafe.StringData(clusters[0].Spec.ClientID), unsafe.StringData(request.Spec.ClientID))
}

// Two strings with the same hash are both kept.
func TestInternCollision(t *testing.T) {
	w := newInterner()
	w.strings[maphash.String(w.seed, "one")] = "other"
	assert.Equal(t, "one", w.string("one"))
}

func TestForget(t *testing.T) {
	w := newInterner()
	w.intern(nil, someRole())
	w.stringMap(nil, map[string]string{"key": "value"})
	w.resourceList(corev1.ResourceList{"pods": resource.MustParse("330")})
	lastIfEqual(&w.helm, &fleet.HelmOptions{})
	lastIfEqual(&w.selector, &metav1.LabelSelector{})
	lastIfEqual(&w.hub, &fleet.AgentHub{})
	w.specDigests(&fleet.SpecDigests{})
	assert.Positive(t, w.size)
	w.forget()
	assert.Equal(t, newInterner().internedValues, w.internedValues)
	assert.Equal(t, someRole(), w.intern(nil, someRole()))
}

// An agent renews its Lease for months, and the entries of the interner live for a minute.
func TestInternLaterVersions(t *testing.T) {
	w := newInterner()
	earlier, role := someBinding(), someBinding()
	w.intern(nil, earlier)
	w.intern(nil, role)
	w.forget()
	renewed, relabelled := someBinding(), someBinding()
	relabelled.Labels["managed"] = "false"
	w.intern(earlier, renewed)
	assert.Equal(t, address(role.Labels), address(renewed.Labels))
	assert.Equal(t, address(role.Annotations), address(renewed.Annotations))
	assert.Same(t, unsafe.StringData(role.Name), unsafe.StringData(renewed.Name))
	w.intern(earlier, relabelled)
	assert.Equal(t, "false", relabelled.Labels["managed"])
}

func TestTransform(t *testing.T) {
	w, i := newInterner(), &informed{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	w.transform(i, func(object any) (any, error) {
		object.(*fleet.Bundle).Name = "first"
		return object, nil
	})
	object, err := i.transform(&fleet.Bundle{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{}}}})
	require.NoError(t, err)
	assert.Equal(t, &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, object)
	w.transform(i, func(any) (any, error) { return nil, assert.AnError })
	_, err = i.transform(&fleet.Bundle{})
	require.ErrorIs(t, err, assert.AnError)

	account := func(uid, version string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name", UID: types.UID(uid), ResourceVersion: version}}
	}
	w.transform(i, nil)
	cached := account("uid", "1")
	require.NoError(t, i.store.Add(cached))
	for name, row := range map[string]struct {
		received any
		same     bool
	}{
		"the cached version: the cached object": {account("uid", "1"), true},
		"a later version":                       {account("uid", "2"), false},
		"another object of the name":            {account("another", "1"), false},
		"a deleted object":                      {cache.DeletedFinalStateUnknown{Key: "ns/name", Obj: cached}, false},
		"no object":                             {"text", false},
	} {
		got, err := i.transform(row.received)
		require.NoError(t, err, name)
		assert.Equal(t, row.received, got, name)
		assert.Equal(t, row.same, got == any(cached), name)
	}
}

// Most events of BundleDeployments are reports of agents, for which no digest is computed.
func TestTransform_digests(t *testing.T) {
	w, i := newInterner(), &informed{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	w.transform(i, withoutOptions)
	received := func(uid, version string, generation int64, namespace string) *fleet.BundleDeployment {
		object, err := i.transform(&fleet.BundleDeployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name", UID: types.UID(uid), ResourceVersion: version, Generation: generation},
			Spec:       fleet.BundleDeploymentSpec{Options: fleet.BundleDeploymentOptions{TargetNamespace: namespace}},
		})
		require.NoError(t, err)
		deployment := object.(*fleet.BundleDeployment)
		assert.Empty(t, deployment.Spec.Options.TargetNamespace)
		return deployment
	}
	cached := received("uid", "1", 1, "one")
	require.NoError(t, i.store.Add(cached))
	assert.Same(t, cached.Spec.CachedDigests, received("uid", "2", 1, "not read").Spec.CachedDigests)
	assert.NotEqual(t, cached.Spec.CachedDigests, received("uid", "3", 2, "two").Spec.CachedDigests, "another generation")
	assert.NotEqual(t, cached.Spec.CachedDigests, received("another", "4", 1, "two").Spec.CachedDigests, "another object")
}

// The plan of a Bundle keeps parts of the spec from which it was made.
func TestTransform_bundleSpec(t *testing.T) {
	w, i := newInterner(), &informed{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	w.transform(i, withoutResources)
	received := func(uid, version string, generation int64) *fleet.Bundle {
		object, err := i.transform(&fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name", UID: types.UID(uid), ResourceVersion: version, Generation: generation},
			Spec:       fleet.BundleSpec{Targets: []fleet.BundleTarget{{ClusterName: "of " + version}}},
		})
		require.NoError(t, err)
		return object.(*fleet.Bundle)
	}
	cached := received("uid", "1", 1)
	require.NoError(t, i.store.Add(cached))
	assert.Same(t, &cached.Spec.Targets[0], &received("uid", "2", 1).Spec.Targets[0])
	assert.Equal(t, "of 1", cached.Spec.Targets[0].ClusterName)
	assert.Equal(t, "of 3", received("uid", "3", 2).Spec.Targets[0].ClusterName, "another generation")
	assert.Equal(t, "of 4", received("another", "4", 1).Spec.Targets[0].ClusterName, "another object")
	cached.Spec = fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true}
	assert.Equal(t, "of 5", received("uid", "5", 1).Spec.Targets[0].ClusterName, "the cache has dropped the spec")
}

// Most events of Bundles and Clusters change only the status.
func TestTransform_packedValues(t *testing.T) {
	values := func(of string) *fleet.GenericMap {
		return &fleet.GenericMap{Data: map[string]any{"of": of, "lines": strings.Repeat("line\n", 1000)}}
	}
	meta := func(uid, version string, generation int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: "name", UID: types.UID(uid), ResourceVersion: version, Generation: generation}
	}
	for name, row := range map[string]struct {
		received func(uid, version string, generation int64) any
		values   func(object any) []*fleet.GenericMap
	}{
		"Cluster": {
			func(uid, version string, generation int64) any {
				return &fleet.Cluster{ObjectMeta: meta(uid, version, generation), Spec: fleet.ClusterSpec{TemplateValues: values(version)}}
			},
			func(object any) []*fleet.GenericMap {
				return []*fleet.GenericMap{object.(*fleet.Cluster).Spec.TemplateValues}
			},
		},
		"Bundle": {
			func(uid, version string, generation int64) any {
				b := &fleet.Bundle{ObjectMeta: meta(uid, version, generation), Spec: fleet.BundleSpec{Targets: make([]fleet.BundleTarget, 2)}}
				b.Spec.Helm = &fleet.HelmOptions{Values: values(version)}
				b.Spec.Targets[1].Helm = &fleet.HelmOptions{Values: values(version + " in a target")}
				return b
			},
			func(object any) []*fleet.GenericMap {
				b := object.(*fleet.Bundle)
				return []*fleet.GenericMap{b.Spec.Helm.Values, b.Spec.Targets[1].Helm.Values}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, i := newInterner(), &informed{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
			packed := 0
			w.transform(i, newLargeObjects().transform(func(object any) (any, error) {
				packed = 0
				for _, v := range row.values(object) {
					if v.PackedSize() > 0 {
						packed++
					}
				}
				return object, nil
			}))
			received := func(uid, version string, generation int64) []*fleet.GenericMap {
				object, err := i.transform(row.received(uid, version, generation))
				require.NoError(t, err)
				if version == "1" {
					require.NoError(t, i.store.Add(object))
				}
				return row.values(object)
			}
			cached := received("uid", "1", 1)
			require.Zero(t, packed)
			for n, v := range received("uid", "2", 1) {
				assert.Same(t, cached[n], v)
				assert.Contains(t, v.Map()["of"], "1")
			}
			assert.Equal(t, len(cached), packed, "before the limits apply")
			for _, v := range append(received("uid", "3", 2), received("another", "3", 1)...) {
				assert.Contains(t, v.Map()["of"], "3", "another generation, or another object")
				assert.Positive(t, v.PackedSize())
			}
			assert.Zero(t, packed)
		})
	}
}

func TestInternSize(t *testing.T) {
	sample.Long(t)
	text := strings.Repeat("x", internSize/8)
	for name, add := range map[string]func(w *interner, s string){
		"strings": func(w *interner, s string) { w.string(s) },
		"maps":    func(w *interner, s string) { w.stringMap(nil, map[string]string{"key": s}) },
	} {
		w := newInterner()
		for n := range 32 {
			add(w, fmt.Sprint(n, text))
			assert.LessOrEqual(t, w.size, internSize+2*internSize/8, name)
			assert.LessOrEqual(t, len(w.strings), 10, name)
		}
	}
	w := newInterner()
	for n := range internSize / internOverhead {
		w.string(fmt.Sprint(n))
	}
	assert.Less(t, len(w.strings), internSize/internOverhead, "short strings count, too")
}

// Without a recovery, a panic of a transform would end the process, or keep all objects out of the cache.
func TestTransform_panic(t *testing.T) {
	source := fcache.NewFakeControllerSource()
	t.Cleanup(source.Shutdown)
	informer := cache.NewSharedIndexInformer(source, &corev1.Secret{}, 0, cache.Indexers{})
	newInterner().transform(informer, func(object any) (any, error) {
		if object.(*corev1.Secret).Name == "bad" {
			panic("no map")
		}
		return object, nil
	})
	for _, name := range []string{"bad", "good"} {
		source.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
	}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer stop()
	require.True(t, cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced))
	assert.ElementsMatch(t, []string{"ns/bad", "ns/good"}, informer.GetStore().ListKeys())
}
