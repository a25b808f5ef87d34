// Package sample takes random samples of long sweeps, and of the tests that take long.
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
	envLong = "MUSTER_TEST_LONG" // if it is "sample", one in oneInLong of the long tests runs; scripts/test sets it for all packages
)

// oneInLong is the number of runs of all packages, with successive seeds, that take all long tests.
const oneInLong = 12

// All reports whether tests run everything instead of a sample.
func All() bool { return os.Getenv(envAll) != "" }

// Long says that a test takes more than about four seconds in a run of all packages. Such a run takes a sample of the long tests, and Long skips a
// test that is not in the sample. Runs with successive seeds take different tests.
func Long(t *testing.T) {
	t.Helper()
	if os.Getenv(envLong) != "sample" || All() {
		return
	}
	if !takes(seedOf(t), t.Name()) {
		t.Skip("not in this sample of the long tests: scripts/test with its package runs it, and so does make test-all")
	}
}

// takes reports whether the sample with the seed has the test.
func takes(seed uint64, test string) bool { return (seed+hashOf(test))%oneInLong == 0 }

// OneIn returns a function that chooses about one of n calls.
func OneIn(t *testing.T, n int) func() bool {
	t.Helper()
	if All() {
		return func() bool { return true }
	}
	random := Random(t)
	return func() bool { return random.IntN(n) == 0 }
}

// Some returns n of the cases in a random order.
func Some[T any](t *testing.T, n int, cases []T) []T {
	t.Helper()
	if All() {
		return cases
	}
	cases = slices.Clone(cases)
	Random(t).Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	return cases[:min(n, len(cases))]
}

// Numbers yields about one of stride positive numbers, in their order and without an end.
func Numbers(t *testing.T, stride int) iter.Seq[int] {
	t.Helper()
	if All() {
		stride = 1
	}
	random := Random(t)
	return func(yield func(int) bool) {
		for n := 1 + random.IntN(stride); yield(n); n += 1 + random.IntN(2*stride-1) {
		}
	}
}

// Random returns a source of random numbers whose seed is printed.
func Random(t *testing.T) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seedOf(t), hashOf(t.Name()))) //nolint:gosec // a sample is no secret
}

func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(envSeed); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, envSeed)
	}
	t.Logf("to repeat this sample: %s=%d", envSeed, seed)
	return seed
}

// hashOf lets tests take different samples.
func hashOf(name string) uint64 {
	hash := fnv.New64()
	_, _ = hash.Write([]byte(name))
	return hash.Sum64()
}
