package registration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestDeletableRefusedByAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		name    string
		age     time.Duration
		decided bool
		deleted bool
	}{
		{"of a moment ago", 0, false, false},
		{"the last moment", RefusedLifetime - 1, false, false},
		{"the moment", RefusedLifetime, false, true},
		{"long ago", 100 * RefusedLifetime, false, true},
		{"long ago, and a person has decided", 100 * RefusedLifetime, true, false},
		{"the API server's clock is ahead", -time.Hour, false, false},
	} {
		got := DeletableRefused([]Refused{{Name: "r", Created: now.Add(-row.age), Decided: row.decided}}, now)
		assert.Equal(t, row.deleted, len(got) == 1, row.name)
	}
}

func TestDeletableRefusedByNumber(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	var all []Refused
	for n := range MostRefused + 3 {
		all = append(all, Refused{Name: fmt.Sprintf("r-%04d", n), Created: now.Add(time.Duration(n)*time.Second - time.Hour)})
	}
	all = append(all, Refused{Name: "denied", Created: now.Add(-2 * time.Hour), Decided: true})
	assert.Empty(t, DeletableRefused(all[3:], now))
	for range 3 {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		assert.ElementsMatch(t, []string{"r-0000", "r-0001", "r-0002"}, DeletableRefused(all, now))
	}
	same := make([]Refused, MostRefused+1)
	for n := range same {
		same[n] = Refused{Name: fmt.Sprintf("r-%04d", n), Created: now}
	}
	assert.Equal(t, []string{"r-0000"}, DeletableRefused(same, now), "of one second, always the same one")
}
