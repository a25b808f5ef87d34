package deploy

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// FuzzDecide checks that no wanted release is removed.
func FuzzDecide(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var in facts
		fuzz.From(seed, "app").Fill(&in)
		does := decide(in)
		require.NotEmpty(t, does.String())
		assert.Equal(t, does, decide(in))
		switch does {
		case checkRemoval:
			assert.False(t, in.Wanted)
		case deploy, correct, sweep:
			assert.True(t, in.Wanted && !in.Elsewhere && !in.NoDeploymentID && !in.Paused && !in.RetryNotDue)
			assert.Equal(t, does != deploy, in.IsCurrent && !(does == deploy && in.OldCopies))
		default:
			assert.True(t, in.Wanted)
		}
	})
}

// FuzzDecideRemoval checks that nothing is uninstalled while one of the protections applies, whatever the other facts are.
func FuzzDecideRemoval(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var in removalFacts
		fuzz.From(seed).Fill(&in)
		isProtected := in.Kept || in.DelayNotPassed || in.HubChanged || !in.Asked || !in.Confirmed || in.HasOwnRelease && in.AgentGone && !(in.Own && in.GoneAlone)
		if does := decideRemoval(in); does == uninstallAll {
			assert.False(t, isProtected)
		} else {
			require.NotEmpty(t, does.String())
		}
	})
}

// FuzzUnmet checks that the result does not depend on the order of the BundleDeployments.
func FuzzUnmet(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var bd fleet.BundleDeployment
		var others []struct {
			Name   string
			Labels map[string]string
			Spec   fleet.BundleDeploymentSpec
			Status fleet.BundleDeploymentStatus
		}
		filler := fuzz.From(seed, "a", "b", "In", "Exists", "Ready", "NotReady", fleet.BundleNameLabel).MaxDepth(8)
		filler.Fill(&bd.Spec.DependsOn)
		filler.Fill(&others)
		bd.Name = "self"
		var all []*fleet.BundleDeployment
		for _, o := range others {
			other := &fleet.BundleDeployment{Spec: o.Spec, Status: o.Status}
			other.Name, other.Labels = o.Name, o.Labels
			all = append(all, other)
		}
		why := unmet(&bd, all)
		assert.Equal(t, why == "", unmet(&bd, fuzz.Shuffled(seed, all)) == "")
		assert.Equal(t, why == "", unmet(&bd, append(all, &bd)) == "", "it does not wait for itself")
		if len(all) == 0 && slices.ContainsFunc(bd.Spec.DependsOn, func(ref fleet.BundleRef) bool { return ref.Name != "" }) {
			assert.NotEmpty(t, why)
		}
	})
}

// FuzzSummarize checks that an object may have any shape, and is not modified.
func FuzzSummarize(f *testing.F) {
	for _, object := range []string{
		`{"kind":"Deployment","apiVersion":"apps/v1","status":{"observedGeneration":1,"conditions":[{"type":"Available","status":"False"}]}}`,
		`{"kind":"X","apiVersion":"a/b","status":{"conditions":[1,null,"x"]}}`, `{"kind":"X","status":[]}`, `{"kind":"Pod","apiVersion":"v1","status":{"phase":1}}`,
		`{"metadata":{"deletionTimestamp":"x","finalizers":"y"}}`, `{"kind":"Job","apiVersion":"batch/v1","spec":{"x":null},"status":{"conditions":{}}}`,
	} {
		f.Add([]byte(object), "type", "Available")
	}
	f.Fuzz(func(t *testing.T, document []byte, key, value string) {
		live := &unstructured.Unstructured{}
		if json.Unmarshal(document, &live.Object) != nil || live.Object == nil {
			return
		}
		before := live.DeepCopy()
		ignored := &fleet.IgnoreOptions{Conditions: []map[string]string{{key: value}, {}}}
		summarize(live, ignored)
		assert.Equal(t, before, live, "the object is in a cache")
	})
}
