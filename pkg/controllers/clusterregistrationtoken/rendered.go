package clusterregistrationtoken

import (
	"bytes"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
)

// rendered remembers the last values file of each token: every use of a token has its Secret looked at, and nearly all of that
// look would be YAML. The zero value is ready; many may use it at once.
type rendered struct {
	files sync.Map // of valuesFile, by types.NamespacedName
}

type valuesFile struct {
	values registration.Values
	data   []byte // what EncodeValues makes of them; nobody may change it
}

// encode is registration.EncodeValues.
func (r *rendered) encode(token types.NamespacedName, values registration.Values) ([]byte, error) {
	if last, ok := r.last(token); ok && reflect.DeepEqual(last.values, values) {
		return last.data, nil
	}
	data, err := registration.EncodeValues(values)
	if err == nil {
		r.files.Store(token, valuesFile{values: values, data: data})
	}
	return data, err
}

// decode is registration.DecodeValues. It remembers nothing: a file that a person wrote must not become what encode returns.
func (r *rendered) decode(token types.NamespacedName, data []byte) (registration.Values, error) {
	if last, ok := r.last(token); ok && bytes.Equal(last.data, data) {
		return last.values, nil
	}
	return registration.DecodeValues(data)
}

// forget is for a token that is gone.
func (r *rendered) forget(token types.NamespacedName) { r.files.Delete(token) }

func (r *rendered) last(token types.NamespacedName) (valuesFile, bool) {
	last, ok := r.files.Load(token)
	if !ok {
		return valuesFile{}, false
	}
	return last.(valuesFile), true
}
