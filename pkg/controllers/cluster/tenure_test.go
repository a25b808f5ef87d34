package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/shard"
)

func TestAFarewellBeginsWhenItsHubTakesTheClusterOver(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(noon)
	member := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "member"}}
	alone := newTenure(clock, nil)
	sharing := newTenure(clock, shard.NewGate())
	at := func(after time.Duration) time.Time {
		clock.SetTime(noon.Add(after))
		return clock.Now()
	}

	at(time.Hour)
	assert.Equal(t, noon, alone.of(member), "with the start of a hub that is alone")
	var mine, others shard.Set
	mine[shard.OfCluster(member)] = true
	for s := range others {
		others[s] = !mine[s]
	}
	sharing.begin(others)
	sharing.begin(mine)
	at(2 * time.Hour)
	sharing.begin(others)
	assert.Equal(t, noon.Add(time.Hour), sharing.of(member), "with the shard")

	sharing.end(mine)
	taken := at(3 * time.Hour)
	assert.Equal(t, taken, sharing.of(member), "with the first look, which may come before the word")
	taken = at(4 * time.Hour)
	sharing.begin(mine)
	assert.Equal(t, taken, sharing.of(member), "word of a take always counts: what stood there may be of an earlier one")
}
