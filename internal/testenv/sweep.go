package testenv

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// sampleStride is the average distance between two writes of a sample.
const sampleStride = 16

// Sweep repeats a scenario with a fault at another write of the hub each time, until the scenario needs fewer writes than that. It hits a
// sample of the writes. Each kind of fault has its own hub.
type Sweep struct {
	// Least is the number of writes that the scenario needs at least. A sweep that ends earlier fails.
	Least int
	// Blows are the kinds; nil means all.
	Blows []Blow
	// Hub changes the options of the hubs.
	Hub []func(*muster.Options)
}

// Run runs the sweep. Begin prepares a cluster and returns the scenario. The scenario gets another number n each time and calls strike where
// its writes begin to count.
func (s Sweep) Run(t *testing.T, begin func(t *testing.T, hub *Cluster) (scenario func(n int, strike func()))) {
	t.Helper()
	if s.Blows == nil {
		s.Blows = []Blow{Kill, Fail, Drop}
	}
	for _, blow := range s.Blows {
		t.Run(strings.ReplaceAll(string(blow), " ", "-"), func(t *testing.T) {
			if sample.All() {
				t.Parallel()
			}
			hub := BorrowedCluster(t, "hub")
			hub.Configure(t, hub.Reachable())
			supervisor := hub.supervisedHub(t, s.Hub...)
			scenario := begin(t, hub)
			for n := range sample.Numbers(t, sampleStride) {
				began := time.Now()
				scenario(n, func() { supervisor.strike(blow, n) })
				write := supervisor.hit()
				if write == "" {
					t.Logf("%3d  the scenario needed only %d writes", n, supervisor.writeCount())
					require.GreaterOrEqual(t, supervisor.writeCount(), s.Least, "the scenario must need more writes")
					return
				}
				t.Logf("%3d  %-22s %-80s %s; the hub was started %d times", n, blow, write, time.Since(began).Round(time.Millisecond), supervisor.startCount())
			}
		})
	}
}
