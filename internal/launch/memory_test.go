package launch

import (
	"os"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMemoryIsSparedUnlessToldOtherwise(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })

	t.Setenv("GOGC", "200")
	SpareMemory()
	assert.Equal(t, 100, debug.SetGCPercent(100), "the runtime has read it")

	require.NoError(t, os.Unsetenv("GOGC"))
	SpareMemory()
	assert.Equal(t, spareHeap, debug.SetGCPercent(100))
}
