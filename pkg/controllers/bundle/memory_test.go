//go:build !race

// The race detector needs memory of its own for each object, so its build measures something else.

package bundle

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func heap() int {
	runtime.GC()
	runtime.GC() // the first one only empties pools and queues finalizers
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// A tenant may have the hub write a megabyte of other values for each Cluster.
func TestMemoryOfHelmValues(t *testing.T) {
	const secrets, size, limit = 64, 1 << 20, 1024
	s := newStage(t)
	before := heap()
	for i := range secrets {
		values := bytes.Repeat([]byte{byte(i)}, size)
		s.values.remember(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), ResourceVersion: "1"}}, helmValues{current: values, staged: values})
	}
	each := (heap() - before) / secrets
	t.Logf("%d bytes", each)
	assert.Less(t, each, limit, "bytes for the values of each BundleDeployment")
	runtime.KeepAlive(s)
}

// Each Cluster has a Bundle of its own for its agent, so what the Deployer remembers of a Bundle is in memory ten thousand times.
func TestMemoryOfABundle(t *testing.T) {
	const bundles, limit = 2000, 2500
	s := newStage(t)
	before := heap()
	for i := range bundles {
		b := toAlice()
		b.Name = fmt.Sprint("agent-", i)
		p := s.plans.of(b)
		_, err := p.variant([]int{0}, clusterNamed("alice"))
		require.NoError(t, err)
		s.enqueueAffected(b, p)
		delete(s.changedAt, keyOf(b)) // as updateStatus does
	}
	each := (heap() - before) / bundles
	t.Logf("%d bytes", each)
	assert.Less(t, each, limit, "bytes for each Bundle")
	runtime.KeepAlive(s)
}
