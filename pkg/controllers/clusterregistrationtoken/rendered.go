package clusterregistrationtoken

import (
	"bytes"
	"reflect"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/muster-fleet/muster/pkg/registration"
)

// renderedKept is the number of values files in the cache. In a storm, its token is among the last that were used; the tokens of ten
// thousand imports are used once each, and their files would be too large to keep.
const renderedKept = 256

// valuesCache caches the values files of the tokens that were used last. Every use of a token compares its Secret, and encoding YAML would
// be nearly all of that work. It is safe for concurrent use.
type valuesCache struct {
	files *lru.Cache // of valuesFile, by types.NamespacedName
}

type valuesFile struct {
	values registration.Values
	data   []byte // of EncodeValues; never changed
}

func newValuesCache() valuesCache { return valuesCache{files: lru.New(renderedKept)} }

// encode is registration.EncodeValues.
func (r valuesCache) encode(token types.NamespacedName, values registration.Values) ([]byte, error) {
	if last, ok := r.last(token); ok && reflect.DeepEqual(last.values, values) {
		return last.data, nil
	}
	data, err := registration.EncodeValues(values)
	if err == nil {
		r.files.Add(token, valuesFile{values: values, data: data})
	}
	return data, err
}

// decode is registration.DecodeValues. It caches nothing: encode must not return a file that a person wrote.
func (r valuesCache) decode(token types.NamespacedName, data []byte) (registration.Values, error) {
	if last, ok := r.last(token); ok && bytes.Equal(last.data, data) {
		return last.values, nil
	}
	return registration.DecodeValues(data)
}

// forget removes the file of a deleted token: it contains a secret.
func (r valuesCache) forget(token types.NamespacedName) { r.files.Remove(token) }

func (r valuesCache) last(token types.NamespacedName) (valuesFile, bool) {
	last, ok := r.files.Get(token)
	if !ok {
		return valuesFile{}, false
	}
	return last.(valuesFile), true
}
