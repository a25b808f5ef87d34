package bundle

import (
	"bytes"
	"sync"
)

// Limits of the caches of all plans, in bytes. What is not kept is computed again when it is needed.
const (
	maxWorkspace = 16 << 20 // of the Bundles of one namespace
	maxTotal     = 64 << 20
)

// memory counts the bytes in the caches of plans, for each workspace and in total. It empties caches of a workspace that exceeds its limit. If the
// total exceeds its limit, it empties caches of the workspace with the most bytes, so a tenant with large Bundles empties no caches of the others.
type memory struct {
	maxWorkspace, maxTotal int

	mu         sync.Mutex // also guards the caches of the plans
	total      int
	workspaces map[string]*workspaceMemory // by namespace; those with entries in a cache
}

type workspaceMemory struct {
	size   int
	caches map[*planCache]bool // those with entries
}

func newMemory(maxWorkspace, maxTotal int) *memory {
	return &memory{maxWorkspace: maxWorkspace, maxTotal: maxTotal, workspaces: map[string]*workspaceMemory{}}
}

// add counts bytes that the caller is about to add to a cache, and makes room for them. The caller has locked m, and adds nothing if add returns false:
// the bytes are too many for a workspace, the plan of the cache is no longer used, or the cache itself was emptied to make room.
func (m *memory) add(c *planCache, size int) bool {
	if c.isClosed || size > m.maxWorkspace {
		return false
	}
	for before := c.size; ; {
		w := m.workspaces[c.namespace]
		switch {
		case c.size < before:
			return false
		case w != nil && w.size+size > m.maxWorkspace:
			m.dropAny(w)
		case m.total > 0 && m.total+size > m.maxTotal:
			m.dropAny(m.largest())
		default:
			if w == nil {
				w = &workspaceMemory{caches: map[*planCache]bool{}}
				m.workspaces[c.namespace] = w
			}
			w.caches[c] = true
			w.size, m.total, c.size = w.size+size, m.total+size, c.size+size
			return true
		}
	}
}

// subtract counts bytes that a cache no longer keeps. The caller has locked m.
func (m *memory) subtract(c *planCache, size int) {
	if w := m.workspaces[c.namespace]; w != nil {
		w.size, m.total, c.size = w.size-size, m.total-size, c.size-size
	}
}

// drop empties a cache. The caller has locked m.
func (m *memory) drop(c *planCache) {
	m.subtract(c, c.size)
	c.merged, c.variants, c.rendered = nil, nil, nil
	if w := m.workspaces[c.namespace]; w != nil {
		delete(w.caches, c)
		if len(w.caches) == 0 {
			delete(m.workspaces, c.namespace)
		}
	}
}

// dropAny empties one of the caches of a workspace.
func (m *memory) dropAny(w *workspaceMemory) {
	for c := range w.caches {
		m.drop(c)
		return
	}
}

func (m *memory) largest() (largest *workspaceMemory) {
	for _, w := range m.workspaces {
		if largest == nil || w.size > largest.size {
			largest = w
		}
	}
	return largest
}

// forgetCluster drops the variants of a deleted Cluster.
func (m *memory) forgetCluster(k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workspaces[k.Namespace]; w != nil {
		for c := range w.caches {
			c.forgetRendered(k)
		}
	}
}

// close empties the cache of a plan that is no longer used. The cache stays empty, because a pass may still have the plan.
func (m *memory) close(c *planCache) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(c)
	c.isClosed = true
}

// Estimates of the memory that decoded JSON takes in addition to its text.
const (
	objectSize = 400 // an object, which has room for several fields
	fieldSize  = 48  // a further field or element
)

// decodedSize estimates the memory that a JSON text takes when it is decoded. Small objects take many times their text.
func decodedSize(text []byte) int {
	return len(text) + objectSize*bytes.Count(text, []byte("{")) + fieldSize*(bytes.Count(text, []byte(","))+bytes.Count(text, []byte("[")))
}
