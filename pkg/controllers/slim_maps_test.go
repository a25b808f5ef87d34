package controllers

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// where tells maps apart that say the same.
func where(m map[string]string) uintptr { return reflect.ValueOf(m).Pointer() }

func TestEqualLabelsOfDifferentObjectsAreOneMap(t *testing.T) {
	var w words
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

func TestMapsOfLongAgoAreForgotten(t *testing.T) {
	var r recentMaps
	entry := func(n int) map[string]string { return map[string]string{"n": fmt.Sprint(n)} }
	used := entry(0)
	r.add(used)
	for n := range 10 * mapsKept {
		if n%1000 == 0 {
			assert.Equal(t, where(used), where(r.like(entry(0))), "it comes again and again")
		}
		if n > 0 {
			r.add(entry(n))
		}
	}
	assert.LessOrEqual(t, len(r.young)+len(r.old), 2*mapsKept)
	assert.Nil(t, r.like(entry(1)))
	last := entry(10*mapsKept - 1)
	assert.Equal(t, last, r.like(last))
}

func TestMapsOfOneSumAreNotTakenForEachOther(t *testing.T) {
	var r recentMaps
	m := map[string]string{"a": "b"}
	r.add(m)
	r.young[r.sum(m)] = map[string]string{"another": "of the same sum"}
	assert.Nil(t, r.like(m))
	// Neither are keys taken for values.
	assert.NotEqual(t, r.sum(map[string]string{"a": "b"}), r.sum(map[string]string{"b": "a"}))
}

func TestConditionsAreKeptWithoutRoomForMore(t *testing.T) {
	var w words
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

func TestOneTransformFollowsAnother(t *testing.T) {
	var w words
	object, err := w.after(func(object any) (any, error) {
		object.(*fleet.Bundle).Name = "first"
		return object, nil
	})(&fleet.Bundle{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{}}}})
	require.NoError(t, err)
	assert.Equal(t, &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, object)
	_, err = w.after(func(any) (any, error) { return nil, assert.AnError })(nil)
	require.ErrorIs(t, err, assert.AnError)
}
