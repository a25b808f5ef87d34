package controlplane

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func TestShared(t *testing.T) {
	t.Run("one control plane for each name", func(t *testing.T) {
		first := Shared(t, "member")
		require.Same(t, first, Shared(t, "member"))
	})
	t.Run("clean: reset when no test has it any more", func(t *testing.T) {
		left := func(t *testing.T) (names []string) {
			names, err := configMaps(t.Context(), clientFor(t, Clean(t, "member").RESTConfig()))
			require.NoError(t, err)
			return names
		}
		t.Run("first", func(t *testing.T) {
			createConfigMap(t, clientFor(t, Clean(t, "member").RESTConfig()), "left")
			t.Run("part", func(t *testing.T) { require.Contains(t, left(t), "left") })
			require.Contains(t, left(t), "left")
		})
		t.Run("second", func(t *testing.T) { require.NotContains(t, left(t), "left") })
	})
	t.Run("a failed preparation fails every user and is repeated by the next process", func(t *testing.T) {
		t.Setenv(EnvLender, "")
		b := &borrowed{shared: map[string]*sharedPlane{}}
		b.lender.free = map[string][]freePlane{"broken": {{ControlPlane: &ControlPlane{dir: t.TempDir()}}}} // not started
		t.Cleanup(func() { require.NoError(t, b.stop()) })
		broken := []Prepare{func(context.Context, *ControlPlane) error { return errors.New("broken") }}
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { errs[i] = b.share("broken", broken).err })
		}
		wg.Wait()
		require.ErrorContains(t, errs[0], "broken")
		for _, err := range errs {
			require.Same(t, errs[0], err, "prepared once for all")
		}
	})
}

func TestSkipShort(t *testing.T) {
	before := flag.Lookup("test.short").Value.String()
	require.NoError(t, flag.Set("test.short", "true"))
	t.Cleanup(func() { require.NoError(t, flag.Set("test.short", before)) })
	for name, start := range map[string]func(testing.TB){
		"Shared": func(t testing.TB) { Shared(t, "none") }, "Clean": func(t testing.TB) { Clean(t, "none") },
		"Borrow": func(t testing.TB) { Borrow(t, "none") }, "Own": func(t testing.TB) { Own(t, Options{Name: "none"}) },
	} {
		require.PanicsWithValue(t, "it needs API servers, which -short leaves out", func() { start(skipped{}) }, name)
	}
}

// skipped is a test that panics when it is skipped or fails.
type skipped struct{ testing.TB }

func (skipped) Helper()           {}
func (skipped) Skip(args ...any)  { panic(fmt.Sprint(args...)) }
func (skipped) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

func TestLender(t *testing.T) {
	sample.Long(t)
	original := Borrow(t, "member") // instead of a start for each
	served := &Lender{start: func(context.Context, Options) (*ControlPlane, error) { return copyOf(original) }}
	socket := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	go served.Serve(t.Context(), listener)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	t.Setenv(EnvLender, socket)
	otherProcess := &borrowed{}
	prepared := 0
	prepare := []Prepare{func(ctx context.Context, c *ControlPlane) error {
		prepared++
		_, err := clientFor(t, c.RESTConfig()).CoreV1().Namespaces().
			Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prepared"}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // by another copy
			return nil
		}
		return err
	}}

	plane, giveBack, err := otherProcess.borrow("pooled", prepare)
	require.NoError(t, err)
	client := clientFor(t, plane.RESTConfig()).CoreV1()
	_, err = client.ConfigMaps("prepared").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.ErrorContains(t, plane.StartAPIServer(t.Context()), "belongs to another process")
	require.NoError(t, plane.Stop(), "has no effect")

	other, giveBackOther, err := otherProcess.borrow("pooled", prepare)
	require.NoError(t, err)
	require.NotEqual(t, plane.dir, other.dir, "the first one is still lent")
	giveBackOther()
	requireFree(t, served, 1) // the lender notices the end of a connection a moment later
	giveBack()
	requireFree(t, served, 2)

	again, giveBack, err := otherProcess.borrow("pooled", prepare)
	require.NoError(t, err)
	require.Equal(t, plane.dir, again.dir, "the last one that was returned")
	client = clientFor(t, again.RESTConfig()).CoreV1()
	_, err = client.ConfigMaps("prepared").Get(t.Context(), "left", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "it was reset: %v", err)
	_, err = client.Namespaces().Get(t.Context(), "prepared", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, prepared, "once for each control plane")

	t.Run("a control plane that cannot be reset is replaced", func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorContains(t, again.Reset(ended), "waited")
		giveBack()
		require.Eventually(t, func() bool {
			_, err := os.Stat(again.dir)
			return errors.Is(err, fs.ErrNotExist)
		}, soon, pace.First, "the lender stops it")

		tests := &borrowed{shared: map[string]*sharedPlane{}}
		first, release, err := tests.hold("pooled", prepare)
		require.NoError(t, err)
		release()
		require.NoError(t, writeFiles(first.dir, map[string][]byte{fileCheckpoint: []byte("not JSON")}))
		first.checkpoint = nil
		_, _, err = tests.hold("pooled", prepare)
		require.ErrorContains(t, err, "invalid character", "the test that finds it fails")
		second, release, err := tests.hold("pooled", prepare)
		require.NoError(t, err, "the next does not")
		require.NotEqual(t, first.dir, second.dir)
		release()

		require.NoError(t, writeFiles(second.dir, map[string][]byte{fileCheckpoint: []byte("not JSON")}))
		require.NoError(t, tests.stop())
		third, giveBack, err := otherProcess.borrow("pooled", prepare)
		require.NoError(t, err, "left by another process")
		require.NotEqual(t, second.dir, third.dir)
		giveBack()
	})

	require.NoError(t, served.Stop())
	for _, c := range served.started {
		require.True(t, c.stopped)
		require.NoDirExists(t, c.dir)
	}
	_, _, err = otherProcess.borrow("pooled", prepare)
	require.ErrorContains(t, err, "are being stopped")
}

// copyOf returns the same control plane with a directory of its own, for another checkpoint.
func copyOf(c *ControlPlane) (*ControlPlane, error) {
	dir, err := c.options.makeDir()
	if err != nil {
		return nil, err
	}
	return &ControlPlane{options: c.options, dir: dir, identities: c.identities, port: c.port},
		os.Symlink(filepath.Join(c.dir, etcdSocket), filepath.Join(dir, etcdSocket))
}

func TestFreeControlPlanes(t *testing.T) {
	now := time.Now()
	l := &Lender{
		now: func() time.Time { return now },
		start: func(_ context.Context, o Options) (*ControlPlane, error) {
			return &ControlPlane{options: o, dir: t.TempDir()}, nil
		},
	}
	borrow := func(name string) (*ControlPlane, func()) {
		t.Helper()
		plane, giveBack, err := l.borrow(t.Context(), name)
		require.NoError(t, err)
		return plane, giveBack
	}
	hub, returnHub := borrow("hub")
	first, returnFirst := borrow("member")
	second, returnSecond := borrow("member")
	returnHub()
	now = now.Add(maxFree / 2)
	returnFirst()
	now = now.Add(maxFree/2 + 1)
	returnSecond()
	require.True(t, hub.stopped, "nobody borrowed it for longer than maxFree")
	require.False(t, first.stopped)
	require.False(t, second.stopped)

	again, returnAgain := borrow("hub")
	require.NotSame(t, hub, again)
	returnAgain()
	again, _ = borrow("member")
	require.Same(t, second, again, "the last one that was returned")
	now = now.Add(maxFree)
	_, returnOther := borrow("other")
	returnOther()
	require.True(t, first.stopped)
	require.False(t, second.stopped, "it is lent")
}

// requireFree waits until the lender has this number of control planes that nobody borrows.
func requireFree(t *testing.T, l *Lender, want int) {
	t.Helper()
	require.Eventually(t, func() bool {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		return len(l.free["pooled"]) == want
	}, soon, pace.First)
}
