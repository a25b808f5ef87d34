// Package heap measures the memory that code under test takes.
package heap

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// InUse collects garbage and returns the number of bytes of the heap that are in use.
func InUse() int {
	runtime.GC()
	runtime.GC() // the first one only empties pools and queues finalizers
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc) //nolint:gosec // far less than the largest int
}

// Allocated returns how many bytes do allocates, including its garbage.
func Allocated(do func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc) //nolint:gosec // far less than the largest int
}

// Growth runs do, and returns by how many bytes the heap grew meanwhile at most. It observes the heap every millisecond, and has garbage collected when
// that is a fifth of the heap.
func Growth(do func()) int {
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	before, end, peak := InUse(), make(chan struct{}), make(chan int)
	go func() {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for most := 0; ; {
			select {
			case <-end:
				peak <- most
				return
			case <-ticker.C:
				sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
				metrics.Read(sample)
				most = max(most, int(sample[0].Value.Uint64())) //nolint:gosec // far less than the largest int
			}
		}
	}()
	do()
	close(end)
	return max(0, <-peak-before)
}
