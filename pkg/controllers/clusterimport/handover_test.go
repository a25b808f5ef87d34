package clusterimport

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"
)

func TestCallsOfAShardEndBeforeItIsGivenAway(t *testing.T) {
	b := newBench(t)
	began := make(chan struct{}, 2)
	ended := 0
	slow := func(ctx context.Context) callResult {
		began <- struct{}{}
		<-ctx.Done()
		ended++ // without a lock: handOver waits for it
		return callResult{}
	}
	theirs, alsoTheirs, mine := clusterKey("theirs"), clusterKey("theirs"+clean), clusterKey("mine")
	b.attempt(theirs, "v1", slow)
	b.attempt(mine, "v1", func(ctx context.Context) callResult { <-ctx.Done(); return callResult{} })
	<-began
	done := clusterKey("done")
	b.attempt(done, "v1", works)
	b.attempt(alsoTheirs, "v1", hangs)
	for b.next(t) != done {
		continue
	}

	b.handOver(func(key types.NamespacedName) bool { return key.Name != "mine" })
	assert.Equal(t, 1, ended)
	for _, key := range []types.NamespacedName{theirs, alsoTheirs, done} {
		_, known := b.last(key, "v1")
		assert.False(t, known, "%s: another hub knows better from now on", key.Name)
	}
	left, known := b.last(mine, "v1")
	assert.True(t, known && left.running, "what is of another shard goes on")
}
