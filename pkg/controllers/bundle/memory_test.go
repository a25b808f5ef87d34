package bundle

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Each Cluster has a Bundle of its own for its agent, so what is remembered of a Bundle is there ten thousand times. The
// smallest map takes the room of eight entries.
func TestWhatIsRememberedOfTheBundleOfOneAgentIsSmall(t *testing.T) {
	const bundles, most = 2000, 2400
	var (
		tally = newTally()
		plans plans
	)
	before := heap()
	for i := range bundles {
		b := toAlice()
		b.Name = fmt.Sprint("agent-", i)
		_, err := plans.of(b).variant([]int{0})
		require.NoError(t, err)
		tally.expect(keyOf(b), in("alice"), noon)
		report(tally, b, false)
		tally.arrived("alice", []key{keyOf(b)}, noon)
		report(tally, b, true)
	}
	each := (heap() - before) / bundles
	assert.Less(t, each, most, "bytes of each Bundle")
	runtime.KeepAlive(tally)
	runtime.KeepAlive(&plans)
}

// report counts what the agent of a Bundle's only Cluster says.
func report(tally *tally, b *fleet.Bundle, ready bool) {
	d := on("alice", ready)
	d.Name, d.Labels[fleet.BundleNameLabel] = b.Name, b.Name
	tally.put(d, noon)
}

// heap is how many bytes are in use when the garbage is gone.
func heap() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}
