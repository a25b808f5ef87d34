package fleetstatus_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

func repeat[T any](item T, n int) (all []T) {
	for range n {
		all = append(all, item)
	}
	return all
}

// reported is a status whose texts have that length and whose lists have so many items.
func reported(length, items int) fleet.BundleDeploymentStatus {
	text := strings.Repeat("ñ", length/2)
	failed := func(conditionType string) genericcondition.GenericCondition {
		return genericcondition.GenericCondition{Type: conditionType, Status: corev1.ConditionFalse, Reason: fleet.ReasonError, Message: text}
	}
	s := fleet.BundleDeploymentStatus{
		AppliedDeploymentID: "id", Release: "a/b:1", Ready: true,
		Conditions:     append([]genericcondition.GenericCondition{failed(fleet.ConditionDeployed), failed(fleet.ConditionMonitored)}, repeat(failed("Other"), items)...),
		NonReadyStatus: repeat(fleet.NonReadyStatus{UID: "u", Kind: "K", APIVersion: "v1", Namespace: "ns", Name: "n", Summary: fleet.ResourceSummary{State: "s", Message: repeat(text, 3)}}, items),
		ModifiedStatus: repeat(fleet.ModifiedStatus{Kind: "K", APIVersion: "v1", Namespace: "ns", Name: "n", Patch: text}, items),
		Resources:      repeat(fleet.BundleDeploymentResource{Kind: "K", Name: "n"}, items),
		ResourceCounts: fleet.ResourceCounts{Ready: items},
	}
	s.Display = fleetstatus.Display(fleet.BundleDeploymentSpec{DeploymentID: "id"}, s)
	return s
}

func TestShorten(t *testing.T) {
	t.Run("what an honest agent reports stays, apart from the resources", func(t *testing.T) {
		s := reported(300, 3)
		short := fleetstatus.Shorten(s)
		assert.Nil(t, short.Resources)
		short.Resources = s.Resources
		assert.Equal(t, s, short)
	})
	t.Run("a large report", func(t *testing.T) {
		s := reported(16<<10, 100) // as large as the API server permits, in all
		s.NonReadyStatus[0].Name, s.ModifiedStatus[0].Namespace, s.Conditions[0].LastUpdateTime, s.Release = s.Display.Deployed, s.Display.Deployed, s.Display.Deployed, s.Display.Deployed
		before, err := json.Marshal(s)
		require.NoError(t, err)
		short := fleetstatus.Shorten(s)
		after, err := json.Marshal(short)
		require.NoError(t, err)
		assert.Less(t, len(after), 64<<10)
		assert.True(t, utf8.Valid(after))
		assert.Equal(t, s.ResourceCounts, short.ResourceCounts)
		assert.Equal(t, s.AppliedDeploymentID, short.AppliedDeploymentID)
		assert.LessOrEqual(t, len(short.NonReadyStatus), 10)
		assert.LessOrEqual(t, len(short.ModifiedStatus), 10)
		unchanged, err := json.Marshal(s)
		require.NoError(t, err)
		assert.Equal(t, before, unchanged, "the argument may be in a cache")
	})
	t.Run("every text can be the large one", func(t *testing.T) {
		var s fleet.BundleDeploymentStatus
		require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(everyField, "X", strings.Repeat("x", 1<<20))), &s))
		short, err := json.Marshal(fleetstatus.Shorten(s))
		require.NoError(t, err)
		assert.Less(t, len(short), 64<<10)
	})
	t.Run("the display of the conditions stays theirs", func(t *testing.T) {
		for length := 2000; length < 2100; length++ {
			short := fleetstatus.Shorten(reported(length, 1))
			assert.Equal(t, fleetstatus.Display(fleet.BundleDeploymentSpec{DeploymentID: "id"}, short), short.Display, length)
		}
	})
	t.Run("shortened once", func(t *testing.T) {
		for length := 2000; length < 2100; length++ {
			short := fleetstatus.Shorten(reported(length, 20))
			assert.Equal(t, short, fleetstatus.Shorten(short))
		}
	})
}

// everyField is a status with each text that an agent can write.
const everyField = `{"conditions":[{"type":"X","status":"X","reason":"X","message":"X","lastUpdateTime":"X","lastTransitionTime":"X"}],
"appliedDeploymentID":"X","release":"X",
"nonReadyStatus":[{"uid":"X","kind":"X","apiVersion":"X","namespace":"X","name":"X","summary":{"state":"X","message":["X"]}}],
"modifiedStatus":[{"kind":"X","apiVersion":"X","namespace":"X","name":"X","patch":"X"}],
"resources":[{"kind":"X","apiVersion":"X","namespace":"X","name":"X"}],
"display":{"deployed":"X","monitored":"X","state":"X"}}`

func TestWithoutPatches(t *testing.T) {
	for message, want := range map[string]string{
		"":                         "",
		"it has modified nothing":  "it has modified nothing",
		`c modified {"a":{"b":1}}`: "c modified",
		`c modified {"a":"}"}; d missing; e modified {"b":2}; f extra`: "c modified; d missing; e modified; f extra",
		`c modified {"a":"secr…`:                                       "c modified",
	} {
		assert.Equal(t, want, fleetstatus.WithoutPatches(message))
	}
}
