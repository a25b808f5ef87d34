package hub

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// where tells maps apart that say the same.
func where(m map[string]string) uintptr { return reflect.ValueOf(m).Pointer() }

func TestEqualLabelsOfDifferentObjectsAreOneMap(t *testing.T) {
	w := newInterner(clock.RealClock{})
	one, other := someBinding(), someBinding()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"managed": "true"}}}
	odd := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"managed": "false"}}}
	for _, object := range []any{one, other, account, odd} {
		_, err := w.trim(object)
		require.NoError(t, err)
	}
	assert.Equal(t, where(one.Labels), where(other.Labels))
	assert.Equal(t, where(one.Annotations), where(other.Annotations))
	assert.Equal(t, where(one.Labels), where(account.Labels), "of whichever kind")
	assert.NotEqual(t, where(one.Labels), where(odd.Labels))
	assert.Equal(t, map[string]string{"managed": "false"}, odd.Labels)
}

func TestMapsOfOneSumAreNotTakenForEachOther(t *testing.T) {
	w := newInterner(clock.RealClock{})
	m, another := map[string]string{"a": "b"}, map[string]string{"b": "a"}
	assert.NotEqual(t, w.sum(m), w.sum(another), "keys are not taken for values")
	w.maps.add(w.sum(m), another)
	assert.Equal(t, m, w.shared(m))
	assert.Equal(t, m, w.shared(m))
}

func TestConditionsAreKeptWithoutRoomForMore(t *testing.T) {
	w := newInterner(clock.RealClock{})
	conditions := func() []genericcondition.GenericCondition {
		return append(make([]genericcondition.GenericCondition, 0, 8), genericcondition.GenericCondition{
			Type: again("Ready"), Status: corev1.ConditionStatus(again("True")), Reason: again("Ready"), Message: again("all is well"),
			LastUpdateTime: again("2026-01-02T12:00:00Z"), LastTransitionTime: again("2026-01-02T12:00:00Z"),
		})
	}
	cluster, request, bundle, deployment := &fleet.Cluster{}, &fleet.ClusterRegistration{}, &fleet.Bundle{}, &fleet.BundleDeployment{}
	for object, kept := range map[any]*[]genericcondition.GenericCondition{
		cluster: &cluster.Status.Conditions, request: &request.Status.Conditions,
		bundle: &bundle.Status.Conditions, deployment: &deployment.Status.Conditions,
	} {
		*kept = conditions()
		_, err := w.trim(object)
		require.NoError(t, err)
		assert.Equal(t, conditions(), *kept)
		assert.Less(t, cap(*kept), 8)
	}
}

// informed is an informer that nobody starts: the test fills its store.
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

func TestOneTransformFollowsAnother(t *testing.T) {
	w, i := newInterner(clock.RealClock{}), &informed{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
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
}

func TestWhatIsReadAnewIsKeptAsItWas(t *testing.T) {
	account := func(uid, version string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name", UID: types.UID(uid), ResourceVersion: version}}
	}
	w, i := newInterner(clock.RealClock{}), &informed{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	w.transform(i, nil)
	known := account("uid", "1")
	require.NoError(t, i.store.Add(known))
	for _, row := range []struct {
		what     string
		incoming any
		same     bool
	}{
		{"the same version", account("uid", "1"), true},
		{"a later one", account("uid", "2"), false},
		{"another object of the name", account("another", "1"), false},
		{"a deleted one", cache.DeletedFinalStateUnknown{Key: "ns/name", Obj: known}, false},
		{"no object", "text", false},
	} {
		got, err := i.transform(row.incoming)
		require.NoError(t, err, row.what)
		assert.Equal(t, row.incoming, got, row.what)
		assert.Equal(t, row.same, got == any(known), row.what)
	}
}

func TestWhichDeploymentItIsIsKeptOnce(t *testing.T) {
	w := newInterner(clock.RealClock{})
	d := &fleet.BundleDeployment{}
	d.Spec.DeploymentID, d.Spec.StagedDeploymentID, d.Status.AppliedDeploymentID = again("s-1:2"), again("s-1:2"), again("s-1:2")
	_, err := w.trim(d)
	require.NoError(t, err)
	for _, id := range []string{d.Spec.StagedDeploymentID, d.Status.AppliedDeploymentID} {
		assert.Same(t, unsafe.StringData(d.Spec.DeploymentID), unsafe.StringData(id))
	}
}
