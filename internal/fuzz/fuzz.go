// Package fuzz makes values of any type out of the bytes that Go's fuzzer gives, for the fuzz tests of decisions.
package fuzz

import (
	"math/rand/v2"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"
)

// epoch is when everything happens, give or take a few seconds: moments that are far apart decide nothing.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	seconds      = 4
	mostElements = 3
	nilChance    = 0.3
	oddOneIn     = 8 // strings
)

// From fills values from the data, the same ones each time. Strings are mostly one of the words, so that it happens often that
// two are equal; the rest is anything.
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

// Shuffled is a copy in another order, the same one each time.
func Shuffled[T any](data []byte, of []T) []T {
	var seed uint64
	From(data).Fill(&seed)
	shuffled := slices.Clone(of)
	//nolint:gosec // the same order each time is what is wanted
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	return shuffled
}

// Seeds are corpora to begin with, for tests that take bytes to fill values from.
func Seeds() [][]byte {
	const count, length = 64, 256
	source := rand.NewChaCha8([32]byte{})
	seeds := make([][]byte, count)
	for i := range seeds {
		seeds[i] = make([]byte, length)
		_, _ = source.Read(seeds[i]) // it never fails
	}
	return seeds
}
