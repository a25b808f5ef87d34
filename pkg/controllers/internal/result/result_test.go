package result

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

var (
	noon     = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	later    = noon.Add(time.Hour)
	errCause = errors.New("cause")
)

const (
	stampNoon  = "2026-01-02T12:00:00Z"
	stampLater = "2026-01-02T13:00:00Z"
)

func TestResultStatus(t *testing.T) {
	for _, row := range []struct {
		name             string
		out              Result
		status           corev1.ConditionStatus
		done, wait, skip bool
		err              error
	}{
		{name: "done", out: Done("R", "m"), status: corev1.ConditionTrue, done: true},
		{name: "wait", out: Wait("R", "m"), status: corev1.ConditionUnknown, wait: true},
		{name: "stalled", out: Stalled("R", "m"), status: corev1.ConditionFalse},
		{name: "retry", out: Retry("R", errCause), status: corev1.ConditionFalse, err: errCause},
		{name: "skip", out: Skip(), status: corev1.ConditionFalse, skip: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.status, row.out.Status())
			assert.Equal(t, row.done, row.out.IsDone())
			assert.Equal(t, row.wait, row.out.IsWait())
			assert.Equal(t, row.skip, row.out.IsSkip())
			assert.Equal(t, row.err, row.out.Err)
			assert.Zero(t, row.out.After)
			assert.Equal(t, time.Minute, row.out.In(time.Minute).After)
			assert.Zero(t, row.out.After, "In changes a copy")
		})
	}
}

func TestEarliest(t *testing.T) {
	for _, row := range []struct{ a, b, want time.Duration }{
		{0, 0, 0}, {1, 0, 1}, {0, 1, 1}, {1, 2, 1}, {2, 1, 1}, {2, 2, 2}, {-1, 1, 1}, {1, -1, 1},
	} {
		assert.Equal(t, row.want, Earliest(row.a, row.b), "%v and %v", row.a, row.b)
	}
}

func TestSet(t *testing.T) {
	waiting := genericcondition.GenericCondition{
		Type: "Ready", Status: corev1.ConditionUnknown, Reason: "W", Message: "m", LastUpdateTime: stampNoon, LastTransitionTime: stampNoon,
	}
	change := func(edit func(*genericcondition.GenericCondition)) genericcondition.GenericCondition {
		c := waiting
		c.LastUpdateTime = stampLater
		edit(&c)
		return c
	}
	for _, row := range []struct {
		name       string
		before     fleetstatus.Conditions
		out        Result
		want       fleetstatus.Conditions
		transition *Transition
	}{
		{
			name: "the first one", out: Done("R", "m"),
			want: fleetstatus.Conditions{{
				Type: "Ready", Status: corev1.ConditionTrue, Reason: "R", Message: "m", LastUpdateTime: stampLater, LastTransitionTime: stampLater,
			}},
			transition: &Transition{Type: "Ready", After: corev1.ConditionTrue, Reason: "R", Message: "m"},
		},
		{name: "the same again keeps its times", before: fleetstatus.Conditions{waiting}, out: Wait("W", "m"), want: fleetstatus.Conditions{waiting}},
		{
			name: "another message is no transition", before: fleetstatus.Conditions{waiting}, out: Wait("W", "n"),
			want: fleetstatus.Conditions{change(func(c *genericcondition.GenericCondition) { c.Message = "n" })},
		},
		{
			name: "another reason is one, and keeps the time of the status", before: fleetstatus.Conditions{waiting}, out: Wait("V", "m"),
			want: fleetstatus.Conditions{change(func(c *genericcondition.GenericCondition) { c.Reason = "V" })},
			transition: &Transition{
				Type: "Ready", Before: corev1.ConditionUnknown, After: corev1.ConditionUnknown, Reason: "V", Message: "m",
			},
		},
		{
			name: "another status", before: fleetstatus.Conditions{waiting}, out: Stalled("W", "m"),
			want: fleetstatus.Conditions{change(func(c *genericcondition.GenericCondition) {
				c.Status, c.LastTransitionTime = corev1.ConditionFalse, stampLater
			})},
			transition: &Transition{Type: "Ready", Before: corev1.ConditionUnknown, After: corev1.ConditionFalse, Reason: "W", Message: "m"},
		},
		{name: "nothing to say leaves it alone", before: fleetstatus.Conditions{waiting}, out: Skip(), want: fleetstatus.Conditions{waiting}},
		{name: "nothing to say makes none", out: Skip()},
		{
			name: "an error is the message", out: Retry("Error", errCause),
			want: fleetstatus.Conditions{{
				Type: "Ready", Status: corev1.ConditionFalse, Reason: "Error", Message: "cause",
				LastUpdateTime: stampLater, LastTransitionTime: stampLater,
			}},
			transition: &Transition{Type: "Ready", After: corev1.ConditionFalse, Reason: "Error", Message: "cause"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			conditions := row.before
			transition := Set(&conditions, "Ready", row.out, later)
			assert.Equal(t, row.want, conditions)
			assert.Equal(t, row.transition, transition)
		})
	}
}

func TestSet_longMessage(t *testing.T) {
	var conditions fleetstatus.Conditions
	Set(&conditions, "Ready", Stalled("Error", strings.Repeat("ä", 1<<20)), time.Now())
	assert.LessOrEqual(t, len(conditions[0].Message), maxMessage+len("..."))
	assert.True(t, strings.HasSuffix(conditions[0].Message, "ä..."))
}

func TestRecord(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	for _, row := range []struct {
		name       string
		transition *Transition
		want       string
	}{
		{"no transition", nil, ""},
		{"it broke", &Transition{Type: "Ready", Before: yes, After: no, Reason: "R", Message: "m"}, "Warning R m"},
		{"it broke before it ever worked", &Transition{Type: "Ready", After: no, Reason: "R", Message: "m"}, "Warning R m"},
		{"it is broken for another reason", &Transition{Type: "Ready", Before: no, After: no, Reason: "S", Message: "m"}, "Warning S m"},
		{"it was mended", &Transition{Type: "Ready", Before: no, After: yes, Reason: "R", Message: "m"}, "Normal R Ready again"},
		{"it simply worked", &Transition{Type: "Ready", After: yes, Reason: "R"}, ""},
		{"it works after a wait", &Transition{Type: "Ready", Before: unknown, After: yes, Reason: "R"}, ""},
		{"it waits", &Transition{Type: "Ready", After: unknown, Reason: "R"}, ""},
		{"it waits again", &Transition{Type: "Ready", Before: no, After: unknown, Reason: "R"}, ""},
		{"it waits for a person", &Transition{Type: "Ready", After: unknown, Reason: "R", Message: "m", EventOnWait: true}, "Warning R m"},
	} {
		t.Run(row.name, func(t *testing.T) {
			recorder := record.NewFakeRecorder(2)
			row.transition.Record(recorder, &corev1.ConfigMap{})
			close(recorder.Events)
			assert.Equal(t, row.want, <-recorder.Events)
			assert.Empty(t, <-recorder.Events)
		})
	}
}

func TestRecordOnce(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	var conditions fleetstatus.Conditions
	for _, out := range []Result{
		Wait("W", ""), Stalled("S", "m"), Stalled("S", "m"), Stalled("S", "changed"), Retry("E", errCause), Retry("E", errCause), Done("R", ""), Done("R", ""),
	} {
		Set(&conditions, "Ready", out, noon).Record(recorder, &corev1.ConfigMap{})
	}
	close(recorder.Events)
	var events []string
	for event := range recorder.Events {
		events = append(events, event)
	}
	require.Equal(t, []string{"Warning S m", "Warning E cause", "Normal R Ready again"}, events)
}

func TestRecordWaitForAPersonOnce(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	var conditions fleetstatus.Conditions
	for range 3 {
		Set(&conditions, "Ready", Wait("W", "where is it?").WithEvent(), noon).Record(recorder, &corev1.ConfigMap{})
	}
	assert.Equal(t, "Warning W where is it?", <-recorder.Events)
	assert.Empty(t, recorder.Events)
	assert.False(t, Wait("W", "").EventOnWait)
}

func TestRetryAfterConflict(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "clusters"}, "c", errors.New("changed"))
	out := Retry("Error", fmt.Errorf("patching: %w", conflict))
	assert.ErrorIs(t, out.Err, conflict)
	assert.True(t, out.IsSkip())
	assert.False(t, out.IsDone())
}

func TestRecordQuietly(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	var conditions fleetstatus.Conditions
	Set(&conditions, "C", Stalled("R", "m").WithoutEvent(), noon).Record(recorder, nil)
	assert.Empty(t, recorder.Events)
	assert.Equal(t, corev1.ConditionFalse, fleetstatus.Condition(conditions, "C").Status, "the condition is set all the same")
	Set(&conditions, "C", Done("Other", "").WithoutEvent(), later).Record(recorder, nil)
	assert.Empty(t, recorder.Events)
	Set(&conditions, "C", Stalled("R", "m"), later).Record(recorder, nil)
	assert.Len(t, recorder.Events, 1)
}
