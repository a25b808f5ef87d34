package liveness

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

func TestTwoAgentsWithOneIdentityAreNoticed(t *testing.T) {
	const interval = 15 * time.Minute
	for _, row := range []struct {
		name  string
		beats string // an interval apart; "." is silence, "-" an agent that gives itself no name
		want  string // after each: c where there are clones
	}{
		{"one agent", "A A A A", "    "},
		{"one that is started again and again", "A B C D E F G H I J K L", "            "},
		{"a copy of it", "A B A B A", "  ccc"},
		{"three of them", "A B C A B C", "   ccc"},
		{"a copy that stops", "A B A A A A A", "  cc   "},
		{"both stop", "A B A . . . .", "  cc   "},
		{"the second has beaten before it was copied", "A A B B A", "    c"},
		{"one that was away for long, and then both are there", "A B . . . A B A", "       c"},
		{"agents that give themselves no name", "- - - A - B", "      "},
		{"nothing at all", ". . .", "   "},
	} {
		t.Run(row.name, func(t *testing.T) {
			i, got, now := &instances{}, "", noon
			for _, name := range strings.Fields(row.beats) {
				now = now.Add(interval)
				switch name {
				case ".":
				case "-":
					i.heard("", now)
				default:
					i.heard(name, now)
				}
				i.fade(now, interval)
				got += map[bool]string{true: "c", false: " "}[i.clones]
			}
			assert.Equal(t, row.want, got)
		})
	}
}

func TestWhatAgentsSayOfThemselvesFillsNoMemory(t *testing.T) {
	i := &instances{}
	for n := range 1000 {
		i.heard(fmt.Sprint(n), noon.Add(time.Duration(n)*time.Second))
	}
	assert.Len(t, i.seen, mostInstances)
	assert.Contains(t, i.seen, "999")
	assert.NotContains(t, i.seen, "0")
	assert.False(t, i.clones)
}

// beatAs is a heartbeat of one of several agents.
func (d *day) beatAs(instance string) {
	d.beat()
	d.cluster.Status.Agent.Instance = instance
	d.pass()
}

func TestAHeartbeatIsHeardOnce(t *testing.T) {
	d := newDay(t, config.Hub{})
	d.pass()
	d.beatAs("A")
	d.beatAs("B")
	for range 5 {
		d.pass()
	}
	assert.False(t, d.HasClones(d.cluster), "looking again is not hearing again")
	d.beatAs("A")
	assert.True(t, d.HasClones(d.cluster), "all of it within one second")
	d.clock.Step(grace)
	d.beatAs("A")
	assert.False(t, d.HasClones(d.cluster))
	assert.False(t, d.HasClones(&fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}}))
	d.Forget("ns/member")
	assert.Empty(t, d.instances)
}

func TestAHubThatStartsKeepsWhatWasKnownOfClones(t *testing.T) {
	d := newDay(t, config.Hub{})
	result.Set(&d.cluster.Status.Conditions, fleet.ConditionRegistered, result.Stalled(fleet.ReasonCloneDetected, ""), noon)
	d.beatAs("A")
	assert.True(t, d.HasClones(d.cluster))
	d.clock.Step(grace - tick)
	d.beatAs("A")
	assert.True(t, d.HasClones(d.cluster), "the other may be about to beat")
	d.clock.Step(tick)
	d.beatAs("A")
	assert.False(t, d.HasClones(d.cluster))
}
