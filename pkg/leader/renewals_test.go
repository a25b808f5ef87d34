package leader

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// slow is a Lease whose API server takes its time, and answers with an error from some moment on.
type slow struct {
	resourcelock.Interface
	takes  time.Duration
	fails  bool
	holder string
	renew  time.Time
}

func (s *slow) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{HolderIdentity: s.holder, RenewTime: metav1.NewTime(s.renew)}, nil, nil
}

func (s *slow) Identity() string { return "me" }

func (s *slow) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return s.Update(ctx, record)
}

func (s *slow) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	time.Sleep(s.takes)
	if s.fails {
		return errors.New("etcd has a bad day")
	}
	return nil
}

const deadline = 8 * time.Second

// watched notes when the term ends, counted from now.
func watched(ctx context.Context, r *renewals) *time.Duration {
	began, after := time.Now(), new(time.Duration)
	go r.watch(ctx, deadline, func() { *after = time.Since(began) })
	return after
}

func TestRenewalsEndTheTerm(t *testing.T) {
	mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
	for name, test := range map[string]struct {
		then func(*renewals, *slow)
		want time.Duration
	}{
		"nothing is renewed": {func(*renewals, *slow) {}, deadline - 2*time.Second},
		"it is renewed in time, by a slow server": {func(r *renewals, _ *slow) {
			time.Sleep(3 * time.Second)
			_ = r.Update(context.Background(), mine)
		}, 3*time.Second + deadline},
		"a renewal that fails does not count": {func(r *renewals, s *slow) {
			time.Sleep(3 * time.Second)
			s.fails = true
			_ = r.Update(context.Background(), mine)
		}, deadline - 2*time.Second},
		"giving back is no renewal": {func(r *renewals, _ *slow) {
			time.Sleep(3 * time.Second)
			_ = r.Update(context.Background(), resourcelock.LeaderElectionRecord{})
		}, deadline - 2*time.Second},
		"another process has taken it": {func(r *renewals, s *slow) {
			time.Sleep(3 * time.Second)
			s.holder = "another"
			_, _, _ = r.Get(context.Background())
		}, 3 * time.Second},
		"etcd was restored": {func(r *renewals, s *slow) {
			time.Sleep(time.Second)
			s.holder, s.renew = "me", time.Now()
			_ = r.Update(context.Background(), resourcelock.LeaderElectionRecord{HolderIdentity: "me", RenewTime: metav1.NewTime(s.renew.Add(time.Second))})
			_, _, _ = r.Get(context.Background())
		}, 3 * time.Second},
		"etcd was restored from a backup in which the Lease is free": {func(r *renewals, _ *slow) {
			time.Sleep(time.Second)
			_ = r.Update(context.Background(), resourcelock.LeaderElectionRecord{HolderIdentity: "me", RenewTime: metav1.Now()})
			_, _, _ = r.Get(context.Background())
		}, 3 * time.Second},
		"it is read": {func(r *renewals, s *slow) {
			for _, s.holder = range []string{"me", ""} {
				_, _, _ = r.Get(context.Background())
			}
		}, deadline - 2*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lock := &slow{takes: 2 * time.Second}
				r := newRenewals(lock)
				require.NoError(t, r.Create(t.Context(), mine))
				ended := watched(t.Context(), r)
				test.then(r, lock)
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.Equal(t, test.want, *ended)
			})
		})
	}
}

func TestRenewalsStopWithTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRenewals(&slow{})
		require.NoError(t, r.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}))
		ctx, stop := context.WithCancel(t.Context())
		ended := watched(ctx, r)
		stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, *ended)
	})
}

func TestRenewalsBeforeTheTerm(t *testing.T) {
	r := newRenewals(&slow{holder: "another"})
	_, _, err := r.Get(t.Context())
	require.NoError(t, err)
	select {
	case <-r.lost:
		assert.Fail(t, "this process has not acquired the Lease yet")
	default:
	}
}
