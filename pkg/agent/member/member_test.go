package member

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

func TestWatchHasADeadline(t *testing.T) {
	var watched context.Context
	begin := func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
		watched = ctx
		return watch.NewFake(), nil
	}
	m := &Member{Namespace: "ns", Watching: kubefake.NewClientset()}
	lw := cache.ToListerWatcherWithContext(m.named("fleet-agent", nil, begin))
	events, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{TimeoutSeconds: ptr.To[int64](300)})
	require.NoError(t, err)
	defer events.Stop()
	_, limited := watched.Deadline()
	assert.True(t, limited)
}

func TestBrief(t *testing.T) {
	assert.Equal(t, "short", Brief("short"))
	assert.Len(t, []rune(Brief(strings.Repeat("ü", 1000))), 403)
}
