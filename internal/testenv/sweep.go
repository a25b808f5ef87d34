package testenv

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	muster "github.com/muster-fleet/muster/pkg/hub"
)

// EnvAll has tests do everything of which they otherwise do a sample; scripts/test-all sets it.
const EnvAll = "MUSTER_TEST_ALL"

// EnvSeed is the seed of the samples. Set it to repeat a sample; without it each run takes another one.
const EnvSeed = "MUSTER_TEST_SEED"

// sampleStride is how many writes there are for each one that a sample hits, on average.
const sampleStride = 8

// Sweep hits hubs at their writes. Each kind of blow has a hub on a cluster of its own, and the same scenario is run again
// and again with the blow at another write, until the hub needs fewer writes than that. A sample of the writes is hit, or all
// of them with EnvAll.
type Sweep struct {
	// Least is how many writes the scenario needs at least: a sweep that ends earlier has missed some.
	Least int
	// Blows are the kinds; nil means all.
	Blows []Blow
	// Hub changes the options of the hubs.
	Hub []func(*muster.Options)
}

// Run runs the sweep. Begin prepares a cluster and returns the scenario, which is given a different number n each time and
// has to call strike where its writes begin to count.
func (s Sweep) Run(t *testing.T, begin func(t *testing.T, hub *Cluster) (scenario func(n int, strike func()))) {
	t.Helper()
	if s.Blows == nil {
		s.Blows = []Blow{Kill, Fail, Drop}
	}
	random := sample(t)
	for _, blow := range s.Blows {
		t.Run(strings.ReplaceAll(string(blow), " ", "-"), func(t *testing.T) {
			first, step := 1, func() int { return 1 }
			if All() {
				t.Parallel()
			} else {
				first, step = 1+random.IntN(sampleStride), func() int { return 1 + random.IntN(2*sampleStride-1) }
			}
			hub := BorrowedCluster(t, "hub")
			hub.Configure(t, hub.Reachable())
			supervised := hub.SupervisedHub(t, s.Hub...)
			scenario := begin(t, hub)
			for n := first; ; n += step() {
				began := time.Now()
				scenario(n, func() { supervised.Strike(blow, n) })
				write := supervised.Struck()
				if write == "" {
					require.Greater(t, n, s.Least, "the scenario must need more writes")
					return
				}
				t.Logf("%3d  %-22s %-80s %s; the hub was started %d times", n, blow, write, time.Since(began).Round(time.Millisecond), supervised.Starts())
			}
		})
	}
}

// OneIn returns a function that chooses about one in n of what it is called for, and everything with EnvAll.
func OneIn(t *testing.T, n int) func() bool {
	t.Helper()
	if All() {
		return func() bool { return true }
	}
	random := sample(t)
	return func() bool { return random.IntN(n) == 0 }
}

// Some returns n of the cases in a random order, or all of them with EnvAll.
func Some[T any](t *testing.T, n int, cases []T) []T {
	t.Helper()
	if All() {
		return cases
	}
	cases = slices.Clone(cases)
	sample(t).Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	return cases[:min(n, len(cases))]
}

// All says whether EnvAll is set.
func All() bool { return os.Getenv(EnvAll) != "" }

func sample(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(EnvSeed); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, EnvSeed)
	}
	t.Logf("to repeat this sample: %s=%d", EnvSeed, seed)
	test := fnv.New64()
	_, _ = test.Write([]byte(t.Name()))              // tests take different samples
	return rand.New(rand.NewPCG(seed, test.Sum64())) //nolint:gosec // a sample is no secret
}
