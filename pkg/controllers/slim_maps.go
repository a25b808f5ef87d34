package controllers

import (
	"hash/maphash"
	"maps"
)

// mapsKept is how many maps a generation has: the labels and annotations of five thousand clusters. Of objects that are gone the
// two generations keep some 15 MB in memory, at most.
const mapsKept = 16384

// recentMaps are maps that were seen not long ago. The objects of a registration have the same labels and the same annotations, and
// a map with two short entries takes 300 bytes. They come one soon after the other, those of a list as well as those of a
// storm, so that the last few are enough. The zero recentMaps are ready to use.
type recentMaps struct {
	seed       maphash.Seed
	young, old map[uint64]map[string]string
}

// like finds an equal map, or nil.
func (r *recentMaps) like(m map[string]string) map[string]string {
	sum := r.sum(m)
	if found := r.young[sum]; maps.Equal(found, m) {
		return found
	}
	found := r.old[sum]
	if !maps.Equal(found, m) {
		return nil
	}
	r.add(found)
	return found
}

func (r *recentMaps) add(m map[string]string) {
	if r.young == nil || len(r.young) >= mapsKept {
		r.old, r.young = r.young, map[uint64]map[string]string{}
	}
	r.young[r.sum(m)] = m
}

// sum is the same in whichever order a map tells its entries.
func (r *recentMaps) sum(m map[string]string) (sum uint64) {
	if r.seed == (maphash.Seed{}) {
		r.seed = maphash.MakeSeed()
	}
	for key, value := range m {
		sum += maphash.Comparable(r.seed, [2]string{key, value})
	}
	return sum
}
