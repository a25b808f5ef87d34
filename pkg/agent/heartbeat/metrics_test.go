package heartbeat

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAgentMetrics(t *testing.T) {
	c, registry := NewAgentMetrics("v1"), prometheus.NewRegistry()
	require.NoError(t, registry.Register(c))
	expires := metav1.NewTime(time.Unix(1800000000, 0))
	c.count(nil, &expires)
	c.count(assert.AnError, &expires)
	c.count(nil, &expires)
	assert.InDelta(t, 2, testutil.ToFloat64(c.sent.WithLabelValues("sent")), 0)
	assert.InDelta(t, 1, testutil.ToFloat64(c.sent.WithLabelValues("failed")), 0)
	assert.InDelta(t, 1800000000, testutil.ToFloat64(c.expires), 0)
	c.count(nil, nil)
	assert.Zero(t, testutil.ToFloat64(c.expires), "it does not expire")
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	assert.Empty(t, problems)
	require.True(t, registry.Unregister(c), "for the next agent of this process")
}
