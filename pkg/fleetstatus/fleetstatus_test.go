package fleetstatus_test

import (
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

var (
	later      = time.Date(2026, 1, 2, 14, 0, 0, 0, time.FixedZone("east", 3600))
	stampNoon  = "2026-01-02T12:00:00Z"
	stampLater = "2026-01-02T13:00:00Z"
)

func condition(conditionType string, status corev1.ConditionStatus, reason, message string) genericcondition.GenericCondition {
	return genericcondition.GenericCondition{Type: conditionType, Status: status, Reason: reason, Message: message}
}

func TestSetCondition(t *testing.T) {
	waiting := condition("Ready", corev1.ConditionUnknown, "W", "m")
	waiting.LastUpdateTime, waiting.LastTransitionTime = stampNoon, stampNoon
	for name, row := range map[string]struct {
		before            fleetstatus.Conditions
		set               genericcondition.GenericCondition
		updated, transits string
		changed           bool
	}{
		"first: both times are set":              {nil, condition("Ready", "True", "R", ""), stampLater, stampLater, true},
		"same again: nothing changes":            {fleetstatus.Conditions{waiting}, condition("Ready", "Unknown", "W", "m"), stampNoon, stampNoon, false},
		"other message: only the update time":    {fleetstatus.Conditions{waiting}, condition("Ready", "Unknown", "W", "n"), stampLater, stampNoon, true},
		"other reason: only the update time":     {fleetstatus.Conditions{waiting}, condition("Ready", "Unknown", "V", "m"), stampLater, stampNoon, true},
		"other status: both times":               {fleetstatus.Conditions{waiting}, condition("Ready", "False", "W", "m"), stampLater, stampLater, true},
		"another type: its own times, appended":  {fleetstatus.Conditions{waiting}, condition("Other", "True", "R", ""), stampLater, stampLater, true},
		"an empty condition that did not exist":  {nil, condition("Ready", "", "", ""), "", "", false},
		"times of the caller: ignored, in UTC":   {nil, waiting, stampLater, stampLater, true},
		"same with times of the caller: ignored": {fleetstatus.Conditions{waiting}, func() genericcondition.GenericCondition { c := waiting; c.LastUpdateTime = "x"; return c }(), stampNoon, stampNoon, false},
	} {
		t.Run(name, func(t *testing.T) {
			conditions := row.before
			assert.Equal(t, row.changed, fleetstatus.SetCondition(&conditions, row.set, later))
			want := row.set
			want.LastUpdateTime, want.LastTransitionTime = row.updated, row.transits
			assert.Equal(t, want, fleetstatus.Condition(conditions, row.set.Type))
			for _, other := range row.before {
				if other.Type != row.set.Type {
					assert.Equal(t, other, fleetstatus.Condition(conditions, other.Type))
				}
			}
		})
	}
	t.Run("a cached list is not modified, not even behind its end", func(t *testing.T) {
		cached := append(make(fleetstatus.Conditions, 0, 8), condition("Other", "", "", ""), condition("Ready", "", "old", ""))
		mine := cached
		fleetstatus.SetCondition(&mine, condition("Ready", "", "new", ""), later)
		fleetstatus.SetCondition(&mine, condition("Third", "", "third", ""), later)
		assert.Equal(t, "old", cached[1].Reason)
		assert.Empty(t, cached[:3][2].Reason)
		assert.Len(t, mine, 3)
	})
}

func TestBundleState(t *testing.T) {
	spec := func(deployed, staged string) fleet.BundleDeploymentSpec {
		return fleet.BundleDeploymentSpec{DeploymentID: deployed, StagedDeploymentID: staged}
	}
	status := func(applied string, ready, nonModified bool, conditions ...genericcondition.GenericCondition) fleet.BundleDeploymentStatus {
		return fleet.BundleDeploymentStatus{AppliedDeploymentID: applied, Ready: ready, NonModified: nonModified, Conditions: conditions}
	}
	failed := func(conditionType string) genericcondition.GenericCondition {
		return condition(conditionType, corev1.ConditionFalse, "", "")
	}
	paused := spec("", "n")
	paused.Paused = true
	for name, row := range map[string]struct {
		spec   fleet.BundleDeploymentSpec
		status fleet.BundleDeploymentStatus
		want   fleet.BundleState
	}{
		"no report yet":                               {spec("n", "n"), fleet.BundleDeploymentStatus{}, fleet.WaitApplied},
		"the previous deployment is applied":          {spec("n", "n"), status("o", true, true), fleet.WaitApplied},
		"under way":                                   {spec("n", "n"), status("", false, false, condition("Deployed", "Unknown", "", "")), fleet.WaitApplied},
		"deploying failed":                            {spec("n", "n"), status("o", true, true, failed("Deployed")), fleet.ErrApplied},
		"installing failed":                           {spec("n", "n"), status("n", false, true, failed("Installed")), fleet.NotReady},
		"applied: an old failure does not count":      {spec("n", "n"), status("n", true, true, failed("Installed")), fleet.Ready},
		"applied, not ready":                          {spec("n", "n"), status("n", false, true), fleet.NotReady},
		"applied, modified":                           {spec("n", "n"), status("n", true, false), fleet.Modified},
		"applied, not ready and modified":             {spec("n", "n"), status("n", false, false), fleet.NotReady},
		"applied, another is staged":                  {spec("o", "n"), status("o", true, true), fleet.OutOfSync},
		"applied, another is staged, and modified":    {spec("o", "n"), status("o", true, false), fleet.OutOfSync},
		"applied, another is staged, and not ready":   {spec("o", "n"), status("o", false, true), fleet.NotReady},
		"applied, the staged ID is empty":             {spec("n", ""), status("n", true, true), fleet.OutOfSync},
		"paused before the first deployment":          {paused, fleet.BundleDeploymentStatus{}, fleet.NotReady},
		"paused before the first, another is applied": {paused, status("o", true, true), fleet.WaitApplied},
		"nothing is wanted yet":                       {spec("", ""), fleet.BundleDeploymentStatus{}, fleet.NotReady},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, row.want, fleetstatus.BundleState(row.spec, row.status)) })
	}
}

func TestDisplay(t *testing.T) {
	spec := fleet.BundleDeploymentSpec{DeploymentID: "n", StagedDeploymentID: "n"}
	for name, row := range map[string]struct {
		conditions fleetstatus.Conditions
		want       fleet.BundleDeploymentDisplay
	}{
		"no report yet": {nil, fleet.BundleDeploymentDisplay{State: "WaitApplied"}},
		"an error is shown with its message": {
			fleetstatus.Conditions{condition("Deployed", "False", "Error", "no such kind"), condition("Monitored", "True", "", "")},
			fleet.BundleDeploymentDisplay{Deployed: "Error: no such kind", Monitored: "True", State: "ErrApplied"},
		},
		"the message of another reason is not shown": {
			fleetstatus.Conditions{condition("Deployed", "Unknown", "Paused", "paused")},
			fleet.BundleDeploymentDisplay{Deployed: "Unknown", State: "WaitApplied"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, row.want, fleetstatus.Display(spec, fleet.BundleDeploymentStatus{Conditions: row.conditions}))
		})
	}
}

func TestMergePatch(t *testing.T) {
	before := fleet.BundleDeploymentStatus{AppliedDeploymentID: "o", Ready: true, Release: "n/a:1"}
	after := before
	patch, err := fleetstatus.MergePatch(before, after)
	require.NoError(t, err)
	assert.Nil(t, patch, "equal")

	after.Conditions = fleetstatus.Conditions{}
	patch, err = fleetstatus.MergePatch(before, after)
	require.NoError(t, err)
	assert.Nil(t, patch, "an empty list and none have the same JSON")

	after.AppliedDeploymentID, after.Release = "n", ""
	patch, err = fleetstatus.MergePatch(before, after)
	require.NoError(t, err)
	assert.JSONEq(t, `{"appliedDeploymentID":"n","release":null}`, string(patch))

	_, err = fleetstatus.MergePatch(before, func() {})
	require.Error(t, err, "cannot be encoded")
}

func TestOrderConditions(t *testing.T) {
	list := fleetstatus.Conditions{{Type: "Extra"}, {Type: "Ready"}, {Type: "Other"}, {Type: "Imported"}}
	ordered := list
	fleetstatus.OrderConditions(&ordered, "Processed", "Imported", "Ready")
	assert.Equal(t, fleetstatus.Conditions{{Type: "Imported"}, {Type: "Ready"}, {Type: "Extra"}, {Type: "Other"}}, ordered)
	assert.Equal(t, "Extra", list[0].Type, "the list may belong to an object in a cache")
}
