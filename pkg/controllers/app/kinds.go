package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
)

// definedKind has the last answer of the API server about a CustomResourceDefinition.
type definedKind struct {
	forbidden sync.Once

	mu         sync.Mutex
	definition *metav1.PartialObjectMetadata // nil if there is none
	asked      time.Time
}

// DefinitionName returns the name of the CustomResourceDefinition of a kind of group fleet.cattle.io, for example of "clusters".
func DefinitionName(resource string) string { return resource + "." + fleet.SchemeGroupVersion.Group }

// KindDeleted reports whether objects of a kind may be gone because their kind is, and nobody has deleted them: the CustomResourceDefinition is being
// deleted, does not exist, or was created after since. since is the time at which the object was deleted, or, if that is not known, a time at
// which it existed. Whoever deletes a kind may not mean to remove all workloads. A hub without the right to ask takes the kind for one that stays.
//
// seen is when the hub noticed that the object is gone. An answer counts for a second if it was asked after that. For that time too, an answer that
// the kind is deleted also counts for later deletions: thousands of objects may be deleted at once.
func (c *Context) KindDeleted(ctx context.Context, resource string, since metav1.Time, seen time.Time) (bool, error) {
	name := DefinitionName(resource)
	known, _ := c.definedKinds.LoadOrStore(name, &definedKind{})
	k := known.(*definedKind)
	k.mu.Lock()
	defer k.mu.Unlock()
	isDeleted := func() bool {
		return k.definition == nil || k.definition.DeletionTimestamp != nil || since.Before(&k.definition.CreationTimestamp)
	}
	now := c.Clock.Now()
	if now.Sub(k.asked) < time.Second && (!k.asked.Before(seen) || isDeleted()) {
		return isDeleted(), nil
	}
	definition, err := c.Metadata.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
		Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		k.forbidden.Do(func() {
			logrus.Warnf("The hub may not read CustomResourceDefinition %s: if somebody deletes it, the hub treats its objects as deleted on purpose", name)
		})
		return false, nil
	case writes.IsMissing(err):
		definition = nil
	case err != nil:
		return false, fmt.Errorf("checking whether CustomResourceDefinition %s is being deleted: %w", name, err)
	}
	k.definition, k.asked = definition, now
	return isDeleted(), nil
}
