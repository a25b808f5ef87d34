package deploy

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// ready returns a view of a release of n objects that are ready and do not differ.
func ready(t *testing.T, n int) view {
	t.Helper()
	v := view{
		spec:    fleet.BundleDeploymentSpec{DeploymentID: "id", StagedDeploymentID: "id"},
		current: true, installed: true, deployed: &release.Deployed{Namespace: "ns", Name: "app", Version: 3},
		live: func(o release.Object) *unstructured.Unstructured { return o.Desired }, drift: drift{objects: map[string]comparison{}},
	}
	for i := range n {
		v.deployed.Objects = append(v.deployed.Objects, configMapObject(t, fmt.Sprint("c", i)))
	}
	return v
}

func (v view) differs(i int, d release.Difference) view {
	v.drift.objects[objectID(v.deployed.Objects[i])] = comparison{Difference: d}
	return v
}

func TestAssess(t *testing.T) {
	for name, row := range map[string]struct {
		view    view
		state   fleet.BundleState
		message string // of condition Ready
	}{
		"all ready":             {ready(t, 2), fleet.Ready, ""},
		"no objects":            {ready(t, 0), fleet.Ready, ""},
		"one is missing":        {ready(t, 2).differs(1, release.Difference{Missing: true}), fleet.Modified, "configmap.v1 ns/c1 missing"},
		"one is modified":       {ready(t, 2).differs(0, release.Difference{Patch: "{}"}), fleet.Modified, "configmap.v1 ns/c0 modified {}"},
		"one not in the cache":  {unseen(ready(t, 1)), fleet.NotReady, "configmap.v1 ns/c0 [progressing]"},
		"one without the label": {unlabelled(ready(t, 1)), fleet.Modified, "configmap.v1 ns/c0 modified {}"},
		"not deployed yet":      {view{spec: ready(t, 0).spec}, fleet.WaitApplied, "WaitApplied"},
		"paused":                {view{spec: ready(t, 0).spec, paused: true}, fleet.WaitApplied, "paused"},
		"paused at first":       {view{spec: fleet.BundleDeploymentSpec{StagedDeploymentID: "id"}, paused: true}, fleet.NotReady, "paused"},
		"no deployment ID yet":  {view{spec: fleet.BundleDeploymentSpec{StagedDeploymentID: "id"}}, fleet.NotReady, "the rollout of the Bundle has not come to this cluster yet"},
		"waits":                 {view{spec: ready(t, 0).spec, waitsFor: "for base"}, fleet.ErrApplied, "for base"},
		"waits for values":      {view{spec: fleet.BundleDeploymentSpec{DeploymentID: "id", WaitingForValues: true}}, fleet.WaitApplied, "the hub has not written the Secret with the Helm values yet"},
		"one of another owner":  {ready(t, 2).differs(1, release.Difference{Missing: true, Foreign: true}), fleet.Modified, "configmap.v1 ns/c1 is not owned by us"},
		"dependsOn unmet since": {unmetNow(ready(t, 1)), fleet.Ready, ""},
		"failed":                {view{spec: ready(t, 0).spec, failure: errors.New("no")}, fleet.ErrApplied, "no"},
		"failed upgrade":        {outdated(ready(t, 1)), fleet.ErrApplied, "no"},
		"failed correction":     {failing(ready(t, 1).differs(0, release.Difference{Patch: "{}"}), errors.New("no")), fleet.Modified, "no"},
		"unlabelled namespace":  {failing(ready(t, 1), &release.NamespaceError{Err: errors.New("no")}), fleet.NotReady, "no"},
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

// unlabelled returns a view with an object that the cache lacks because it has lost Helm's label.
func unlabelled(v view) view {
	o := v.deployed.Objects[0]
	v.drift.objects[objectID(o)] = comparison{Difference: release.Difference{Patch: "{}"}, seen: o.Desired}
	return unseen(v)
}

func unseen(v view) view {
	v.live = func(release.Object) *unstructured.Unstructured { return nil }
	return v
}

func outdated(v view) view {
	v.current, v.failure = false, errors.New("no")
	return v
}

func failing(v view, err error) view {
	v.failure = err
	return v
}

func unmetNow(v view) view {
	v.waitsFor = "for base"
	return v
}

func staged(v view) view {
	v.spec.StagedDeploymentID = "newer"
	return v
}

func TestAssess_details(t *testing.T) {
	t.Run("lists are bounded", func(t *testing.T) {
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
	})
	t.Run("a removed release is no longer applied", func(t *testing.T) {
		v := view{spec: ready(t, 0).spec, before: assess(ready(t, 1))}
		require.Equal(t, "id", v.before.AppliedDeploymentID)
		s := assess(v)
		assert.Empty(t, s.AppliedDeploymentID)
		assert.Empty(t, s.Resources)
	})
	t.Run("the objects of the previous deployment stay while this run has not read it", func(t *testing.T) {
		v := view{spec: ready(t, 0).spec, before: assess(ready(t, 1)), installed: true, failure: errors.New("no")}
		v.spec.DeploymentID = "newer"
		s := assess(v)
		assert.Equal(t, v.before.Resources, s.Resources)
		assert.True(t, s.Ready && s.NonModified)
		assert.Equal(t, "id", s.AppliedDeploymentID)
		assert.Equal(t, "Error: no", s.Display.Deployed)
	})
	t.Run("deployed, and dependsOn is no longer met", func(t *testing.T) {
		s := assess(unmetNow(ready(t, 1)))
		assert.Equal(t, "Error: for base", s.Display.Deployed)
		assert.Equal(t, "id", s.AppliedDeploymentID)
	})
	t.Run("the release that another agent recorded stays until this agent has one", func(t *testing.T) {
		v := ready(t, 1)
		v.before.Release = "apps/shop:4"
		assert.Equal(t, v.deployed.String(), assess(v).Release)
		v.deployed = nil
		assert.Equal(t, "apps/shop:4", assess(v).Release)
	})
	t.Run("the same view writes nothing", func(t *testing.T) {
		v := ready(t, 2)
		v.now = time.Unix(1, 0)
		before := assess(v)
		v.before, v.now = before, time.Unix(99, 0)
		patch, err := fleetstatus.MergePatch(before, assess(v))
		require.NoError(t, err)
		assert.Nil(t, patch, "%s", patch)
	})
	t.Run("conditions of others stay", func(t *testing.T) {
		v := ready(t, 1)
		v.before.Conditions = []genericcondition.GenericCondition{{Type: "Theirs", Status: "True"}}
		assert.Equal(t, "Theirs", assess(v).Conditions[0].Type)
	})
}

func TestSummarize(t *testing.T) {
	for name, row := range map[string]struct {
		object  string
		ignored []map[string]string
		ready   bool
	}{
		"ConfigMap":                     {"{apiVersion: v1, kind: ConfigMap}", nil, true},
		"Deployment, not observed yet":  {"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}}", nil, false},
		"Deployment, available":         {"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}, status: {observedGeneration: 1, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Available, status: 'True'}]}}", nil, true},
		"Deployment, changed since":     {"{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, status: {observedGeneration: 1}}", nil, false},
		"Deployment, unavailable":       {"{apiVersion: apps/v1, kind: Deployment, status: {conditions: [{type: Available, status: 'False'}]}}", nil, false},
		"StatefulSet, pods missing":     {"{apiVersion: apps/v1, kind: StatefulSet, spec: {replicas: 2}, status: {readyReplicas: 1}}", nil, false},
		"StatefulSet, all pods":         {"{apiVersion: apps/v1, kind: StatefulSet, spec: {replicas: 2}, status: {replicas: 2, readyReplicas: 2, currentReplicas: 2, updatedReplicas: 2}}", nil, true},
		"DaemonSet, pods missing":       {"{apiVersion: apps/v1, kind: DaemonSet, status: {desiredNumberScheduled: 2, numberReady: 1}}", nil, false},
		"custom, no observedGeneration": {"{apiVersion: example.com/v1, kind: Thing, metadata: {generation: 3}}", nil, true},
		"custom, observed an older one": {"{apiVersion: example.com/v1, kind: Thing, metadata: {generation: 3}, status: {observedGeneration: 2}}", nil, false},
		"custom, failing":               {"{apiVersion: example.com/v1, kind: Thing, status: {conditions: [{type: X, status: 'True', reason: Error}]}}", nil, false},
		"custom, failing condition is ignored": {
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

func TestFingerprint(t *testing.T) {
	deployment := "{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1, resourceVersion: '1', labels: {a: b}}}"
	before := fingerprint(object(t, deployment), nil)
	status := object(t, deployment)
	status.SetResourceVersion("2")
	status.SetAnnotations(map[string]string{"deployment.kubernetes.io/revision": "2"})
	assert.Equal(t, before, fingerprint(status, nil), "only the status changed")
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
