package shard

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func set(shards ...Shard) (s Set) {
	for _, shard := range shards {
		s[shard] = true
	}
	return s
}

func TestWithoutAGateAllIsOnesOwn(t *testing.T) {
	var g *Gate
	leave, mine := g.Enter(7)
	require.True(t, mine)
	leave()
	g.Ready()
	g.OnTake(nil)
	g.OnLeave(nil)
	g.OnCatchUp(nil)
	assert.False(t, g.Shares())
	assert.Equal(t, http.DefaultTransport, g.Wrap(http.DefaultTransport))
}

func TestOnlyOpenShardsAreWorkedOn(t *testing.T) {
	g := NewGate()
	assert.False(t, g.Holds(3), "nothing is anybody's at the start")
	var told Set
	g.OnTake(func(s Set) { told = s })
	g.open(set(3, 4))
	g.tell(set(3, 4))
	assert.Equal(t, set(3, 4), told)
	assert.True(t, g.Holds(3))
	assert.False(t, g.Holds(5))
	assert.Equal(t, 2, g.held())
	g.close(3)
	assert.False(t, g.Holds(3))
	assert.True(t, g.Holds(4))
}

// What a pass begins beside itself is ended only after the passes: they might begin more.
func TestAShardIsGivenBackWhenNothingIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		var order []string
		g.OnLeave(func(s Set) {
			assert.Equal(t, set(3), s)
			order = append(order, "left")
		})
		g.open(set(3, 4))
		first, mine := g.Enter(3)
		require.True(t, mine)
		second, mine := g.Enter(3)
		require.True(t, mine)
		other, mine := g.Enter(4)
		require.True(t, mine)
		defer other()

		closed := make(chan struct{})
		go func() { defer close(closed); g.close(3); order = append(order, "closed") }()
		synctest.Wait()
		_, mine = g.Enter(3)
		assert.False(t, mine, "nothing more is begun")
		first()
		time.Sleep(time.Second)
		assert.Empty(t, order)
		order = append(order, "last pass")
		second()
		<-closed
		assert.Equal(t, []string{"last pass", "left", "closed"}, order)
	})
}

type counting struct{ sent []string }

func (c *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	c.sent = append(c.sent, req.Method)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestNothingIsWrittenAnyMoreWithoutTheLeases(t *testing.T) {
	g, below := NewGate(), &counting{}
	client := &http.Client{Transport: g.Wrap(below)}
	send := func(method string) error {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://hub.example/", strings.NewReader("x"))
		require.NoError(t, err)
		answer, err := client.Do(req)
		if err == nil {
			require.NoError(t, answer.Body.Close())
		}
		return err
	}
	require.NoError(t, send(http.MethodPatch))
	g.fence()
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		require.ErrorIs(t, send(method), errFenced, method)
	}
	require.NoError(t, send(http.MethodGet), "to read does no harm")
	assert.Equal(t, []string{http.MethodPatch, http.MethodGet}, below.sent)
}
