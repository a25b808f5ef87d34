package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// watched remembers the context of the last watch.
type watched struct {
	listWatch
	ctx context.Context
}

// Watch tells of nothing.
func (w *watched) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	w.ctx = ctx
	return watch.NewFake(), nil
}

func TestNoWatchOfWhatAnImportWritesLastsLongerThanItsTime(t *testing.T) {
	objects := &watched{}
	lw := cache.ToListerWatcherWithContext(testLife(t).member.only("fleet-agent", objects))
	events, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{TimeoutSeconds: ptr.To[int64](300)})
	require.NoError(t, err)
	defer events.Stop()
	_, limited := objects.ctx.Deadline()
	assert.True(t, limited)
}
