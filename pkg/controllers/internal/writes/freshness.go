package writes

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Freshness remembers what a controller wrote last, so that a pass which is handed an older version from the cache can
// stop at once: the event of that write is on its way, and working on the old version would only repeat the write or run
// into a conflict. The zero Freshness is ready to use.
type Freshness struct {
	written sync.Map // UID -> resourceVersion
}

// Wrote notes the version that a write returned.
func (f *Freshness) Wrote(object metav1.Object) {
	f.written.Store(object.GetUID(), object.GetResourceVersion())
}

// IsStale says whether the object is older than what was written last.
func (f *Freshness) IsStale(object metav1.Object) bool {
	last, known := f.written.Load(object.GetUID())
	if !known {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), last.(string))
	if err == nil && order < 0 {
		return true
	}
	f.written.Delete(object.GetUID())
	return false
}
