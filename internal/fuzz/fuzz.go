// Package fuzz creates values of any type from the bytes of Go's fuzzer, for the fuzz tests of decisions.
package fuzz

import (
	"math/rand/v2"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"
)

// epoch is the start of the few seconds that contain all times. With larger distances, most comparisons would have the same result.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	seconds      = 4
	mostElements = 3
	nilChance    = 0.3
	oddOneIn     = 8 // strings
)

// From fills values from the data, always the same ones. Most strings are one of the words, so that two are often equal; the others are
// random.
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
		func(t *time.Time, c randfill.Continue) { *t = moment(c) },
		func(t *metav1.Time, c randfill.Continue) { t.Time = moment(c) },
	)
}

func moment(c randfill.Continue) time.Time {
	return epoch.Add(time.Duration(c.Intn(seconds)) * time.Second)
}

// Shuffled returns a copy in another order, always the same one.
func Shuffled[T any](data []byte, of []T) []T {
	var seed uint64
	From(data).Fill(&seed)
	shuffled := slices.Clone(of)
	//nolint:gosec // the order must be reproducible
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	return shuffled
}

// Seeds are initial inputs for tests that fill values from bytes.
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
