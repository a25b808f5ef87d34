package v1alpha1

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/json"
)

// GenericMap is an object of any shape, such as the values of a chart. Whole numbers are decoded as int64, so that large
// ones keep their digits.
//
// +kubebuilder:validation:Type=object
// +kubebuilder:pruning:PreserveUnknownFields
type GenericMap struct {
	// Data is the decoded object: maps, slices, strings, numbers, booleans and nil. It is nil after Pack: see Map.
	Data map[string]any `json:"-"`

	packed string // in place of Data, in the caches of the hub
}

func init() {
	// Semantic.DeepEqual panics when it meets an unexported field, unless the type has a function of its own.
	if err := equality.Semantic.AddFunc(isSemanticallyEqual); err != nil {
		panic(err)
	}
}

// isSemanticallyEqual compares a packed object and another one by their JSON.
func isSemanticallyEqual(a, b GenericMap) bool {
	if a.packed == b.packed {
		return equality.Semantic.DeepEqual(a.Data, b.Data)
	}
	textOfA, errA := a.MarshalJSON()
	textOfB, errB := b.MarshalJSON()
	return errA == nil && errB == nil && bytes.Equal(textOfA, textOfB)
}

// MarshalJSON encodes the map itself, without a field around it. A nil map is an empty object, because null would mean
// that the field was removed. The JSON of a packed map is the same as before it was packed.
func (m GenericMap) MarshalJSON() ([]byte, error) {
	switch {
	case m.packed != "":
		return unpack(m.packed)
	case m.Data == nil:
		return []byte("{}"), nil
	}
	return json.Marshal(m.Data)
}

// UnmarshalJSON decodes any JSON object.
func (m *GenericMap) UnmarshalJSON(data []byte) error {
	m.Data, m.packed = nil, ""
	return json.Unmarshal(data, &m.Data)
}

// Map returns the decoded object, which the caller must not change, and nil for nil. It decodes a packed object each time.
func (m *GenericMap) Map() (decoded map[string]any) {
	switch {
	case m == nil:
		return nil
	case m.packed == "":
		return m.Data
	}
	text, err := unpack(m.packed)
	if err == nil {
		err = json.Unmarshal(text, &decoded)
	}
	if err != nil {
		panic(fmt.Sprintf("what was packed can always be unpacked: %v", err))
	}
	return decoded
}

// Pack replaces the decoded object by its compressed JSON: values of 30 KiB take 150 KiB when they are decoded, and some 4 KiB when they are packed. It
// leaves an object as it is that is small, that does not become smaller, or whose JSON would be decoded to another object.
func (m *GenericMap) Pack() {
	size := 0
	if !measure(m.Data, &size) || size < minPacked {
		return
	}
	text, err := json.Marshal(m.Data)
	if err != nil {
		return
	}
	packed := pack(text)
	if len(packed) < len(text) {
		m.Data, m.packed = nil, packed
	}
}

// PackedSize returns the size of a packed object, and 0 for one that is not packed.
func (m *GenericMap) PackedSize() int {
	if m == nil {
		return 0
	}
	return len(m.packed)
}

// minPacked is the size of the JSON from which Pack packs an object.
const minPacked = 2 << 10

// measure adds the approximate size of the JSON of a value. It returns false for a whole number that is a float64: its JSON has no decimal point, so it would
// be decoded as an int64.
func measure(value any, size *int) bool {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			*size += len(key)
			if !measure(inner, size) {
				return false
			}
		}
	case []any:
		for _, inner := range v {
			if !measure(inner, size) {
				return false
			}
		}
	case string:
		*size += len(v)
	case float64:
		if v == math.Trunc(v) {
			return false
		}
	}
	*size += len(`"":,`)
	return true
}

// pack returns the size of a text and the text, compressed.
func pack(text []byte) string {
	var buffer bytes.Buffer
	buffer.Write(binary.AppendUvarint(nil, uint64(len(text))))
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&buffer)
	_, _ = w.Write(text) // a bytes.Buffer returns no errors
	_ = w.Close()
	return strings.Clone(buffer.String()) // without spare capacity
}

// unpack returns a text that pack has compressed.
func unpack(packed string) ([]byte, error) {
	source := strings.NewReader(packed)
	size, err := binary.ReadUvarint(source)
	if err != nil {
		return nil, err
	}
	r := decompressors.Get().(io.ReadCloser)
	defer decompressors.Put(r)
	if err := r.(flate.Resetter).Reset(source, nil); err != nil {
		return nil, err
	}
	text := make([]byte, size)
	_, err = io.ReadFull(r, text)
	return text, err
}

// Compressors and decompressors take some 650 KiB and 40 KiB.
var (
	compressors = sync.Pool{New: func() any {
		w, err := flate.NewWriter(nil, flate.BestSpeed)
		if err != nil {
			panic(err) // the level is valid
		}
		return w
	}}
	decompressors = sync.Pool{New: func() any { return flate.NewReader(nil) }}
)

// DeepCopyInto copies all maps and slices of the decoded object.
func (m *GenericMap) DeepCopyInto(out *GenericMap) {
	out.Data, _ = copyJSON(m.Data).(map[string]any)
	out.packed = m.packed
}

// DeepCopy returns a copy that shares nothing with m, or nil for nil.
func (m *GenericMap) DeepCopy() *GenericMap {
	if m == nil {
		return nil
	}
	out := new(GenericMap)
	m.DeepCopyInto(out)
	return out
}

// copyJSON copies containers and keeps scalars. runtime.DeepCopyJSON would panic on the int a caller may well put in.
func copyJSON(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if v == nil {
			return v
		}
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = copyJSON(value)
		}
		return out
	case []any:
		if v == nil {
			return v
		}
		out := make([]any, len(v))
		for i, value := range v {
			out[i] = copyJSON(value)
		}
		return out
	default:
		return v
	}
}
