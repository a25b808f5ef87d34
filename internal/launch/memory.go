package launch

import (
	"os"
	"runtime/debug"
)

// spareHeap is how much a heap may grow before it is collected, in percent of what is in use. Nearly all of a hub's memory is its
// caches, which stay; Go's default of 100 would keep as much again for rubbish.
const spareHeap = 50

// SpareMemory has the garbage collected more often than Go would, unless $GOGC says how often.
func SpareMemory() {
	if _, told := os.LookupEnv("GOGC"); !told {
		debug.SetGCPercent(spareHeap)
	}
}
