package attacks

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Each kind has a watch of its own, so the hub may see that a token is ready before it sees the Secret of the token.
func TestImportWhileTheCacheOfSecretsLags(t *testing.T) {
	hub, member := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	wire, secrets := &testenv.Recorder{}, &lag{path: "/api/v1/secrets", labelSelector: fleet.ManagedLabel}
	wire.Inject(secrets.harm)
	hub.Hub(t, wire.Wrap)
	s := newScene(t, hub, member)
	s.cluster()
	hub.ClusterCondition(t, s.ns, object, fleet.ConditionImported, "Unknown WaitingForKubeconfig") // after the first status, the hub writes the next reason of a wait at once
	secrets.begin()
	s.goodSecret()
	testenv.EventuallyThere(t, hub.Kubernetes.CoreV1().Secrets(s.ns).Get, "import-token-"+object)
	hub.ClusterCondition(t, s.ns, object, fleet.ConditionImported, "Unknown Importing")
	secrets.deliver()
	testenv.Eventually(t, func() (bool, string) {
		got := hub.ConditionOf(testenv.KindCluster, s.ns, object, fleet.ConditionImported)
		return strings.HasPrefix(got, "True"), got
	})
}

// lag delays the events of one watch, so that the cache of the hub is out of date. Inject harm before the hub starts.
type lag struct {
	path, labelSelector string

	mu  sync.Mutex
	end chan struct{} // nil while there is no lag
}

// begin begins the delay.
func (l *lag) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = make(chan struct{})
}

// deliver delivers all delayed events.
func (l *lag) deliver() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.end)
	l.end = nil
}

// harm is for Recorder.Inject.
func (l *lag) harm(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
	response, err := send()
	query := req.URL.Query()
	if err == nil && req.URL.Path == l.path && query.Get("watch") != "" && strings.Contains(query.Get("labelSelector"), l.labelSelector) {
		response.Body = &delayed{ReadCloser: response.Body, lag: l, closed: req.Context().Done()}
	}
	return response, err
}

type delayed struct {
	io.ReadCloser
	lag    *lag
	closed <-chan struct{}
}

// Read waits until the delay ends.
func (d *delayed) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	d.lag.mu.Lock()
	end := d.lag.end
	d.lag.mu.Unlock()
	if end != nil {
		select {
		case <-end:
		case <-d.closed:
		}
	}
	return n, err
}
