package launch

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestMetricsAreServedUntilTheEnd(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())

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
