package rollup

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

func condition(conditionType string, status corev1.ConditionStatus, message string) genericcondition.GenericCondition {
	return genericcondition.GenericCondition{Type: conditionType, Status: status, Message: message}
}

func TestMessage(t *testing.T) {
	notReady := []fleet.NonReadyStatus{{Kind: "Deployment", Namespace: "n", Name: "d", Summary: fleet.ResourceSummary{State: "in-progress", Message: []string{"a", "b"}}}}
	modified := func(m fleet.ModifiedStatus) fleet.BundleDeploymentStatus {
		m.Kind, m.Namespace, m.Name = "Secret", "n", "s"
		return fleet.BundleDeploymentStatus{ModifiedStatus: []fleet.ModifiedStatus{m}}
	}
	reports := func(conditionType, message string) fleet.BundleDeploymentStatus {
		return fleet.BundleDeploymentStatus{Conditions: []genericcondition.GenericCondition{condition(conditionType, "False", message)}}
	}
	for _, row := range []struct {
		state  fleet.BundleState
		status fleet.BundleDeploymentStatus
		want   string
	}{
		{fleet.WaitApplied, reports("Deployed", "soon"), ""},
		{fleet.ErrApplied, reports("Deployed", "no chart"), "no chart"},
		{fleet.ErrApplied, reports("Installed", "no way"), "no way"},
		{fleet.ErrApplied, reports("Deployed", "fetching Content s-"+strings.Repeat("0123456789", 7)[:61]+": no"), "fetching Content s-01234567...: no"},
		{fleet.NotReady, reports("Ready", "0 of 1 pods"), "0 of 1 pods"},
		{fleet.NotReady, reports("Ready", `configmap.v1 n/c modified {"data":{"a":"1"}}; pod.v1 n/p missing`), "configmap.v1 n/c modified; pod.v1 n/p missing"},
		{fleet.NotReady, fleet.BundleDeploymentStatus{NonReadyStatus: notReady}, "Deployment n/d in-progress a, b"},
		{fleet.Modified, reports("Ready", "drift"), "drift"},
		{fleet.Modified, modified(fleet.ModifiedStatus{}), "Secret n/s modified"},
		{fleet.Modified, modified(fleet.ModifiedStatus{Create: true}), "Secret n/s missing"},
		{fleet.Modified, modified(fleet.ModifiedStatus{Delete: true}), "Secret n/s extra"},
		{fleet.Modified, modified(fleet.ModifiedStatus{Create: true, Exist: true}), "Secret n/s exists and is not part of the release"},
		{fleet.OutOfSync, reports("Ready", "x"), "paused"},
		{fleet.Ready, reports("Ready", "x"), ""},
	} {
		assert.Equal(t, row.want, message(&fleet.BundleDeployment{Spec: fleet.BundleDeploymentSpec{Paused: true}, Status: row.status}, row.state))
	}
	assert.Empty(t, message(&fleet.BundleDeployment{}, fleet.OutOfSync), "another version is staged")
	assert.Empty(t, message(&fleet.BundleDeployment{}, fleet.WaitApplied))
	offSchedule := &fleet.BundleDeployment{Spec: fleet.BundleDeploymentSpec{OffSchedule: true}}
	assert.Contains(t, message(offSchedule, fleet.WaitApplied), "spec.offSchedule of the BundleDeployment is true")
	long := message(&fleet.BundleDeployment{Status: reports("Deployed", strings.Repeat("ä", 1000))}, fleet.ErrApplied)
	assert.LessOrEqual(t, len(long), maxMessage+len("..."))
	assert.True(t, strings.HasSuffix(long, "ä..."))
}

// More people may read Clusters than Bundles.
func TestReportDeployments_patches(t *testing.T) {
	deployment := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Status: fleet.BundleDeploymentStatus{
		Ready: true, ModifiedStatus: []fleet.ModifiedStatus{{APIVersion: "v1", Kind: "ConfigMap", Namespace: "n", Name: "c", Patch: `{"data":{"a":"1"}}`}},
	}}
	var status fleet.ClusterStatus
	ReportDeployments(&status, []*fleet.BundleDeployment{deployment})
	assert.Equal(t, []fleet.NonReadyResource{{
		Name: "app", State: fleet.Modified, Message: "ConfigMap n/c modified",
		ModifiedStatus: []fleet.ModifiedStatus{{APIVersion: "v1", Kind: "ConfigMap", Namespace: "n", Name: "c"}},
	}}, status.Summary.NonReadyResources)
	assert.Equal(t, "Modified(1) [Bundle app: ConfigMap n/c modified]; configmap.v1 n/c modified", FleetMessage("Bundle", status.Summary), "of a ClusterGroup")
	assert.NotEmpty(t, NonReady("app", deployment, fleet.Modified).ModifiedStatus[0].Patch, "of a Bundle")
}

// counted returns a summary with these numbers of BundleDeployments.
func counted(states map[fleet.BundleState]int) (s fleet.BundleSummary) {
	for state, n := range states {
		Count(&s, state, n)
	}
	return s
}

func TestDescribe(t *testing.T) {
	var all []fleet.NonReadyResource
	for i := range 20 {
		all = append(all, fleet.NonReadyResource{Name: string(rune('t' - i)), State: fleet.NotReady})
	}
	all = append(all, fleet.NonReadyResource{Name: "z", State: fleet.ErrApplied, Message: "why"})
	list := WorstFirst(all, nil)
	assert.Len(t, list, 10)
	assert.Equal(t, "z", list[0].Name)
	assert.Equal(t, "a", list[1].Name)
	assert.Equal(t, "i", list[9].Name)
	s := counted(map[fleet.BundleState]int{fleet.NotReady: 20, fleet.ErrApplied: 1})
	s.NonReadyResources = list
	assert.Equal(t, "ErrApplied(1) [Cluster z: why]; NotReady(20) [Cluster a; Cluster b; Cluster c; Cluster d; Cluster e; Cluster f; Cluster g; Cluster h; Cluster i]",
		describe("Cluster", s))
	assert.Nil(t, WorstFirst(nil, nil))
}

// A rollout to many Clusters stops at one Cluster, whose state is the last one.
func TestWorstFirst_rollout(t *testing.T) {
	var all []fleet.NonReadyResource
	waits := map[string]bool{}
	add := func(name string, state fleet.BundleState, isWaiting bool) {
		all = append(all, fleet.NonReadyResource{Name: name, State: state})
		waits[name] = isWaiting
	}
	for i := range 20 {
		add(fmt.Sprintf("new-%02d", i), fleet.NotReady, true)
		add(fmt.Sprintf("old-%02d", i), fleet.OutOfSync, true)
	}
	add("z-canary", fleet.NotReady, false)
	s := counted(map[fleet.BundleState]int{fleet.NotReady: 21, fleet.OutOfSync: 20})
	s.NonReadyResources = WorstFirst(slices.Clone(all), waits)
	assert.Len(t, s.NonReadyResources, MaxListed)
	text := describe("Cluster", s)
	assert.Contains(t, text, "OutOfSync(20) [Cluster old-00; ", "the order of the states stays")
	assert.Contains(t, text, "; NotReady(21) [Cluster z-canary]")

	for i := range 20 {
		add(fmt.Sprintf("down-%02d", i), fleet.NotReady, false)
	}
	s.NonReadyResources = WorstFirst(all, waits)
	assert.Equal(t, "OutOfSync(20) [Cluster old-00]; NotReady(21) [Cluster down-00; Cluster down-01; Cluster down-02; Cluster down-03; "+
		"Cluster down-04; Cluster down-05; Cluster down-06; Cluster down-07; Cluster down-08]", describe("Cluster", s))
}

func TestReady(t *testing.T) {
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
		out := Ready("Bundle", counted(row.states))
		assert.Equal(t, row.status, out.Status())
		assert.Equal(t, row.reason, out.Reason)
	}
}

func TestWithUnready(t *testing.T) {
	assert.Equal(t, "an error", WithUnready("an error", "Bundle", counted(map[fleet.BundleState]int{fleet.Ready: 3})))
	s := counted(map[fleet.BundleState]int{fleet.Ready: 3, fleet.NotReady: 1, fleet.ErrApplied: 1})
	s.NonReadyResources = []fleet.NonReadyResource{{Name: "shop", State: fleet.NotReady}, {Name: "web", State: fleet.ErrApplied, Message: "no chart"}}
	assert.Equal(t, "an error; ErrApplied(1) [Bundle web: no chart]; NotReady(1) [Bundle shop]", WithUnready("an error", "Bundle", s))
}

func TestWithoutRoutineEvent(t *testing.T) {
	for _, row := range []struct {
		before string
		after  result.Result
		quiet  bool
	}{
		{"", Ready("x", counted(map[fleet.BundleState]int{fleet.WaitApplied: 1})), true},
		{fleet.ReasonNotReady, Ready("x", counted(nil)), true},
		{fleet.ReasonAllReady, Ready("x", counted(map[fleet.BundleState]int{fleet.Modified: 1})), true},
		{fleet.ReasonAllReady, Ready("x", counted(map[fleet.BundleState]int{fleet.ErrApplied: 1})), false},
		{fleet.ReasonDeployFailed, Ready("x", counted(nil)), false},
		{fleet.ReasonNoClusters, result.Stalled(fleet.ReasonBundleInvalid, ""), false},
	} {
		assert.Equal(t, row.quiet, WithoutRoutineEvent(genericcondition.GenericCondition{Reason: row.before}, row.after).NoEvent, "%s to %s", row.before, row.after.Reason)
	}
}

// A GitRepo or HelmOp counts for a Cluster if one of the BundleDeployments has its name in a label, and as ready if one of them is Ready.
func TestReportDeployments_apps(t *testing.T) {
	labelled := func(repo, helmOp string, change func(*fleet.BundleDeployment)) *fleet.BundleDeployment {
		d := &fleet.BundleDeployment{
			Spec:   fleet.BundleDeploymentSpec{DeploymentID: "id", StagedDeploymentID: "id"},
			Status: fleet.BundleDeploymentStatus{AppliedDeploymentID: "id", Ready: true, NonModified: true},
		}
		d.Labels = map[string]string{"fleet.cattle.io/repo-name": repo, "fleet.cattle.io/fleet-helm-name": helmOp}
		if change != nil {
			change(d)
		}
		return d
	}
	waits := func(d *fleet.BundleDeployment) { d.Status.AppliedDeploymentID = "" }
	differs := func(d *fleet.BundleDeployment) { d.Status.NonModified = false }
	for name, row := range map[string]struct {
		deployments              []*fleet.BundleDeployment
		ready, desired, ops, all int
	}{
		"none":                        {nil, 0, 0, 0, 0},
		"no label":                    {[]*fleet.BundleDeployment{labelled("", "", nil)}, 0, 0, 0, 0},
		"ready":                       {[]*fleet.BundleDeployment{labelled("a", "", nil), labelled("", "op", nil)}, 1, 1, 1, 1},
		"several of one":              {[]*fleet.BundleDeployment{labelled("a", "", nil), labelled("a", "", nil)}, 1, 1, 0, 0},
		"one of two is ready":         {[]*fleet.BundleDeployment{labelled("a", "", waits), labelled("a", "", nil), labelled("a", "", waits)}, 1, 1, 0, 0},
		"none of two is ready":        {[]*fleet.BundleDeployment{labelled("a", "op", waits), labelled("a", "op", differs)}, 0, 1, 0, 1},
		"two, one of which is ready":  {[]*fleet.BundleDeployment{labelled("a", "x", nil), labelled("b", "y", waits)}, 1, 2, 1, 2},
		"a GitRepo named as a HelmOp": {[]*fleet.BundleDeployment{labelled("a", "", nil), labelled("", "a", waits)}, 1, 1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			status := fleet.ClusterStatus{ReadyGitRepos: 9, DesiredReadyGitRepos: 9, ReadyHelmOps: 9, DesiredReadyHelmOps: 9}
			ReportDeployments(&status, row.deployments)
			assert.Equal(t, []int{row.ready, row.desired, row.ops, row.all},
				[]int{status.ReadyGitRepos, status.DesiredReadyGitRepos, status.ReadyHelmOps, status.DesiredReadyHelmOps})
		})
	}
}
