package shard

import "slices"

// share is how many shards each of the live replicas holds, by its place among them: as many as the others, or one more.
func share(place, live int) int {
	n := Count / live
	if place < Count%live {
		n++
	}
	return n
}

// decide says what a replica does about its share: which of the free shards it takes, and which of its own it gives back.
// holders has "" for those that are free. All replicas decide alike, each for itself; where they differ for a moment on who is
// live, the Leases arbitrate.
func decide(me string, live []string, holders [Count]string) (take, giveBack []Shard) {
	live = slices.Sorted(slices.Values(live))
	place := slices.Index(live, me)
	if place < 0 {
		return nil, nil // the others do not know of this one yet
	}
	mine, free := []Shard{}, []Shard{}
	for i := range holders {
		s := Shard((i + place*Count/len(live)) % Count) // each begins elsewhere, so that two seldom want the same
		switch holders[s] {
		case me:
			mine = append(mine, s)
		case "":
			free = append(free, s)
		}
	}
	quota := share(place, len(live))
	if surplus := len(mine) - quota; surplus > 0 {
		return nil, mine[len(mine)-surplus:]
	}
	return free[:min(len(free), quota-len(mine))], nil
}
