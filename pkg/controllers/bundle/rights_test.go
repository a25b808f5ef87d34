package bundle

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
)

func TestAnAgentMayReadAContentBeforeItIsToldOfIt(t *testing.T) {
	s := newStage(t)
	s.has(t, someCluster(), toAlice())
	s.pass(t, someCluster())
	needed := contentsOf(deployed(t, toAlice()))
	assert.Equal(t, [][]string{needed}, s.rights.allowed)
	assert.Zero(t, s.rights.written, "before the BundleDeployment")
	assert.NotEmpty(t, s.log.take())
}

func TestAnAgentMayReadOnlyWhatItsBundleDeploymentsName(t *testing.T) {
	needed := contentsOf(deployed(t, toAlice()))
	before := deployed(t, toAlice())
	before.Spec.DeploymentID, before.Spec.StagedDeploymentID, before.Labels[fleet.ContentNameLabel] = "s-old:1", "s-old:1", "s-old"
	broken := toAlice()
	broken.Generation, broken.Spec.ContentsID = 2, "x"
	foreign := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "of-a-person"}}
	foreign.Spec.DeploymentID = "s-a-persons:1"
	paused := toAlice()
	paused.Spec.Paused = true
	for _, row := range []struct {
		name   string
		has    []metav1.Object
		errors map[string]error
		want   [][]string
	}{
		{name: "nothing is deployed"},
		{name: "as it is", has: []metav1.Object{toAlice(), deployed(t, toAlice())}, want: [][]string{needed}},
		{name: "another Content", has: []metav1.Object{toAlice(), before}, want: [][]string{needed}},
		{name: "another Content, while paused", has: []metav1.Object{paused, before}, want: [][]string{sorted("s-old", needed[0])}},
		{name: "it could not be changed", has: []metav1.Object{toAlice(), before}, errors: map[string]error{"patch": errBadDay}, want: [][]string{needed, sorted("s-old", needed[0])}},
		{name: "no Bundle any more", has: []metav1.Object{before}, want: [][]string{nil}},
		{name: "a Bundle that cannot be deployed", has: []metav1.Object{broken, before}, want: [][]string{{"s-old"}}},
		{name: "one that is not the hub's", has: []metav1.Object{foreign}, want: [][]string{{"s-a-persons"}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStage(t)
			s.log.errors = row.errors
			s.has(t, append(row.has, someCluster())...)
			s.pass(t, someCluster())
			assert.Equal(t, row.want, s.rights.allowed)
		})
	}
}

func TestABindingThatTheCacheHasNotSeenIsLookedForAgain(t *testing.T) {
	s := newStage(t)
	s.has(t, someCluster(), toAlice())
	s.rights.unseen = true
	_, out := s.pass(t, someCluster())
	assert.Equal(t, expectations.Timeout, out.After)
}

func sorted(a, b string) []string {
	if a > b {
		a, b = b, a
	}
	return []string{a, b}
}

func TestNothingIsDeployedOrDeletedThatTheAgentCouldNotRead(t *testing.T) {
	for title, row := range map[string]struct {
		err    error
		reason string
	}{
		"the API server has a bad day":  {errBadDay, fleet.ReasonError},
		"somebody else's has that name": {&desiredset.ForeignError{Kind: "ClusterRole", Name: "fleet-content-" + home}, fleet.ReasonNameConflict},
	} {
		t.Run(title, func(t *testing.T) {
			s := newStage(t)
			s.rights.err = row.err
			other := deployed(t, toAlice())
			other.Name, other.UID, other.Labels[fleet.BundleNameLabel] = "other", "uid-of-other", "other"
			changed := toAlice()
			changed.Generation, changed.Spec.TargetNamespace = 2, "elsewhere"
			s.has(t, someCluster(), changed, deployed(t, toAlice()), other)
			cluster, out := s.pass(t, someCluster())
			assert.Empty(t, s.log.take())
			assert.Equal(t, row.reason, out.Reason)
			assert.Equal(t, "0/1", cluster.Status.Display.ReadyBundles, "what is there still counts")
		})
	}
}
