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

func TestHolders_clones(t *testing.T) {
	const interval = 15 * time.Minute
	for _, row := range []struct {
		name  string
		beats string // an interval apart; "." is no heartbeat, "-" an agent that reports no instance, "Ax" one of instance A with credential x
		want  string // after each: c where there are clones
	}{
		{"one agent", "A A A A", "    "},
		{"one agent that restarts", "A B C D E F G H I J K L", "            "},
		{"a copy", "A B A B A", "  ccc"},
		{"three of them", "A B C A B C", "   ccc"},
		{"a copy that stops", "A B A A A A A", "  cc   "},
		{"both stop", "A B A . . . .", "  cc   "},
		{"a copy with a late heartbeat", "A A B B A", "    c"},
		{"a copy after a long pause", "A B . . . A B A", "       c"},
		{"agents without an instance", "- - - A - B", "      "},
		{"nothing at all", ". . .", "   "},
		{"renewals", "Ax Ax Ay Ay Az Az", "      "},
		{"a restart with a renewed credential", "Ax Ay By By", "    "},
		{"a restart before the renewed credential was stored", "Ax Ay Bx Bx Bz", "     "},
		{"a member that was restored from a backup", "Ax Ay Bx Bx", "    "},
		{"a hub that makes the Lease again", "Ax A Ax Ax", "    "},
		{"a hub of an earlier release before", "A Ax Ax Ay", "    "},
		{"a thief who sends the instance of the agent", "Ax At Ax Ax Ax Ax", "  cc  "},
		{"a thief who also renews", "Ax Ay At Ay Au Ay", "   ccc"},
		{"a thief, and a restart", "Ax At Bx Bt Bx", "    c"},
		{"a copy of a running process, after it has renewed", "Ax Ax Ay Ax", "   c"},
	} {
		t.Run(row.name, func(t *testing.T) {
			i, got, now := &holders{}, "", noon
			for _, name := range strings.Fields(row.beats) {
				now = now.Add(interval)
				switch name {
				case ".":
				case "-":
					i.add(holder{}, now)
				default:
					i.add(holder{instance: name[:1], credential: name[1:]}, now)
				}
				i.expire(now, interval)
				got += map[bool]string{true: "c", false: " "}[i.clones]
			}
			assert.Equal(t, row.want, got)
		})
	}
}

// One image of a disk was started at more sites than holders are kept.
func TestHolders_manyClones(t *testing.T) {
	i, now := &holders{}, noon
	for n := range 2 * maxHolders {
		i.add(holder{instance: fmt.Sprint(n)}, now.Add(time.Duration(n)*time.Second))
	}
	assert.False(t, i.clones)
	i.add(holder{instance: "0"}, now.Add(time.Minute))
	assert.True(t, i.clones)
}

func TestHolders_limit(t *testing.T) {
	i := &holders{}
	for n := range 1000 {
		i.add(holder{instance: fmt.Sprint(n)}, noon.Add(time.Duration(n)*time.Second))
	}
	assert.Len(t, i.recent, maxHolders)
	assert.Equal(t, "999", i.recent[maxHolders-1].instance)
	assert.False(t, i.clones)
}

// The message names the credentials only if the instances do not differ.
func TestHolders_names(t *testing.T) {
	h := &holders{}
	for _, by := range []holder{{"B", "JTI=2"}, {"A", "JTI=1"}, {"B", "JTI=3"}, {"C", ""}, {"C", "JTI=4"}, {}} {
		h.add(by, noon)
	}
	h.expectClones(noon)
	assert.Equal(t, []string{"A", "B with credential JTI=2", "B with credential JTI=3", "C", "C with credential JTI=4"}, h.names())
}

// beatAs is a heartbeat of one of several agents.
func (d *detectorTest) beatAs(instance string) {
	d.beat()
	d.cluster.Status.Agent.Instance = instance
	d.pass()
}

func TestHasClones(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	d.pass()
	d.beatAs("A")
	d.beatAs("B")
	for range 5 {
		d.pass()
	}
	assert.False(t, d.HasClones(d.cluster), "another pass is not another heartbeat")
	d.beatAs("A")
	assert.True(t, d.HasClones(d.cluster), "within the same second")
	assert.Equal(t, []string{"A", "B"}, d.Instances(d.cluster))
	d.clock.Step(grace)
	d.beatAs("A")
	assert.False(t, d.HasClones(d.cluster))
	assert.False(t, d.HasClones(&fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}}))
}

func TestHasClones_afterRestart(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	result.Set(&d.cluster.Status.Conditions, fleet.ConditionRegistered, result.Stalled(fleet.ReasonCloneDetected, ""), noon)
	d.beatAs("A")
	assert.True(t, d.HasClones(d.cluster))
	d.clock.Step(grace - tick)
	d.beatAs("A")
	assert.True(t, d.HasClones(d.cluster), "the other instance may still send heartbeats")
	d.clock.Step(tick)
	d.beatAs("A")
	assert.False(t, d.HasClones(d.cluster))
}
