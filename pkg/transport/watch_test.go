package transport

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

var fiveMinutes = metav1.ListOptions{TimeoutSeconds: ptr.To[int64](300)}

func TestWatchWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		_, err := Watch(t.Context(), fiveMinutes, func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		assert.True(t, Unanswered(err))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualError(t, err, "no watch has begun within 6m0s: context deadline exceeded")
		assert.Equal(t, 6*time.Minute, time.Since(begun))
	})
}

func TestWatchThatTheServerDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := func(ended *context.Context) func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
				*ended = ctx
				return watch.NewFake(), nil
			}
		}
		var stopped, silent context.Context
		events, err := Watch(t.Context(), fiveMinutes, begin(&stopped))
		require.NoError(t, err)
		events.Stop()
		require.ErrorIs(t, stopped.Err(), context.Canceled)

		events, err = Watch(t.Context(), fiveMinutes, begin(&silent))
		require.NoError(t, err)
		defer events.Stop()
		begun := time.Now()
		<-silent.Done()
		assert.Equal(t, 6*time.Minute, time.Since(begun))
	})
}

func TestWatchWithoutATimeoutOrRefused(t *testing.T) {
	_, err := Watch(t.Context(), metav1.ListOptions{}, func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
		_, limited := ctx.Deadline()
		assert.False(t, limited)
		return nil, assert.AnError
	})
	require.ErrorIs(t, err, assert.AnError)
	_, err = Watch(t.Context(), fiveMinutes, func(context.Context, metav1.ListOptions) (watch.Interface, error) {
		return nil, assert.AnError
	})
	require.ErrorIs(t, err, assert.AnError)
	assert.False(t, Unanswered(err))
}

// configMaps records the requests of a client.
type configMaps struct {
	listed, watched metav1.ListOptions
	limited         bool
}

func (c *configMaps) List(_ context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error) {
	c.listed = o
	return &corev1.ConfigMapList{}, nil
}

func (c *configMaps) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	c.watched = o
	_, c.limited = ctx.Deadline()
	return watch.NewFake(), nil
}

func TestListWatch(t *testing.T) {
	client := &configMaps{}
	lw := ListWatch(client, func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=one" })
	list, err := lw.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
	require.NoError(t, err)
	assert.Equal(t, &corev1.ConfigMapList{}, list)
	assert.Equal(t, metav1.ListOptions{ResourceVersion: "1", FieldSelector: "metadata.name=one"}, client.listed)
	events, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{TimeoutSeconds: ptr.To[int64](300)})
	require.NoError(t, err)
	defer events.Stop()
	assert.Equal(t, "metadata.name=one", client.watched.FieldSelector)
	assert.True(t, client.limited)
}
