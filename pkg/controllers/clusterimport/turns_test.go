package clusterimport

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestImportsDoNotWaitForEachOther(t *testing.T) {
	var turns turns
	inner := turns.among("m", func(context.Context) callResult { return callResult{} })
	outer := turns.among("m", func(ctx context.Context) callResult { return inner(ctx) })
	assert.Nil(t, outer(t.Context()).failure)
	assert.Empty(t, turns.by, "nothing is kept of a member that nobody works on")
}

func TestAFarewellIsAloneOnItsMember(t *testing.T) {
	var turns turns
	for name, calls := range map[string][2]func(string, call) call{
		"import in a farewell":   {turns.alone, turns.among},
		"farewell in an import":  {turns.among, turns.alone},
		"farewell in a farewell": {turns.alone, turns.alone},
	} {
		inside := callResult{}
		short, cancel := context.WithCancel(t.Context())
		cancel()
		calls[0]("m", func(context.Context) callResult {
			assert.Nil(t, calls[1]("elsewhere", func(context.Context) callResult { return callResult{} })(t.Context()).failure)
			inside = calls[1]("m", func(context.Context) callResult { t.Error("both at once: " + name); return callResult{} })(short)
			return callResult{}
		})(t.Context())
		require.NotNil(t, inside.failure, name)
		assert.Empty(t, turns.by, name)
	}
}

func TestWhoWaitsForAMemberGoesOnWhenItIsFree(t *testing.T) {
	var turns turns
	begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan callResult)
	go turns.alone("m", func(context.Context) callResult {
		close(begun)
		<-end
		return callResult{}
	})(t.Context())
	<-begun
	go func() {
		ended <- turns.among("m", func(context.Context) callResult { return callResult{} })(t.Context())
	}()
	close(end)
	select {
	case result := <-ended:
		assert.Nil(t, result.failure)
	case <-time.After(2 * time.Minute):
		t.Fatal("nobody told it")
	}
}
