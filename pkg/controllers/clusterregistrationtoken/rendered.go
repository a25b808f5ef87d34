package clusterregistrationtoken

import (
	"bytes"
	"reflect"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/muster-fleet/muster/pkg/registration"
)

// renderedKept bounds what is remembered. The token that a storm uses is among the last; those of ten thousand imports are used
// once each, and are too large to keep while they live.
const renderedKept = 256

// rendered remembers the last values files of the tokens that were looked at last: every use of a token has its Secret looked at,
// and nearly all of that look would be YAML. Many may use it at once.
type rendered struct {
	files *lru.Cache // of valuesFile, by types.NamespacedName
}

type valuesFile struct {
	values registration.Values
	data   []byte // what EncodeValues makes of them; nobody may change it
}

func newRendered() rendered { return rendered{files: lru.New(renderedKept)} }

// encode is registration.EncodeValues.
func (r rendered) encode(token types.NamespacedName, values registration.Values) ([]byte, error) {
	if last, ok := r.last(token); ok && reflect.DeepEqual(last.values, values) {
		return last.data, nil
	}
	data, err := registration.EncodeValues(values)
	if err == nil {
		r.files.Add(token, valuesFile{values: values, data: data})
	}
	return data, err
}

// decode is registration.DecodeValues. It remembers nothing: a file that a person wrote must not become what encode returns.
func (r rendered) decode(token types.NamespacedName, data []byte) (registration.Values, error) {
	if last, ok := r.last(token); ok && bytes.Equal(last.data, data) {
		return last.values, nil
	}
	return registration.DecodeValues(data)
}

// forget is for a token that is gone: what is in its file is a secret.
func (r rendered) forget(token types.NamespacedName) { r.files.Remove(token) }

func (r rendered) last(token types.NamespacedName) (valuesFile, bool) {
	last, ok := r.files.Get(token)
	if !ok {
		return valuesFile{}, false
	}
	return last.(valuesFile), true
}
