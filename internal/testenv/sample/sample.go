// Package sample takes random samples of long sweeps.
package sample

import (
	"hash/fnv"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	envAll  = "MUSTER_TEST_ALL"  // run everything instead of a sample; scripts/test-all sets it
	envSeed = "MUSTER_TEST_SEED" // the seed of an earlier run, to repeat its sample
)

// All reports whether tests run everything instead of a sample.
func All() bool { return os.Getenv(envAll) != "" }

// OneIn returns a function that chooses about one of n calls.
func OneIn(t *testing.T, n int) func() bool {
	t.Helper()
	if All() {
		return func() bool { return true }
	}
	random := newRandom(t)
	return func() bool { return random.IntN(n) == 0 }
}

// Some returns n of the cases in a random order.
func Some[T any](t *testing.T, n int, cases []T) []T {
	t.Helper()
	if All() {
		return cases
	}
	cases = slices.Clone(cases)
	newRandom(t).Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	return cases[:min(n, len(cases))]
}

// Numbers yields about one of stride positive numbers, in their order and without an end.
func Numbers(t *testing.T, stride int) iter.Seq[int] {
	t.Helper()
	if All() {
		stride = 1
	}
	random := newRandom(t)
	return func(yield func(int) bool) {
		for n := 1 + random.IntN(stride); yield(n); n += 1 + random.IntN(2*stride-1) {
		}
	}
}

func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(envSeed); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, envSeed)
	}
	t.Logf("to repeat this sample: %s=%d", envSeed, seed)
	test := fnv.New64()
	_, _ = test.Write([]byte(t.Name()))              // tests take different samples
	return rand.New(rand.NewPCG(seed, test.Sum64())) //nolint:gosec // a sample is no secret
}
