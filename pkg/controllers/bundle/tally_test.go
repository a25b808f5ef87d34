package bundle

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

var (
	noon   = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	appKey = key{Namespace: "ws", Name: "app"}
)

// on is a BundleDeployment of Bundle ws/app in a cluster namespace.
func on(namespace string, ready bool) *fleet.BundleDeployment {
	d := &fleet.BundleDeployment{Spec: fleet.BundleDeploymentSpec{DeploymentID: "s:1", StagedDeploymentID: "s:1"}}
	d.Namespace, d.Name = namespace, "app"
	d.Labels = map[string]string{
		fleet.ManagedLabel: "true", fleet.BundleNamespaceLabel: "ws", fleet.BundleNameLabel: "app",
		fleet.ClusterNamespaceLabel: "ws", fleet.ClusterLabel: namespace,
	}
	if ready {
		d.Status = fleet.BundleDeploymentStatus{AppliedDeploymentID: "s:1", Ready: true, NonModified: true}
	}
	return d
}

// in are cluster namespaces, each with a Cluster of its name.
func in(namespaces ...string) map[string]key {
	clusters := map[string]key{}
	for _, namespace := range namespaces {
		clusters[namespace] = key{Namespace: "ws", Name: namespace}
	}
	return clusters
}

func shown(tally *tally, bundle key) string {
	s, _ := tally.summary(bundle)
	return fraction(s) + " " + describe("Cluster", s)
}

func TestTheTallyFollowsEachEvent(t *testing.T) {
	tally := newTally()
	assert.Equal(t, "0/0 ", shown(tally, appKey))
	assert.True(t, tally.put(on("c1", false), noon))
	assert.False(t, tally.put(on("c1", false), noon), "the same again is no news")
	tally.put(on("c2", true), noon)
	assert.Equal(t, "1/2 WaitApplied(1) [Cluster ws/c1]", shown(tally, appKey))
	assert.True(t, tally.put(on("c1", true), noon))
	assert.Equal(t, "2/2 ", shown(tally, appKey))
	tally.remove(keyOf(on("c1", true)), noon)
	tally.remove(keyOf(on("c1", true)), noon)
	assert.Equal(t, "1/1 ", shown(tally, appKey))

	foreign := on("c2", true)
	foreign.Labels = nil
	assert.True(t, tally.put(foreign, noon), "it was the hub's")
	assert.Equal(t, "0/0 ", shown(tally, appKey))
	assert.False(t, tally.put(foreign, noon))
}

func TestTheAnswerToAWriteDoesNotUndoTheReportThatCameBeforeIt(t *testing.T) {
	tally := newTally()
	written, reported := on("c1", false), on("c1", true)
	written.ResourceVersion, reported.ResourceVersion = "9", "10"
	assert.True(t, tally.put(reported, noon))
	assert.False(t, tally.put(written, noon))
	assert.Equal(t, "1/1 ", shown(tally, appKey))

	same := on("c1", true)
	same.ResourceVersion = "12"
	assert.False(t, tally.put(same, noon))
	written.ResourceVersion = "11"
	assert.False(t, tally.put(written, noon), "it is older than what changed nothing")
	written.ResourceVersion = "13"
	assert.True(t, tally.put(written, noon))
	assert.Equal(t, "0/1 WaitApplied(1) [Cluster ws/c1]", shown(tally, appKey))
}

func TestAResourceCountIsNewsForTheCluster(t *testing.T) {
	tally := newTally()
	tally.put(on("c1", true), noon)
	d := on("c1", true)
	d.Status.ResourceCounts.Ready = 3
	assert.True(t, tally.put(d, noon))
	d = d.DeepCopy()
	d.Status.Resources = []fleet.BundleDeploymentResource{{Name: "x"}}
	assert.False(t, tally.put(d, noon), "a list nobody shows is not")
}

func TestClustersThatWereNotLookedAtSinceAChangeAreNotReady(t *testing.T) {
	tally := newTally()
	tally.put(on("c1", true), noon)
	tally.put(on("c2", true), noon)
	tally.expect(appKey, in("c1", "c3"), noon)
	assert.Equal(t, "1/3 WaitApplied(2) [Cluster ws/c1; Cluster ws/c3]", shown(tally, appKey))

	assert.Equal(t, []key{appKey}, tally.arrived("c1", []key{appKey, {Name: "unknown"}}, noon))
	assert.Empty(t, tally.arrived("c1", []key{appKey}, noon), "only once")
	assert.Equal(t, "2/3 WaitApplied(1) [Cluster ws/c3]", shown(tally, appKey))
	tally.put(on("c3", false), noon)
	assert.Equal(t, "2/3 WaitApplied(1) [Cluster ws/c3]", shown(tally, appKey), "counted once")
	tally.remove(keyOf(on("c3", false)), noon)
	assert.Equal(t, []key{appKey}, tally.forgetCluster("c3", noon))
	assert.Equal(t, "2/2 ", shown(tally, appKey))
	assert.Empty(t, tally.expecting)
	assert.Empty(t, tally.forgetCluster("c3", noon))
}

func TestManyChangesMakeOneWriteAndNoneIsLost(t *testing.T) {
	tally := newTally()
	assert.Zero(t, tally.wait(appKey, noon))
	tally.put(on("c1", false), noon)
	tally.put(on("c1", true), noon.Add(settle/2))
	assert.Equal(t, settle, tally.wait(appKey, noon))
	assert.Equal(t, settle/4, tally.wait(appKey, noon.Add(settle*3/4)), "from the first change")
	assert.Zero(t, tally.wait(appKey, noon.Add(settle)))
	assert.Zero(t, tally.wait(appKey, noon.Add(time.Hour)))

	_, version := tally.summary(appKey)
	tally.put(on("c2", true), noon.Add(settle))
	tally.wrote(appKey, version, noon.Add(settle))
	assert.Equal(t, settle, tally.wait(appKey, noon.Add(settle)), "what came in the meantime is written as well")
	_, version = tally.summary(appKey)
	tally.wrote(appKey, version, noon.Add(2*settle))
	assert.Zero(t, tally.wait(appKey, noon.Add(settle)))
	tally.wrote(key{Name: "unknown"}, 1, noon)
}

func TestAClusterIsAskedOnlyAboutBundlesThatExpectSomethingThere(t *testing.T) {
	tally, other := newTally(), key{Namespace: "ws", Name: "other"}
	tally.expect(appKey, in("c1", "c2"), noon)
	tally.expect(other, in("c2"), noon)
	assert.Equal(t, map[string]map[key]bool{"c1": {appKey: true}, "c2": {appKey: true, other: true}}, tally.expecting)
	assert.Equal(t, []key{appKey}, tally.expectedIn("c1"))
	assert.ElementsMatch(t, []key{appKey, other}, tally.expectedIn("c2"))
	assert.Empty(t, tally.expectedIn("c3"))

	tally.expect(appKey, in("c2"), noon)
	assert.Empty(t, tally.expectedIn("c1"), "the Bundle has changed again")
	assert.ElementsMatch(t, []key{appKey, other}, tally.forgetCluster("c2", noon))
	assert.Empty(t, tally.expecting)
}

// The event of a Cluster must not cost more because many Bundles are rolled out to others.
func BenchmarkExpectedIn(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tally := newTally()
			for i := range n {
				tally.expect(key{Namespace: "ws", Name: fmt.Sprint("b", i)}, in(fmt.Sprint("c", i)), noon)
			}
			for b.Loop() {
				tally.expectedIn("c1")
			}
		})
	}
}

func TestABundleThatIsGoneIsForgottenWhenNothingIsLeftOfIt(t *testing.T) {
	tally := newTally()
	tally.forget(appKey)
	tally.put(on("c1", true), noon)
	tally.expect(appKey, in("c2"), noon)
	tally.forget(appKey)
	assert.Equal(t, "1/1 ", shown(tally, appKey))
	tally.remove(keyOf(on("c1", true)), noon)
	assert.Empty(t, tally.bundles, "the Bundle went before what was deployed of it")
	assert.Empty(t, tally.expecting)
	assert.Empty(t, tally.deployments)
}

// The cost of an event must not depend on how many BundleDeployments there are.
func BenchmarkTally(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tally := newTally()
			for i := range n {
				tally.put(on(fmt.Sprint("c", i), false), noon)
			}
			for i := 0; b.Loop(); i++ {
				tally.put(on("c1", i%2 == 0), noon)
			}
		})
	}
}
