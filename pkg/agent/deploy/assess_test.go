package deploy

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/release"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	require.NoError(t, err)
	o := &unstructured.Unstructured{}
	require.NoError(t, o.UnmarshalJSON(data))
	return o
}

func configMapObject(t *testing.T, name string) release.Object {
	t.Helper()
	return release.Object{
		Desired:  object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: ns, name: "+name+"}}"),
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
	}
}

// ready is a view of a release of n objects with which all is well.
func ready(t *testing.T, n int) view {
	t.Helper()
	v := view{
		spec:    fleet.BundleDeploymentSpec{DeploymentID: "id", StagedDeploymentID: "id"},
		current: true, installed: true, deployed: &release.Deployed{Namespace: "ns", Name: "app", Version: 3},
		live: func(o release.Object) *unstructured.Unstructured { return o.Desired }, drift: drift{verdicts: map[string]verdict{}},
	}
	for i := range n {
		v.deployed.Objects = append(v.deployed.Objects, configMapObject(t, fmt.Sprint("c", i)))
	}
	return v
}

func (v view) differs(i int, d release.Difference) view {
	v.drift.verdicts[identify(v.deployed.Objects[i])] = verdict{Difference: d}
	return v
}

func TestTheStateIsThatOfTheObjects(t *testing.T) {
	for name, row := range map[string]struct {
		view    view
		state   fleet.BundleState
		message string // of condition Ready
	}{
		"all is well":           {ready(t, 2), fleet.Ready, ""},
		"nothing in it":         {ready(t, 0), fleet.Ready, ""},
		"one is missing":        {ready(t, 2).differs(1, release.Difference{Missing: true}), fleet.Modified, "ConfigMap ns/c1 missing"},
		"one is modified":       {ready(t, 2).differs(0, release.Difference{Patch: "{}"}), fleet.Modified, "ConfigMap ns/c0 modified {}"},
		"one was not seen yet":  {unseen(ready(t, 1)), fleet.NotReady, "ConfigMap ns/c0 in-progress"},
		"not deployed yet":      {view{spec: ready(t, 0).spec}, fleet.WaitApplied, "WaitApplied"},
		"paused":                {view{spec: ready(t, 0).spec, paused: true}, fleet.WaitApplied, "paused"},
		"paused at first":       {view{spec: fleet.BundleDeploymentSpec{StagedDeploymentID: "id"}, paused: true}, fleet.OutOfSync, "paused"},
		"waits":                 {view{spec: ready(t, 0).spec, waitsFor: "for base"}, fleet.WaitApplied, "for base"},
		"failed":                {view{spec: ready(t, 0).spec, failure: errors.New("no")}, fleet.ErrApplied, "no"},
		"an older one is there": {outdated(ready(t, 1)), fleet.ErrApplied, "no"},
		"a newer one is staged": {staged(ready(t, 1)), fleet.OutOfSync, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := assess(row.view)
			assert.Equal(t, string(row.state), s.Display.State)
			assert.Equal(t, row.message, fleetstatus.Condition(s.Conditions, fleet.ConditionReady).Message)
			assert.Equal(t, row.message == "", fleetstatus.Condition(s.Conditions, fleet.ConditionReady).Status == "True")
		})
	}
}

func unseen(v view) view {
	v.live = func(release.Object) *unstructured.Unstructured { return nil }
	return v
}

func outdated(v view) view {
	v.current, v.failure = false, errors.New("no")
	return v
}

func staged(v view) view {
	v.spec.StagedDeploymentID = "newer"
	return v
}

func TestTheListsOfAStatusAreBounded(t *testing.T) {
	v := ready(t, 600)
	for i := range 20 {
		v = v.differs(i, release.Difference{Missing: true})
	}
	s := assess(v)
	assert.Len(t, s.ModifiedStatus, 10)
	assert.Len(t, s.Resources, 500)
	assert.True(t, s.IncompleteState)
	assert.Equal(t, fleet.ResourceCounts{DesiredReady: 600, Ready: 580, Missing: 20}, s.ResourceCounts)
	assert.False(t, assess(ready(t, 3)).IncompleteState)
}

func TestWhatIsNoLongerThereIsNoLongerApplied(t *testing.T) {
	v := view{spec: ready(t, 0).spec, base: assess(ready(t, 1))}
	require.Equal(t, "id", v.base.AppliedDeploymentID)
	s := assess(v)
	assert.Empty(t, s.AppliedDeploymentID)
	assert.Empty(t, s.Resources)
}

func TestTheRecordOfAnEarlierAgentStaysUntilThereIsAReleaseOfOurs(t *testing.T) {
	v := ready(t, 1)
	v.base.Release = "apps/shop:4"
	assert.Equal(t, v.deployed.String(), assess(v).Release)
	v.deployed = nil
	assert.Equal(t, "apps/shop:4", assess(v).Release)
}

func TestTheSameViewWritesNothing(t *testing.T) {
	v := ready(t, 2)
	v.now = time.Unix(1, 0)
	before := assess(v)
	v.base, v.now = before, time.Unix(99, 0)
	patch, err := fleetstatus.MergePatch(before, assess(v))
	require.NoError(t, err)
	assert.Nil(t, patch, "%s", patch)
}

func TestConditionsOfOthersStay(t *testing.T) {
	v := ready(t, 1)
	v.base.Conditions = []genericcondition.GenericCondition{{Type: "Theirs", Status: "True"}}
	assert.Equal(t, "Theirs", assess(v).Conditions[0].Type)
}

func TestWhetherAnObjectIsReady(t *testing.T) {
	for name, row := range map[string]struct {
		object  string
		ignored []map[string]string
		ready   bool
	}{
		"a ConfigMap":                    {"{apiVersion: v1, kind: ConfigMap}", nil, true},
		"a Deployment nobody looked at":  {"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}}", nil, false},
		"a Deployment that is there":     {"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}, status: {observedGeneration: 1, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Available, status: 'True'}]}}", nil, true},
		"a Deployment that was changed":  {"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, status: {observedGeneration: 1}}", nil, false},
		"an unavailable Deployment":      {"{apiVersion: apps/v1, kind: Deployment, status: {conditions: [{type: Available, status: 'False'}]}}", nil, false},
		"a StatefulSet without its pods": {"{apiVersion: apps/v1, kind: StatefulSet, spec: {replicas: 2}, status: {readyReplicas: 1}}", nil, false},
		"a StatefulSet":                  {"{apiVersion: apps/v1, kind: StatefulSet, spec: {replicas: 2}, status: {replicas: 2, readyReplicas: 2, currentReplicas: 2, updatedReplicas: 2}}", nil, true},
		"a DaemonSet without its pods":   {"{apiVersion: apps/v1, kind: DaemonSet, status: {desiredNumberScheduled: 2, numberReady: 1}}", nil, false},
		"a custom one of its own ways":   {"{apiVersion: example.com/v1, kind: Thing, metadata: {generation: 3}}", nil, true},
		"a custom one that is behind":    {"{apiVersion: example.com/v1, kind: Thing, metadata: {generation: 3}, status: {observedGeneration: 2}}", nil, false},
		"what fails":                     {"{apiVersion: example.com/v1, kind: Thing, status: {conditions: [{type: X, status: 'True', reason: Error}]}}", nil, false},
		"what fails and may": {
			"{apiVersion: example.com/v1, kind: Thing, status: {conditions: [{type: X, status: 'True', reason: Error}]}}",
			[]map[string]string{{"type": "X"}},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := summarize(object(t, row.object), &fleet.IgnoreOptions{Conditions: row.ignored})
			assert.Equal(t, row.ready, got.IsReady(), "%+v", got)
		})
	}
}

func TestOnlyWhatCanBeDriftIsComparedAgain(t *testing.T) {
	deployment := "{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1, resourceVersion: '1', labels: {a: b}}}"
	before := fingerprint(object(t, deployment), nil)
	status := object(t, deployment)
	status.SetResourceVersion("2")
	status.SetAnnotations(map[string]string{"deployment.kubernetes.io/revision": "2"})
	assert.Equal(t, before, fingerprint(status, nil), "its status changes all the time")
	for _, change := range []func(*unstructured.Unstructured){
		func(o *unstructured.Unstructured) { o.SetGeneration(2) },
		func(o *unstructured.Unstructured) { o.SetLabels(nil) },
		func(o *unstructured.Unstructured) { o.SetAnnotations(map[string]string{"x": "y"}) },
		func(o *unstructured.Unstructured) { o.SetUID("another") },
	} {
		changed := object(t, deployment)
		change(changed)
		assert.NotEqual(t, before, fingerprint(changed, nil))
	}
	assert.NotEqual(t, before, fingerprint(object(t, deployment), []fleet.ComparePatch{{Kind: "x"}}))
	assert.NotEqual(t, before, fingerprint(nil, nil))
}

func TestWhatABundleWaitsFor(t *testing.T) {
	other := func(name string, s fleet.BundleDeploymentStatus) *fleet.BundleDeployment {
		return &fleet.BundleDeployment{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{fleet.BundleNameLabel: name, "tier": name}}, Spec: ready(t, 0).spec, Status: s,
		}
	}
	good, bad := assess(ready(t, 1)), assess(ready(t, 1).differs(0, release.Difference{Missing: true}))
	paused, unstaged := other("base", fleet.BundleDeploymentStatus{}), other("base", good)
	paused.Spec.DeploymentID, unstaged.Spec.StagedDeploymentID = "", ""
	for name, row := range map[string]struct {
		ref  fleet.BundleRef
		all  []*fleet.BundleDeployment
		want string
	}{
		"it is ready":            {fleet.BundleRef{Name: "base"}, []*fleet.BundleDeployment{other("base", good)}, ""},
		"it is not there":        {fleet.BundleRef{Name: "base"}, nil, "waiting for Bundle base, which is not deployed to this cluster"},
		"it is not ready":        {fleet.BundleRef{Name: "base"}, []*fleet.BundleDeployment{other("base", bad)}, "waiting for Bundle base, which is Modified"},
		"its first is paused":    {fleet.BundleRef{Name: "base"}, []*fleet.BundleDeployment{paused}, "waiting for Bundle base, which is OutOfSync"},
		"nothing is staged":      {fleet.BundleRef{Name: "base"}, []*fleet.BundleDeployment{unstaged}, "waiting for Bundle base, which is OutOfSync"},
		"that is good enough":    {fleet.BundleRef{Name: "base", AcceptedStates: []fleet.BundleState{fleet.Modified}}, []*fleet.BundleDeployment{other("base", bad)}, ""},
		"one of those with it":   {fleet.BundleRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "base"}}}, []*fleet.BundleDeployment{other("base", good)}, ""},
		"none with these labels": {fleet.BundleRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "x"}}}, []*fleet.BundleDeployment{other("base", good)}, "waiting for Bundle with labels tier=x, which is not deployed to this cluster"},
		"itself does not count":  {fleet.BundleRef{Name: "app"}, []*fleet.BundleDeployment{other("app", good)}, "waiting for Bundle app, which is not deployed to this cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			bd := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: fleet.BundleDeploymentSpec{DependsOn: []fleet.BundleRef{row.ref}}}
			assert.Equal(t, row.want, unmet(bd, row.all))
		})
	}
}
