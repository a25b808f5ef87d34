package v1alpha1

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func FuzzGenericMap_roundTrip(f *testing.F) {
	for _, document := range []string{"", "null", "{}", "[]", `{"a":1,"b":[null,{"c":1.5}],"d":"<\u2028>"}`, `{"n":9007199254740993}`, `{"n":1e400}`, `{"a":{},"a":[]}`} {
		f.Add([]byte(document))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		var m GenericMap
		if json.Unmarshal(document, &m) != nil {
			return
		}
		copied := m.DeepCopy()
		assert.Equal(t, m, *copied)
		written, err := json.Marshal(m)
		require.NoError(t, err)
		var back GenericMap
		require.NoError(t, json.Unmarshal(written, &back))
		again, err := json.Marshal(back) // 1.0 comes back as 1, which is the same number
		require.NoError(t, err)
		assert.Equal(t, string(written), string(again))
		for key := range copied.Data {
			delete(copied.Data, key)
		}
		kept, err := json.Marshal(m)
		require.NoError(t, err)
		assert.Equal(t, string(written), string(kept), "a copy shares nothing")
	})
}
