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

func TestInstances_clones(t *testing.T) {
	const interval = 15 * time.Minute
	for _, row := range []struct {
		name  string
		beats string // an interval apart; "." is no heartbeat, "-" an agent that reports no instance
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
	} {
		t.Run(row.name, func(t *testing.T) {
			i, got, now := &instances{}, "", noon
			for _, name := range strings.Fields(row.beats) {
				now = now.Add(interval)
				switch name {
				case ".":
				case "-":
					i.add("", now)
				default:
					i.add(name, now)
				}
				i.expire(now, interval)
				got += map[bool]string{true: "c", false: " "}[i.clones]
			}
			assert.Equal(t, row.want, got)
		})
	}
}

// One image of a disk was started at more sites than instances are kept.
func TestInstances_manyClones(t *testing.T) {
	i, now := &instances{}, noon
	for n := range 2 * maxInstances {
		i.add(fmt.Sprint(n), now.Add(time.Duration(n)*time.Second))
	}
	assert.False(t, i.clones)
	i.add("0", now.Add(time.Minute))
	assert.True(t, i.clones)
}

func TestInstances_limit(t *testing.T) {
	i := &instances{}
	for n := range 1000 {
		i.add(fmt.Sprint(n), noon.Add(time.Duration(n)*time.Second))
	}
	assert.Len(t, i.recent, maxInstances)
	assert.Equal(t, "999", i.recent[maxInstances-1].name)
	assert.False(t, i.clones)
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
