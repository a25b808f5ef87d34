package bundle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMemory(t *testing.T) {
	for _, row := range []struct {
		name string
		adds string // of each: the namespace, the number of its cache, and the bytes
		want string
	}{
		{"what fits is kept", "a1:4 a2:4 b1:8", "a1:4 a2:4 b1:8"},
		{"one cache is too large: it begins again", "a1:4 a1:4 a1:4 a1:3", "a1:3"},
		{"a workspace is too large: it loses a cache of its own", "b1:10 a1:10 a2:4", "a2:4 b1:10"},
		{"all are too large: the largest workspace loses a cache", "a1:5 b1:9 c1:5 d1:6", "a1:5 c1:5 d1:6"},
		{"and if it is the one that asks, it does", "a1:6 b1:6 c1:8 c1:2", "a1:6 b1:6"},
		{"what never fits is not kept, and costs nothing", "a1:4 a2:11", "a1:4"},
		{"a plan that is used no more keeps nothing", "a1:4 a2:4 a1:close a1:2", "a2:4"},
		{"less is kept", "a1:8 a1:-6 a2:8", "a1:2 a2:8"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newMemory(10, 20)
			caches := map[string]*planCache{}
			var names []string
			for add := range strings.FieldsSeq(row.adds) {
				name, size, _ := strings.Cut(add, ":")
				if caches[name] == nil {
					caches[name] = &planCache{memory: m, namespace: name[:1]}
					names = append(names, name)
				}
				n := 0
				switch _, err := fmt.Sscan(size, &n); {
				case err != nil:
					m.close(caches[name])
				case n < 0:
					m.subtract(caches[name], -n)
				default:
					m.add(caches[name], n)
				}
			}
			var kept []string
			total := 0
			for _, name := range names {
				if size := caches[name].size; size > 0 {
					kept = append(kept, fmt.Sprint(name, ":", size))
					total += size
				}
			}
			assert.ElementsMatch(t, strings.Fields(row.want), kept)
			assert.Equal(t, total, m.total)
		})
	}
}

func TestMemory_forgetsWorkspaces(t *testing.T) {
	m := newMemory(10, 20)
	for i := range 100 {
		c := &planCache{memory: m, namespace: fmt.Sprint(i)}
		assert.True(t, m.add(c, 5))
		m.close(c)
	}
	assert.Empty(t, m.workspaces)
	assert.Zero(t, m.total)
}
