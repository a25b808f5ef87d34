// Package heap measures the memory that code under test takes.
package heap

import "runtime"

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
