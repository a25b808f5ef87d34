package deploy

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestStallTracker(t *testing.T) {
	type tracked struct {
		*stallTracker
		clock    *clocktesting.FakeClock
		reported *[]string
	}
	begin := func() tracked {
		var reported []string
		now := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
		log := logrus.New()
		log.SetOutput(io.Discard)
		c := Config{Clock: now, Log: log, ReportStalled: func(text string) { reported = append(reported, text) }}.withDefaults()
		return tracked{newStallTracker(c), now, &reported}
	}
	refused := errors.New("secrets is forbidden")

	t.Run("a step that fails for a minute is reported, and its success", func(t *testing.T) {
		s := begin()
		s.note(t.Context(), readHistoryKey, refused)
		s.clock.Step(59 * time.Second)
		s.note(t.Context(), readHistoryKey, refused)
		assert.Empty(t, *s.reported)
		s.clock.Step(time.Second)
		s.note(t.Context(), readHistoryKey, refused)
		assert.Equal(t, []string{"reading the history key on the member: secrets is forbidden"}, *s.reported)
		for _, step := range deploySteps {
			s.note(t.Context(), step, nil)
		}
		assert.Empty(t, (*s.reported)[len(*s.reported)-1])
	})
	t.Run("the end of the run is no failure", func(t *testing.T) {
		s := begin()
		s.note(t.Context(), readHistoryKey, refused)
		s.clock.Step(time.Minute)
		ended, end := context.WithCancel(t.Context())
		end()
		s.note(ended, readHistoryKey, ended.Err())
		assert.Empty(t, *s.reported)
	})
	t.Run("success within a minute is reported once, for the report of an earlier run", func(t *testing.T) {
		s := begin()
		s.note(t.Context(), readHistoryKey, refused)
		for range 2 {
			for _, step := range deploySteps {
				s.note(t.Context(), step, nil)
			}
		}
		assert.Equal(t, []string{""}, *s.reported)
	})
	t.Run("a failure long after the start lasts from its first attempt", func(t *testing.T) {
		s := begin()
		for _, step := range deploySteps {
			s.note(t.Context(), step, nil)
		}
		s.clock.Step(time.Hour)
		s.note(t.Context(), listRevisions, refused)
		assert.Equal(t, []string{""}, *s.reported)
		s.clock.Step(time.Minute)
		s.note(t.Context(), listRevisions, refused)
		assert.Equal(t, []string{"", "listing the Secrets of Helm releases on the member: secrets is forbidden"}, *s.reported)
	})
	t.Run("a start that waits for an answer is reported", func(t *testing.T) {
		s := begin()
		s.note(t.Context(), readHistoryKey, nil)
		ended := make(chan struct{})
		go func() { defer close(ended); s.reportSlowStart(t.Context()) }()
		require.Eventually(t, s.clock.HasWaiters, time.Minute, time.Millisecond)
		s.clock.Step(time.Minute)
		<-ended
		assert.Equal(t, []string{"listing the Secrets of Helm releases on the member: this has not ended yet"}, *s.reported)
	})
	t.Run("lists work and watches do not", func(t *testing.T) {
		s := begin()
		s.note(t.Context(), readHistoryKey, nil)
		failed := refused
		revisions := s.noteErrors(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return &metav1.List{}, nil },
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				return watch.NewFake(), failed
			},
		})
		attempt := func() {
			_, err := revisions.ListWithContext(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			_, err = revisions.WatchWithContext(t.Context(), metav1.ListOptions{})
			assert.Equal(t, failed, err)
		}
		attempt()
		s.clock.Step(time.Minute)
		attempt()
		assert.Equal(t, "watching the Secrets of Helm releases on the member: secrets is forbidden", (*s.reported)[len(*s.reported)-1])
		failed = nil
		attempt()
		assert.Empty(t, (*s.reported)[len(*s.reported)-1])
	})
}
