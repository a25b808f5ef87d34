package app

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	lassolog "github.com/rancher/lasso/pkg/log"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestHandlerRecoversPanics(t *testing.T) {
	secret := &corev1.Secret{}
	handle := Handler(NewPasses(t.Context()), "broken", func(string, *corev1.Secret) (*corev1.Secret, error) { panic("no map") })
	result, err := handle("ns/name", secret)
	require.ErrorContains(t, err, "handler broken panicked: no map")
	assert.Same(t, secret, result)
}

func TestHandlerReturnsItsResult(t *testing.T) {
	want, problem := &corev1.Secret{}, errors.New("later")
	handle := Handler(NewPasses(t.Context()), "fine", func(string, *corev1.Secret) (*corev1.Secret, error) { return want, problem })
	result, err := handle("ns/name", nil)
	assert.Same(t, want, result)
	assert.Equal(t, problem, err)
}

func TestHandlerLogsFailuresWithTheirObject(t *testing.T) {
	var log bytes.Buffer
	logrus.SetOutput(&log)
	logrus.SetFormatter(&logrus.JSONFormatter{DisableTimestamp: true})
	t.Cleanup(func() { logrus.SetOutput(os.Stderr); logrus.SetFormatter(&logrus.TextFormatter{}) })
	problem := errors.New("no rights")
	_, _ = Handler(NewPasses(t.Context()), "cluster", func(string, *fleet.Cluster) (*fleet.Cluster, error) { return nil, problem })("ns/a", nil)
	_, _ = Handler(NewPasses(t.Context()), "request", func(string, *fleet.ClusterRegistration) (*fleet.ClusterRegistration, error) { return nil, problem })("ns/b", nil)
	_, _ = Handler(NewPasses(t.Context()), "token", func(string, *fleet.ClusterRegistrationToken) (*fleet.ClusterRegistrationToken, error) {
		return nil, apierrors.NewConflict(schema.GroupResource{}, "c", problem)
	})("ns/c", nil)
	lassolog.Errorf("error syncing '%s': handler cluster: %v, requeuing", "ns/a", problem)
	lassolog.Errorf("error syncing '%s': handler cluster: %v, handler of-the-program: %v, requeuing", "ns/a", problem, problem)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	require.Len(t, lines, 3)
	assert.Contains(t, lines[2], "handler of-the-program: no rights", "lasso's line is the only one about the handler of a program that embeds the hub")
	assert.JSONEq(t, `{"cluster":"ns/a","level":"error","msg":"Handler cluster failed on ns/a, trying again: no rights"}`, lines[0])
	assert.JSONEq(t, `{"level":"error","msg":"Handler request failed on ns/b, trying again: no rights","request":"ns/b"}`, lines[1])
}

func TestPassesWait(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	passes := NewPasses(ctx)
	begun, finish, passEnded := make(chan struct{}), make(chan struct{}), make(chan struct{})
	calls := 0
	handle := Handler(passes, "slow", func(_ string, s *corev1.Secret) (*corev1.Secret, error) {
		calls++
		close(begun)
		<-finish
		close(passEnded)
		return s, nil
	})
	go func() { _, _ = handle("ns/name", nil) }()
	<-begun
	stop()
	waited := make(chan struct{})
	go func() { passes.Wait(); close(waited) }()
	select {
	case <-waited:
		t.Fatal("did not wait")
	default:
	}
	close(finish)
	<-waited
	<-passEnded
	_, err := handle("ns/other", nil)
	require.NoError(t, err)
	assert.Equal(t, 1, calls)
}

func TestPassesContext(t *testing.T) {
	hub, stop := context.WithCancel(t.Context())
	pass, cancel := NewPasses(hub).Context()
	defer cancel()
	_, bounded := pass.Deadline()
	assert.True(t, bounded)
	stop()
	assert.ErrorIs(t, pass.Err(), context.Canceled)
}

func TestDelays(t *testing.T) {
	c := &Context{}
	assert.Equal(t, DefaultStatusDelay, c.StatusDelay())
	assert.Equal(t, DefaultRepairDelay, c.RepairDelay())
	c.Delays = Delays{Status: time.Minute, Repair: time.Hour}
	assert.Equal(t, time.Minute, c.StatusDelay())
	assert.Equal(t, time.Hour, c.RepairDelay())
}
