package deploy_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// sequence is what an agent wrote to the status of a BundleDeployment, in order.
type sequence []shownState

// shownState is the state of a status and its conditions, and how often it was written before another.
type shownState struct {
	text   string
	writes int
}

// otherSequence is a sequence that differs on purpose.
type otherSequence struct {
	why  string
	want sequence
}

// The states of a deployed release, of one whose first deployment failed, and of one that was paused before that.
const (
	isReady     = "Ready Deployed=True Installed=True Monitored=True Ready=True"
	isModified  = "Modified Deployed=True Installed=True Monitored=True Ready=False(Error)"
	isStarting  = "NotReady Deployed=True Installed=True Monitored=True Ready=False(Error)"
	hasFailed   = "ErrApplied Deployed=False(Error)"
	waitsForEnd = "NotReady Deployed=Unknown(Paused) Ready=False(NotReady)"
)

// stateOf is a status as in sequences.txt. The condition Ready of what is not deployed is left out: an unchanged agent keeps it as it
// was; this one sets it to False, for the column of kubectl.
func stateOf(spec fleet.BundleDeploymentSpec, status fleet.BundleDeploymentStatus) string {
	state := fleetstatus.BundleState(spec, status)
	parts := []string{string(state)}
	byType := func(a, b genericcondition.GenericCondition) int { return strings.Compare(a.Type, b.Type) }
	for _, c := range slices.SortedFunc(slices.Values(status.Conditions), byType) {
		if state == fleet.ErrApplied && c.Type == fleet.ConditionReady {
			continue
		}
		text := fmt.Sprintf("%s=%s", c.Type, c.Status)
		if c.Reason != "" {
			text += "(" + c.Reason + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

func (s sequence) add(text string, writes int) sequence {
	if len(s) > 0 && s[len(s)-1].text == text {
		s = slices.Clone(s)
		s[len(s)-1].writes += writes
		return s
	}
	return append(s, shownState{text, writes})
}

// settled leaves out the states in which the objects start, before they are ready or differ again: how many there are depends on the member.
func (s sequence) settled() (kept sequence) {
	for i, shown := range s {
		if shown.text != isStarting || i+1 == len(s) || s[i+1].text != isReady && !strings.HasPrefix(s[i+1].text, string(fleet.Modified)) {
			kept = kept.add(shown.text, shown.writes)
		}
	}
	return kept
}

// differsFrom returns the differences from the recorded sequence: a state that is not recorded or is in another place, another last state, or
// more writes. A state that lasted a moment may be missing; TestWire compares those that lasted.
func (s sequence) differsFrom(recorded sequence) string {
	s, recorded = s.settled(), recorded.settled()
	at, writes, allowed := 0, 0, 0
	for _, shown := range recorded {
		allowed += shown.writes
		if at < len(s) && s[at].text == shown.text {
			at++
		}
	}
	for _, shown := range s {
		writes += shown.writes
	}
	switch {
	case at < len(s):
		return fmt.Sprintf("%q is not recorded there", s[at].text)
	case len(s) > 0 && s[len(s)-1].text != recorded[len(recorded)-1].text:
		return fmt.Sprintf("it ends with %q", s[len(s)-1].text)
	case len(s) == 0 && len(recorded) > 0:
		return "nothing is written"
	case writes > allowed:
		return fmt.Sprintf("%d writes instead of %d", writes, allowed)
	}
	return ""
}

// compared and comparedErrors count the BundleDeployments whose sequence and whose errors were compared.
var compared, comparedErrors int

// otherErrors are the errors of a BundleDeployment that differ on purpose. An error that lasts a moment may be missing.
type otherErrors struct {
	why  string
	want []string
}

// recordWrites records the writes to the status of each BundleDeployment, until the test ends: the states, and each error once.
func (r *replay) recordWrites() (written func(bundleDeployment string) (sequence, []string)) {
	r.t.Helper()
	events, err := r.Fleet.BundleDeployments(r.hub).Watch(r.t.Context(), metav1.ListOptions{})
	require.NoError(r.t, err)
	r.t.Cleanup(events.Stop)
	var mu sync.Mutex
	sequences, said := map[string]sequence{}, map[string][]string{}
	go func() {
		last := map[string]fleet.BundleDeploymentStatus{}
		for event := range events.ResultChan() {
			bd, isBundleDeployment := event.Object.(*fleet.BundleDeployment)
			if !isBundleDeployment || event.Type != watch.Modified || equality.Semantic.DeepEqual(bd.Status, last[bd.Name]) {
				continue
			}
			last[bd.Name] = bd.Status
			mu.Lock()
			sequences[bd.Name] = sequences[bd.Name].add(stateOf(bd.Spec, bd.Status), 1)
			deployed := fleetstatus.Condition(bd.Status.Conditions, fleet.ConditionDeployed)
			if deployed.Status == corev1.ConditionFalse && !slices.Contains(said[bd.Name], oneLine(deployed.Message)) {
				said[bd.Name] = append(said[bd.Name], oneLine(deployed.Message))
			}
			mu.Unlock()
		}
	}()
	return func(bundleDeployment string) (sequence, []string) {
		mu.Lock()
		defer mu.Unlock()
		return sequences[bundleDeployment], slices.Clone(said[bundleDeployment])
	}
}

// requireErrors compares the errors in the status of each BundleDeployment of a scene with those that an unchanged agent logged, or with what
// is expected instead.
func (r *replay) requireErrors(stages []recordedStage, written func(string) (sequence, []string), others map[string]otherErrors) {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "wire", "14-agent-errors.txt"))
	require.NoError(r.t, err)
	recorded := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		name, message, _ := strings.Cut(strings.TrimSpace(line), " ")
		recorded[name] = append(recorded[name], strings.TrimPrefix(message, "failed deploying bundle: "))
	}
	made := map[string]bool{}
	for _, stage := range stages {
		for _, b := range stage.Bundles {
			made[b.Name] = true
		}
	}
	for name, want := range recorded {
		if !made[name] {
			continue
		}
		_, got := written(name)
		if other, differs := others[name]; differs {
			assert.NotElementsMatch(r.t, want, got, "%s: they are as recorded, although %s", name, other.why)
			for _, message := range got {
				assert.Contains(r.t, other.want, message, name)
			}
		} else {
			assert.ElementsMatch(r.t, want, got, name)
		}
		comparedErrors++
	}
}

// requireSequences compares the writes to each BundleDeployment of a scene with sequences.txt, or with the sequence that is expected instead.
func (r *replay) requireSequences(stages []recordedStage, written func(string) (sequence, []string), others map[string]otherSequence) {
	r.t.Helper()
	recorded, made := recordedSequences(r.t), map[string]bool{}
	for _, stage := range stages {
		for _, b := range stage.Bundles {
			made[b.Name] = made[b.Name] || len(b.BundleDeployments) > 0
		}
	}
	isRecorded := func(name string) bool { return made[name] }
	if !slices.ContainsFunc(slices.Collect(maps.Keys(recorded)), isRecorded) {
		return // of this scene only the final states are recorded
	}
	for name := range made {
		if !made[name] {
			continue
		}
		other, differs := others[name]
		want := recorded[name]
		if differs {
			want = other.want
		}
		eventually(r.t, func() (bool, string) { // the watch may be late
			got, _ := written(name)
			difference := got.differsFrom(want)
			if difference == "" && differs && got.differsFrom(recorded[name]) == "" {
				difference = "it is as recorded, although " + other.why
			}
			return difference == "", fmt.Sprintf("%s: %s; want\n%v\ngot\n%v", name, difference, want, got)
		})
		compared++
	}
}

// recordedSequences reads sequences.txt: a line has the BundleDeployment, the number of writes, and the state.
func recordedSequences(t *testing.T) map[string]sequence {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "wire", "sequences.txt"))
	require.NoError(t, err)
	sequences := map[string]sequence{}
	for line := range strings.Lines(string(data)) {
		var name string
		var writes int
		_, err := fmt.Sscan(line, &name, &writes)
		require.NoError(t, err, line)
		sequences[name] = sequences[name].add(strings.SplitN(strings.TrimSpace(line), " ", 3)[2], writes)
	}
	return sequences
}
