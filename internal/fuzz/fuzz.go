// Package fuzz creates values of any type from the bytes of Go's fuzzer, for the fuzz tests of decisions.
package fuzz

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// epoch is the start of the few seconds that contain all times, so that two times are often equal.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	seconds      = 4
	mostElements = 3
	nilChance    = 0.3
	oddOneIn     = 8 // one string in so many is random
)

// From returns a Filler that creates values from the data; the same data gives the same values. Most strings are one of the words, so that two
// strings are often equal; the others are random.
func From(data []byte, words ...string) *randfill.Filler {
	words = append(words, "")
	return randfill.NewFromGoFuzz(data).AllowUnexportedFields(true).NilChance(nilChance).NumElements(0, mostElements).Funcs(
		func(s *string, c randfill.Continue) {
			*s = words[c.Intn(len(words))]
			if c.Intn(oddOneIn) == 0 {
				*s = c.String(0)
			}
		},
		func(v *any, c randfill.Continue) { *v = c.Bool() },
		func(m *fleet.GenericMap, c randfill.Continue) { c.Fill(&m.Data) }, // no user writes the packed form
		func(t *time.Time, c randfill.Continue) { *t = moment(c) },
		func(t *metav1.Time, c randfill.Continue) { t.Time = moment(c) },
	)
}

func moment(c randfill.Continue) time.Time {
	return epoch.Add(time.Duration(c.Intn(seconds)) * time.Second)
}

// Shuffled returns a copy in an order that depends only on the data.
func Shuffled[T any](data []byte, of []T) []T {
	var seed uint64
	From(data).Fill(&seed)
	shuffled := slices.Clone(of)
	//nolint:gosec // the order must be reproducible
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	return shuffled
}

// AddSeeds adds the seeds to a fuzz test with one input.
func AddSeeds(f *testing.F) {
	for _, seed := range Seeds() {
		f.Add(seed)
	}
}

// Seeds returns initial inputs for tests that use From.
func Seeds() [][]byte {
	const count, length = 64, 256
	source := rand.NewChaCha8([32]byte{})
	seeds := make([][]byte, count)
	for i := range seeds {
		seeds[i] = make([]byte, length)
		_, _ = source.Read(seeds[i]) // always succeeds
	}
	return seeds
}
