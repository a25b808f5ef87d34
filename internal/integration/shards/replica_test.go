package shards

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/controllers"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/shard"
)

// mainLease is the one that a hub has which shares with nobody.
const mainLease = "fleet-agentmanagement-lock"

// Times of Leases. Where no hub is lost they are long, for a machine that is so busy that none of them is heard for a while.
var (
	patient = leader.Times{LeaseDuration: 90 * time.Second, RenewDeadline: 80 * time.Second, RetryPeriod: time.Second}
	quick   = leader.Times{LeaseDuration: 15 * time.Second, RenewDeadline: 11 * time.Second, RetryPeriod: time.Second}
)

// replica is a hub, as it is one process.
type replica struct {
	name  string
	wire  *wire
	stop  context.CancelFunc
	ended chan error

	mu      sync.Mutex
	held    int
	gained  time.Time // when it last had more shards than before
	stopped time.Time // when its work was told to end
}

func start(t *testing.T, hub *testenv.Cluster, name string) *replica {
	return startIn(t, hub, name, patient)
}

func startIn(t *testing.T, hub *testenv.Cluster, name string, times leader.Times) *replica {
	return startWith(t, hub, name, func(ctx context.Context, r *replica, main leader.Election, o controllers.Options) error {
		options := shard.Options{Main: main, Release: "test", Times: times, OnHeld: r.holds}
		return shard.Run(ctx, options, func(ctx context.Context, gate *shard.Gate) error {
			defer context.AfterFunc(ctx, r.noteStop)()
			o.Shards = gate
			return controllers.Run(ctx, o)
		})
	})
}

// startAlone starts a hub that knows nothing of shards.
func startAlone(t *testing.T, hub *testenv.Cluster, name string) *replica {
	return startWith(t, hub, name, func(ctx context.Context, r *replica, main leader.Election, o controllers.Options) error {
		return leader.Run(ctx, main, func(ctx context.Context) error {
			o.OnReady = func() { r.holds(shard.Count) }
			return controllers.Run(ctx, o)
		})
	})
}

type runner func(ctx context.Context, r *replica, main leader.Election, o controllers.Options) error

func startWith(t *testing.T, hub *testenv.Cluster, name string, run runner) *replica {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &replica{name: name, wire: newWire(), stop: stop, ended: make(chan error, 1)}
	cfg := hub.RESTConfig()
	cfg.Wrap(r.wire.wrap)
	main := leader.Election{
		Client: rest.CopyConfig(cfg), Namespace: testenv.SystemNamespace, Name: mainLease, Identity: name, Times: patient,
	}
	options := controllers.Options{
		RESTConfig: cfg, DisableBootstrap: true, ImportBackoff: app.Backoff{Base: 200 * time.Millisecond, Max: time.Second},
	}
	go func() { r.ended <- run(ctx, r, main, options) }()
	t.Cleanup(func() { r.end(t) })
	return r
}

func (r *replica) holds(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.held {
		r.gained = time.Now()
	}
	r.held = n
}

func (r *replica) noteStop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = time.Now()
}

func (r *replica) holding() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// await waits until the replicas hold so many shards, in this order.
func await(t *testing.T, replicas []*replica, want ...int) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		got := make([]int, len(replicas))
		for i, r := range replicas {
			got[i] = r.holding()
			select {
			case err := <-r.ended:
				r.ended <- err // for the one who cleans up
				t.Fatalf("%s has ended: %v", r.name, err)
			default:
			}
		}
		return fmt.Sprint(got) == fmt.Sprint(want), fmt.Sprintf("they hold %v shards, want %v", got, want)
	})
}

// end stops the replica as a kubelet does, and waits.
func (r *replica) end(t *testing.T) {
	t.Helper()
	r.stop()
	r.wire.heal()
	if err := r.wait(t); !errors.Is(err, leader.ErrLost) && !errors.Is(err, shard.ErrNotShared) {
		require.NoError(t, err)
	}
}

// wait returns when the replica has ended. It may be called twice.
func (r *replica) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		return err
	case <-time.After(testenv.Patience):
		t.Fatalf("%s did not end", r.name)
		return nil
	}
}

// wire is the way of a replica to the API server.
type wire struct {
	mu   sync.Mutex
	cut  chan struct{} // closed when it is cut through
	dead bool
	sent []sent
}

type sent struct {
	method, path string
	code         int
	at           time.Time
}

var errCut = errors.New("this wire is cut")

func newWire() *wire { return &wire{cut: make(chan struct{})} }

func (w *wire) wrap(next http.RoundTripper) http.RoundTripper { return wired{w, next} }

// kill ends the replica as far as anybody can tell: it is not heard any more, and hears nothing.
func (w *wire) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	close(w.cut)
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		w.dead, w.cut = false, make(chan struct{})
	}
}

type wired struct {
	wire *wire
	next http.RoundTripper
}

// RoundTrip sends the request. Once the wire is cut there is no answer, and no error either until the caller gives up.
func (w wired) RoundTrip(req *http.Request) (*http.Response, error) {
	w.wire.mu.Lock()
	dead, cut := w.wire.dead, w.wire.cut
	w.wire.mu.Unlock()
	if dead {
		<-req.Context().Done()
		return nil, errCut
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	go func() {
		select {
		case <-cut:
			cancel(errCut)
		case <-ctx.Done():
		}
	}()
	answer, err := w.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	w.wire.note(req, answer.StatusCode)
	return answer, nil
}

// WrappedRoundTripper lets client-go reach the transport, to close its connections.
func (w wired) WrappedRoundTripper() http.RoundTripper { return w.next }

// note keeps what may have changed something of the hub's; Leases and events are beside it.
func (w *wire) note(req *http.Request, code int) {
	if req.Method == http.MethodGet || strings.Contains(req.URL.Path, "/leases") || strings.HasSuffix(req.URL.Path, "/events") ||
		req.URL.Query().Has("dryRun") {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, sent{req.Method, req.URL.Path, code, time.Now()})
}

// writes are those that went through, by method and path, that path matches.
func (r *replica) writes(matches func(sent) bool) map[string]int {
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	counts := map[string]int{}
	for _, s := range r.wire.sent {
		if s.code < http.StatusBadRequest && matches(s) {
			counts[s.method+" "+s.path]++
		}
	}
	return counts
}

// tokens are the credentials it has issued, by the account.
func (r *replica) tokens() map[string]int {
	return r.writes(func(s sent) bool { return strings.HasSuffix(s.path, "/token") })
}

func (r *replica) lastWrite() time.Time {
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	if len(r.wire.sent) == 0 {
		return time.Time{}
	}
	return r.wire.sent[len(r.wire.sent)-1].at
}
