package shards

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// What docs/scaling.md plans with. Who makes a Cluster bigger changes the plan.
const (
	mostBytesOfACluster      = 36_000
	mostBytesWrittenForIt    = 50_000
	mostBytesOfABeat         = 3_000
	mostBytesOfABeatsMessage = 3_100
)

// etcd is that of a control plane, which listens on a socket.
type etcd struct{ client *http.Client }

func etcdOf(c *testenv.Cluster) etcd {
	socket := filepath.Join(c.Dir(), "etcd.sock:0")
	return etcd{&http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}}
}

func (e etcd) do(t *testing.T, method, path string, body []byte) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://etcd"+path, bytes.NewReader(body))
	require.NoError(t, err)
	answer, err := e.client.Do(req)
	require.NoError(t, err)
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode, "%s", data)
	return data
}

// sizes are the bytes of all that is stored now, keys and values, by kind.
func (e etcd) sizes(t *testing.T) map[string]int {
	t.Helper()
	everything := fmt.Appendf(nil, `{"key":%q,"range_end":%q}`, base64.StdEncoding.EncodeToString([]byte("/registry/")),
		base64.StdEncoding.EncodeToString([]byte("/registry0")))
	var found struct {
		KVs []struct{ Key, Value []byte } `json:"kvs"`
	}
	require.NoError(t, json.Unmarshal(e.do(t, http.MethodPost, "/v3/kv/range", everything), &found))
	sizes := map[string]int{}
	for _, kv := range found.KVs {
		sizes[kindOfKey(string(kv.Key))] += len(kv.Key) + len(kv.Value)
	}
	return sizes
}

func kindOfKey(key string) string {
	parts := strings.Split(strings.TrimPrefix(key, "/registry/"), "/")
	if strings.Contains(parts[0], ".") && len(parts) > 1 {
		return parts[1]
	}
	return parts[0]
}

var putBytes = regexp.MustCompile(`(?m)^etcd_debugging_mvcc_total_put_size_in_bytes (\S+)$`)

// written is how much was ever written.
func (e etcd) written(t *testing.T) int {
	t.Helper()
	found := putBytes.FindSubmatch(e.do(t, http.MethodGet, "/metrics", nil))
	require.NotNil(t, found)
	bytes, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(t, err)
	return int(bytes)
}

func sum(sizes map[string]int) (n int) {
	for kind, size := range sizes {
		if kind != "events" && kind != "leases" { // these go by themselves, or do not grow with the Clusters
			n += size
		}
	}
	return n
}

func TestWhatAClusterCostsIsWhatThePlanSays(t *testing.T) {
	s := newScene(t)
	await(t, []*replica{startAlone(t, s.hub, "hub")}, 16)
	s.token(t, nil)
	store := etcdOf(s.hub)
	s.storm(t, "warm", 5)
	s.requireGranted(t, 5, 0)

	const clusters = 100
	before, writtenBefore := store.sizes(t), store.written(t)
	s.storm(t, "cost", clusters)
	s.requireGranted(t, clusters+5, 0)
	s.beatAll(t, time.Now()) // the hub makes the Bundle of an agent that was heard of
	testenv.Eventually(t, func() (bool, string) {
		all, err := s.hub.Fleet.BundleDeployments("").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(all.Items) == clusters+5, fmt.Sprintf("there are %d BundleDeployments", len(all.Items))
	})
	after, writtenAfter := store.sizes(t), store.written(t)
	for kind, size := range after {
		if grown := size - before[kind]; grown > 0 {
			t.Logf("%7d bytes a cluster: %s", grown/clusters, kind)
		}
	}
	stored, written := (sum(after)-sum(before))/clusters, (writtenAfter-writtenBefore)/clusters
	t.Logf("a cluster is %d bytes in etcd, and %d were written for it", stored, written)
	assert.Less(t, stored, mostBytesOfACluster)
	assert.Less(t, written, mostBytesWrittenForIt)

	began := store.written(t)
	for n := range 5 {
		s.beatAll(t, time.Now().Add(time.Duration(n+1)*time.Second))
	}
	beat := (store.written(t) - began) / 5 / (clusters + 5)
	cluster, err := s.hub.Fleet.Clusters(s.ns).Get(t.Context(), registration.ClusterName("cost-client-000"), metav1.GetOptions{})
	require.NoError(t, err)
	message := len(testenv.Bytes(t, cluster))
	t.Logf("a beat is %d bytes in etcd, and a message of about %d to each who watches", beat, message)
	assert.Less(t, beat, mostBytesOfABeat)
	assert.Less(t, message, mostBytesOfABeatsMessage)
}

// beatAll has every agent check in.
func (s *scene) beatAll(t *testing.T, now time.Time) {
	t.Helper()
	all, err := s.hub.Fleet.Clusters(s.ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, cluster := range all.Items {
		seen := metav1.NewTime(now)
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"agent": fleet.AgentStatus{LastSeen: seen, Namespace: testenv.SystemNamespace}}})
		require.NoError(t, err)
		_, err = s.hub.Fleet.Clusters(s.ns).Patch(t.Context(), cluster.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
}
