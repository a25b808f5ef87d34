package launch

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// unusedAddress is one at which nobody listens. It is below the ports that Linux gives to outgoing connections, and those of
// control planes: one of these, of any process on the machine, might take it before it is listened on.
func unusedAddress(t *testing.T) string {
	t.Helper()
	for {
		listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10000+rand.IntN(10000)))
		if err != nil {
			continue
		}
		require.NoError(t, listener.Close())
		return listener.Addr().String()
	}
}

func TestMetricsAreServedUntilTheEnd(t *testing.T) {
	address := unusedAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	registerer, err := Metrics(ctx, address)
	require.NoError(t, err)
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "muster_test_total"})
	registerer.MustRegister(counter)
	counter.Inc()

	answer, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Contains(t, string(body), "muster_test_total 1")
	require.Contains(t, string(body), "go_goroutines")

	_, err = Metrics(ctx, address)
	require.ErrorContains(t, err, "metrics at "+address)

	stop()
	require.Eventually(t, func() bool {
		answer, err := http.Get("http://" + address + "/metrics")
		if err == nil {
			_ = answer.Body.Close()
		}
		return err != nil
	}, 2*time.Minute, 20*time.Millisecond)
}
