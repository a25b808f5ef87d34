package shard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// held writes down who holds which shard, one letter each; a dot is free.
func held(letters string) (holders [Count]string) {
	for s, letter := range letters {
		if letter != '.' {
			holders[s] = string(letter)
		}
	}
	return holders
}

func TestDecide(t *testing.T) {
	for name, test := range map[string]struct {
		me, live, held string
		take, giveBack []Shard
	}{
		"alone, all are taken":                             {"a", "a", "................", []Shard{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, nil},
		"alone, and has all":                               {"a", "a", "aaaaaaaaaaaaaaaa", nil, nil},
		"the others do not know of it":                     {"a", "b", "................", nil, nil},
		"another comes: half is given back":                {"a", "ab", "aaaaaaaaaaaaaaaa", nil, []Shard{8, 9, 10, 11, 12, 13, 14, 15}},
		"what another has is not taken":                    {"b", "ab", "aaaaaaaaaaaaaaaa", nil, nil},
		"what was given back is taken":                     {"b", "ab", "aaaaaaaa........", []Shard{8, 9, 10, 11, 12, 13, 14, 15}, nil},
		"each begins elsewhere":                            {"b", "abcd", "................", []Shard{4, 5, 6, 7}, nil},
		"no more than the share":                           {"b", "ab", "aaa....bbbbbbb..", []Shard{14}, nil},
		"what is left of one that is gone":                 {"a", "ab", "aaaaa...ccccbbbb", []Shard{5, 6, 7}, nil},
		"one of three has one more":                        {"a", "abc", "aaaaaaaaaaaaaaaa", nil, []Shard{6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
		"the others do not":                                {"b", "abc", "aaaaaa..........", []Shard{6, 7, 8, 9, 10}, nil},
		"on its way to another is neither free nor mine":   {"a", "ab", "aaaaaaa>>>>>>>>>", nil, nil},
		"more replicas than shards: one is left with none": {"q", "abcdefghijklmnopq", "abcdefghijklmnop", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			take, giveBack := decide(test.me, strings.Split(test.live, ""), held(test.held))
			slices.Sort(take)
			slices.Sort(giveBack)
			assert.Equal(t, test.take, nilIfEmpty(take))
			assert.Equal(t, test.giveBack, nilIfEmpty(giveBack))
		})
	}
}

func nilIfEmpty(shards []Shard) []Shard {
	if len(shards) == 0 {
		return nil
	}
	return shards
}

// Whoever comes and goes, in whatever order they act: all shards are held in the end, by each as many as by the others, and
// nothing moves any more.
func TestBalanceComesToRest(t *testing.T) {
	holders := [Count]string{}
	for _, live := range []string{"a", "ab", "abc", "abcd", "bcd", "d", "adz", "abcdefghijklmnop", "abcdefghijklmnopqr", "ar"} {
		names := strings.Split(live, "")
		for s, holder := range holders {
			if !slices.Contains(names, holder) {
				holders[s] = ""
			}
		}
		rounds := 0
		for moved := true; moved; rounds++ {
			require.Less(t, rounds, 5, "%s: %v", live, holders)
			moved = false
			for _, me := range names {
				take, giveBack := decide(me, names, holders)
				for _, s := range take {
					require.Empty(t, holders[s])
					holders[s], moved = me, true
				}
				for _, s := range giveBack {
					require.Equal(t, me, holders[s])
					holders[s], moved = "", true
				}
			}
		}
		counts := map[string]int{}
		for _, holder := range holders {
			counts[holder]++
		}
		require.NotContains(t, counts, "", live)
		most := slices.Max(slices.Collect(maps.Values(counts)))
		require.Equal(t, (Count+len(names)-1)/len(names), most, "%s: %v", live, counts)
		require.Len(t, counts, min(len(names), Count), fmt.Sprint(live))
	}
}
