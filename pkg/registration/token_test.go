package registration

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestUsesState(t *testing.T) {
	for _, row := range []struct {
		name      string
		uses      Uses
		countedAs string
		want      UseState
	}{
		{"a token without a limit", Uses{Count: 1 << 40}, "", UseUncounted},
		{"the limit is not reached", Uses{Limit: ptr.To(int32(2)), Count: 1}, "", UseUncounted},
		{"the limit is reached", Uses{Limit: ptr.To(int32(2)), Count: 2}, "", UseRefused},
		{"the limit was lowered below the number of uses", Uses{Limit: ptr.To(int32(1)), Count: 2}, "", UseRefused},
		{"the status of the token names the request", Uses{Limit: ptr.To(int32(1)), Count: 1, Pending: []string{"other", "me"}}, "", UseCounted},
		{"the status of the request names the token", Uses{Limit: ptr.To(int32(1)), Count: 1}, "token", UseCounted},
		{"counted for another token of that name", Uses{}, "earlier", UseUncounted},
		{"counted for another token of that name, and this one is used up", Uses{Limit: ptr.To(int32(1)), Count: 1}, "earlier", UseRefused},
	} {
		row.uses.UID = "token"
		assert.Equal(t, row.want, row.uses.State("me", row.countedAs), row.name)
	}
}

func TestUsesAdd(t *testing.T) {
	at := func(name string, second int64) Use {
		return Use{UID: "uid-" + name, Name: name, Created: time.Unix(second, 0)}
	}
	a, b, c := at("a", 3), at("b", 1), at("c", 1)
	full := make([]string, MaxPendingUses-1)
	for i := range full {
		full[i] = fmt.Sprint(i)
	}
	for _, row := range []struct {
		name           string
		uses           Uses
		asking         []Use
		count          int64
		added, waiting []Use
	}{
		{"nobody asks", Uses{Count: 7}, nil, 7, nil, nil},
		{"without a limit all are counted", Uses{}, []Use{a, b, c}, 3, []Use{b, c, a}, nil},
		{"with a limit the oldest are counted, and of equally old ones the first by name", Uses{Limit: ptr.To(int32(1))}, []Use{a, c, b}, 1, []Use{b}, nil},
		{"a use that was counted is not counted again", Uses{Count: 1, Pending: []string{b.UID}}, []Use{a, b}, 2, []Use{a}, nil},
		{"a use that was counted is not counted again when the limit is reached", Uses{Count: 1, Limit: ptr.To(int32(1)), Pending: []string{b.UID}}, []Use{a, b}, 1, nil, nil},
		{"those for whom there is no place have to wait", Uses{Pending: full}, []Use{a, b, c}, 1, []Use{b}, []Use{c, a}},
		{"those for whom there is no place are refused if the limit is reached", Uses{Limit: ptr.To(int32(1)), Pending: full}, []Use{a, b, c}, 1, []Use{b}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := slices.Clone(row.uses.Pending)
			after, added, waiting := row.uses.Add(row.asking)
			assert.Equal(t, row.count, after.Count)
			assert.Equal(t, row.added, added)
			assert.Equal(t, row.waiting, waiting)
			assert.Len(t, after.Pending, len(before)+len(added))
			assert.Equal(t, before, row.uses.Pending, "what is in the cache is not written to")
		})
	}
}

func TestUsesRelease(t *testing.T) {
	before := Uses{Count: 3, Pending: []string{"a", "b", "c"}}
	after := before.Release(func(uid string) bool { return uid != "b" })
	assert.Equal(t, Uses{Count: 3, Pending: []string{"b"}}, after)
	assert.Equal(t, []string{"a", "b", "c"}, before.Pending)
}

func TestUsesUsedUp(t *testing.T) {
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "tok", UID: "u"}}
	token.Spec.UsageLimit, token.Status.Uses, token.Status.PendingUses = ptr.To(int32(2)), 2, []string{"x"}
	uses := UsesOf(token)
	assert.Equal(t, Uses{Token: "tok", UID: "u", Limit: ptr.To(int32(2)), Count: 2, Pending: []string{"x"}}, uses)
	refusal := uses.UsedUp()
	assert.Equal(t, fleet.ReasonTokenUsedUp, refusal.Reason)
	assert.Equal(t, "ClusterRegistrationToken tok has been used 2 times and spec.usageLimit is 2; raise it, or register with a new token", refusal.Message)
}

// simulation simulates hubs that may be stopped before each write of the token or of a request.
type simulation struct {
	*rand.Rand
	token   Uses
	says    map[string]string // the token UID in the status of each request
	counted map[string]int    // how often each request was counted, which no hub knows
}

// TestUsesSurviveCrashes stops hubs between any two writes of the token and of the requests.
func TestUsesSurviveCrashes(t *testing.T) {
	for seed := range int64(200) {
		w := &simulation{Rand: rand.New(rand.NewSource(seed)), says: map[string]string{}, counted: map[string]int{}}
		w.token = Uses{UID: "token"}
		if w.Intn(2) == 0 {
			w.token.Limit = ptr.To(int32(1 + w.Intn(10)))
		}
		names := make([]string, 1+w.Intn(20))
		for i := range names {
			names[i] = fmt.Sprint("request-", i)
		}
		for range 200 {
			w.runHub(names)
		}
		w.requireExact(t, seed, names)
	}
}

// runHub runs one hub: some requests ask, the token counts them, and the status of some of them records it.
func (w *simulation) runHub(names []string) {
	var asking []Use
	for _, name := range names {
		if w.Intn(3) == 0 && w.token.State(name, w.says[name]) == UseUncounted {
			asking = append(asking, Use{UID: name, Name: name})
		}
	}
	settled := func(uid string) bool { return w.says[uid] != "" }
	after, added, _ := w.token.Release(settled).Add(asking)
	if w.Intn(4) == 0 {
		return // stopped before the write
	}
	w.token = after
	for _, use := range added {
		w.counted[use.UID]++
	}
	for _, name := range names {
		if w.Intn(5) == 0 && w.token.State(name, w.says[name]) == UseCounted {
			w.says[name] = w.token.UID
		}
	}
}

func (w *simulation) requireExact(t *testing.T, seed int64, names []string) {
	t.Helper()
	total := 0
	for _, name := range names {
		require.LessOrEqual(t, w.counted[name], 1, "%s of seed %d was counted more than once", name, seed)
		total += w.counted[name]
	}
	require.EqualValues(t, total, w.token.Count, "seed %d", seed)
	want := len(names)
	if w.token.Limit != nil {
		want = min(want, int(*w.token.Limit))
	}
	require.Equal(t, want, total, "seed %d", seed)
}
