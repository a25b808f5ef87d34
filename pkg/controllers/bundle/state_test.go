package bundle

import (
	"strings"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

func condition(conditionType string, status corev1.ConditionStatus, message string) genericcondition.GenericCondition {
	return genericcondition.GenericCondition{Type: conditionType, Status: status, Message: message}
}

func TestTheStateIsWhatTheAgentReportsOfWhatIsAskedFor(t *testing.T) {
	spec := func(deployed, staged string) fleet.BundleDeploymentSpec {
		return fleet.BundleDeploymentSpec{DeploymentID: deployed, StagedDeploymentID: staged}
	}
	applied := func(id string, ready, nonModified bool, conditions ...genericcondition.GenericCondition) fleet.BundleDeploymentStatus {
		return fleet.BundleDeploymentStatus{AppliedDeploymentID: id, Ready: ready, NonModified: nonModified, Conditions: conditions}
	}
	paused := spec("", "n")
	paused.Paused = true
	for _, row := range []struct {
		name    string
		spec    fleet.BundleDeploymentSpec
		status  fleet.BundleDeploymentStatus
		state   fleet.BundleState
		message string
	}{
		{"nobody has reported", spec("n", "n"), fleet.BundleDeploymentStatus{}, fleet.WaitApplied, ""},
		{"the last one is still there", spec("n", "n"), applied("o", true, true), fleet.WaitApplied, ""},
		{"it failed", spec("n", "n"), applied("o", true, true, condition("Deployed", "False", "no chart")), fleet.ErrApplied, "no chart"},
		{"it was never installed", spec("n", "n"), applied("", false, false, condition("Installed", "False", "no way")), fleet.ErrApplied, "no way"},
		{"it is under way", spec("n", "n"), applied("", false, false, condition("Deployed", "Unknown", "soon")), fleet.WaitApplied, ""},
		{"it is deployed", spec("n", "n"), applied("n", true, true), fleet.Ready, ""},
		{"an old failure counts no more", spec("n", "n"), applied("n", true, true, condition("Installed", "False", "old")), fleet.Ready, ""},
		{"it is not ready", spec("n", "n"), applied("n", false, true, condition("Ready", "False", "0 of 1 pods")), fleet.NotReady, "0 of 1 pods"},
		{"it was changed", spec("n", "n"), applied("n", true, false, condition("Ready", "False", "drift")), fleet.Modified, "drift"},
		{"another one is staged", spec("o", "n"), applied("o", true, true), fleet.OutOfSync, ""},
		{"another one is staged, and this one is not ready", spec("o", "n"), applied("o", false, true), fleet.NotReady, ""},
		{"paused before the first", paused, fleet.BundleDeploymentStatus{}, fleet.OutOfSync, "paused"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := &fleet.BundleDeployment{Spec: row.spec, Status: row.status}
			assert.Equal(t, row.state, fleetstatus.BundleState(d.Spec, d.Status))
			assert.Equal(t, row.message, messageOf(d, row.state))
		})
	}
}

func TestTheMessageNamesAResourceWhenTheAgentSaysNoMore(t *testing.T) {
	d := &fleet.BundleDeployment{Status: fleet.BundleDeploymentStatus{
		NonReadyStatus: []fleet.NonReadyStatus{{Kind: "Deployment", Namespace: "n", Name: "d", Summary: fleet.ResourceSummary{State: "in-progress", Message: []string{"a", "b"}}}},
	}}
	assert.Equal(t, "Deployment n/d in-progress a, b", messageOf(d, fleet.NotReady))
	for want, m := range map[string]fleet.ModifiedStatus{
		"Secret n/s modified": {}, "Secret n/s missing": {Create: true}, "Secret n/s extra": {Delete: true}, "Secret n/s of somebody else": {Exist: true},
	} {
		m.Kind, m.Namespace, m.Name = "Secret", "n", "s"
		d.Status.ModifiedStatus = []fleet.ModifiedStatus{m}
		assert.Equal(t, want, messageOf(d, fleet.Modified))
	}
	d.Status.Conditions = []genericcondition.GenericCondition{condition("Deployed", "False", strings.Repeat("ä", 1000))}
	long := messageOf(d, fleet.ErrApplied)
	assert.LessOrEqual(t, len(long), messageMax+len("..."))
	assert.True(t, strings.HasSuffix(long, "ä..."))
}

func TestASummaryCountsAndShowsTheWorst(t *testing.T) {
	for _, row := range []struct {
		name     string
		states   map[fleet.BundleState]int
		worst    fleet.BundleState
		fraction string
	}{
		{"nothing", nil, "", "0/0"},
		{"all ready", map[fleet.BundleState]int{fleet.Ready: 2}, "", "2/2"},
		{"counts that went back to nothing", map[fleet.BundleState]int{fleet.Ready: 1, fleet.ErrApplied: 0}, "", "1/1"},
		{"not ready", map[fleet.BundleState]int{fleet.Ready: 1, fleet.NotReady: 1}, fleet.NotReady, "1/2"},
		{"pending is worse", map[fleet.BundleState]int{fleet.NotReady: 1, fleet.Pending: 1}, fleet.Pending, "0/2"},
		{"out of sync is worse", map[fleet.BundleState]int{fleet.Pending: 1, fleet.OutOfSync: 1}, fleet.OutOfSync, "0/2"},
		{"modified is worse", map[fleet.BundleState]int{fleet.OutOfSync: 1, fleet.Modified: 1}, fleet.Modified, "0/2"},
		{"not yet is worse", map[fleet.BundleState]int{fleet.Modified: 1, fleet.WaitApplied: 1}, fleet.WaitApplied, "0/2"},
		{"a failure is the worst", map[fleet.BundleState]int{fleet.WaitApplied: 9, fleet.ErrApplied: 1, fleet.Ready: 9}, fleet.ErrApplied, "9/19"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := counted(row.states)
			assert.Equal(t, row.worst, worst(s))
			assert.Equal(t, row.fraction, fraction(s))
		})
	}
}

// counted is a summary of so many BundleDeployments in each state.
func counted(states map[fleet.BundleState]int) (s fleet.BundleSummary) {
	for state, n := range states {
		tick(&s, state, n)
	}
	return s
}

func TestOnlyTheWorstAreNamedAndAlwaysTheSame(t *testing.T) {
	var all []fleet.NonReadyResource
	for i := range 20 {
		all = append(all, fleet.NonReadyResource{Name: string(rune('t' - i)), State: fleet.NotReady})
	}
	all = append(all, fleet.NonReadyResource{Name: "z", State: fleet.ErrApplied, Message: "why"})
	list := worstOf(all)
	assert.Len(t, list, 10)
	assert.Equal(t, "z", list[0].Name)
	assert.Equal(t, "a", list[1].Name)
	assert.Equal(t, "i", list[9].Name)
	s := counted(map[fleet.BundleState]int{fleet.NotReady: 20, fleet.ErrApplied: 1})
	s.NonReadyResources = list
	assert.Equal(t, "ErrApplied(1) [Cluster z: why]; NotReady(20) [Cluster a; Cluster b; Cluster c; Cluster d; Cluster e; Cluster f; Cluster g; Cluster h; Cluster i]",
		describe("Cluster", s))
	assert.Nil(t, worstOf(nil))
}

func TestReadyIsNeverUnknown(t *testing.T) {
	for _, row := range []struct {
		states map[fleet.BundleState]int
		status corev1.ConditionStatus
		reason string
	}{
		{nil, "True", fleet.ReasonAllReady},
		{map[fleet.BundleState]int{fleet.Ready: 1}, "True", fleet.ReasonAllReady},
		{map[fleet.BundleState]int{fleet.WaitApplied: 1}, "False", fleet.ReasonNotReady},
		{map[fleet.BundleState]int{fleet.Modified: 1}, "False", fleet.ReasonNotReady},
		{map[fleet.BundleState]int{fleet.ErrApplied: 1, fleet.Ready: 1}, "False", fleet.ReasonDeployFailed},
	} {
		out := ready("Bundle", counted(row.states))
		assert.Equal(t, row.status, out.Status())
		assert.Equal(t, row.reason, out.Reason)
	}
}

func TestOnlyTroubleIsAnEvent(t *testing.T) {
	for _, row := range []struct {
		before string
		after  result.Result
		quiet  bool
	}{
		{"", ready("x", counted(map[fleet.BundleState]int{fleet.WaitApplied: 1})), true},
		{fleet.ReasonNotReady, ready("x", counted(nil)), true},
		{fleet.ReasonAllReady, ready("x", counted(map[fleet.BundleState]int{fleet.Modified: 1})), true},
		{fleet.ReasonAllReady, ready("x", counted(map[fleet.BundleState]int{fleet.ErrApplied: 1})), false},
		{fleet.ReasonDeployFailed, ready("x", counted(nil)), false},
		{fleet.ReasonNoClusters, result.Stalled(fleet.ReasonUnsupported, ""), false},
	} {
		assert.Equal(t, row.quiet, discreet(genericcondition.GenericCondition{Reason: row.before}, row.after).Quiet, "%s to %s", row.before, row.after.Reason)
	}
}

func TestABundleSaysWhatKeepsItFromBeingReady(t *testing.T) {
	assert.Equal(t, fleet.ReasonNoClusters, bundleOutcome(&plan{}, fleet.BundleSummary{}).Reason)
	assert.Equal(t, fleet.ReasonAllReady, bundleOutcome(&plan{}, counted(map[fleet.BundleState]int{fleet.Ready: 1})).Reason)
	out := bundleOutcome(&plan{problem: &problem{fleet.ReasonUnsupported, "why"}}, counted(map[fleet.BundleState]int{fleet.Ready: 1}))
	assert.Equal(t, fleet.ReasonUnsupported, out.Reason)
	assert.True(t, out.IsStalled())
}
