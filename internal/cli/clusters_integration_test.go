package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// fleetOf creates Clusters in a namespace of a control plane without a hub.
func fleetOf(t *testing.T, clusters ...fleet.Cluster) person {
	t.Helper()
	hub := testenv.SharedCluster(t, "hub")
	p := person{t, hub, hub.Namespace(t)}
	t.Setenv("KUBECONFIG", memberConfig(t, hub))
	var writes errgroup.Group
	writes.SetLimit(20)
	for _, c := range clusters {
		writes.Go(func() error {
			created, err := hub.Fleet.Clusters(p.namespace).Create(t.Context(), &c, metav1.CreateOptions{})
			if err != nil || c.Status.Conditions == nil {
				return err
			}
			created.Status = c.Status
			_, err = hub.Fleet.Clusters(p.namespace).UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
			return err
		})
	}
	require.NoError(t, writes.Wait())
	return p
}

func registeredCluster(name string, connected corev1.ConditionStatus, lastSeen time.Time) fleet.Cluster {
	return fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"region": name[:2]}},
		Status: fleet.ClusterStatus{
			Agent: fleet.AgentStatus{LastSeen: metav1.NewTime(lastSeen), Namespace: "cattle-fleet-system"},
			Conditions: []testenv.Generic{
				{Type: fleet.ConditionRegistered, Status: corev1.ConditionTrue}, {Type: fleet.ConditionConnected, Status: connected},
			},
		},
	}
}

func TestClusters(t *testing.T) {
	now := time.Now()
	p := fleetOf(t,
		registeredCluster("eu-new", corev1.ConditionTrue, now.Add(-time.Minute)),
		registeredCluster("eu-old", corev1.ConditionTrue, now.Add(-time.Hour)),
		registeredCluster("us-off", corev1.ConditionFalse, now.Add(-20*time.Minute)),
		fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "us-never"}},
	)
	names := func(args ...string) string {
		t.Helper()
		var list items[view.Cluster]
		require.NoError(t, json.Unmarshal([]byte(p.mustRun(append([]string{"clusters", "-o", "json"}, args...)...)), &list))
		var found []string
		for _, v := range list.Items {
			found = append(found, v.Name)
		}
		return strings.Join(found, " ")
	}
	assert.Equal(t, "eu-new eu-old us-never us-off", names())
	assert.Equal(t, "eu-new eu-old", names("-l", "region=eu"))
	assert.Equal(t, "us-off", names("--state", "Offline"))
	assert.Equal(t, "us-never us-off", names("--state", "Offline", "--state", "New"))
	assert.Equal(t, "us-off us-never eu-new eu-old", names("--sort", "state"))
	assert.Equal(t, "us-never eu-old us-off eu-new", names("--sort", "last-seen"))
	assert.Equal(t, "eu-old us-off", names("us-off", "eu-old"))

	out, said, err := p.run("clusters")
	require.NoError(t, err)
	requireGolden(t, "clusters.txt", out+said)

	// The Lease of an agent has a later heartbeat than the status.
	namespace := registration.ClusterNamespace(p.namespace, "eu-old")
	testenv.Create(t, p.hub.Kubernetes.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue}},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now.Add(-time.Second)}},
	}
	testenv.Create(t, p.hub.Kubernetes.CoordinationV1().Leases(namespace).Create, lease)
	assert.Equal(t, "us-never us-off eu-new eu-old", names("--sort", "last-seen"))
	require.Regexp(t, ` \d+s ago\n`, p.mustRun("clusters", "eu-old"))
	assert.Contains(t, p.mustRun("describe", "eu-old"), "last heartbeat "+now.Add(-time.Second).UTC().Format(time.RFC3339))
	out, said, err = p.run("clusters", "us-off", "mars")
	require.EqualError(t, err, "there is no Cluster mars in namespace "+p.namespace+" (-A for all)")
	require.Contains(t, out, "us-off")
	require.Equal(t, "1 cluster: 1 Offline\n", said)

	// A hub that does not run any more leaves all states as they are.
	stopped := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: registration.HubLease},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now.Add(-3 * time.Hour)}, LeaseDurationSeconds: ptr.To[int32](15)},
	}
	testenv.Create(t, p.hub.Kubernetes.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: registration.DefaultSystemNamespace}})
	leases := p.hub.Kubernetes.CoordinationV1().Leases(registration.DefaultSystemNamespace)
	testenv.Create(t, leases.Create, stopped)
	_, said, err = p.run("clusters", "us-off")
	require.NoError(t, err)
	require.Equal(t, "1 cluster: 1 Offline\nNo hub has renewed its Lease in namespace cattle-fleet-system for 3h, so the states can be older than that: `muster check` finds out why.\n", said)
	require.NoError(t, leases.Delete(t.Context(), stopped.Name, metav1.DeleteOptions{}))

	p.actsAsViewer()
	out, said, err = p.run("clusters")
	require.NoError(t, err)
	require.Contains(t, out, "eu-old")
	require.Regexp(t, `^LAST-SEEN can be older than the last heartbeat: list Leases: leases.coordination.k8s.io is forbidden: .*\n4 clusters: `, said)
}

// The API server returns at most a page of 500 at once.
func TestClustersOfSeveralPages(t *testing.T) {
	var many []fleet.Cluster
	for i := range 501 {
		many = append(many, fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i)}})
	}
	p := fleetOf(t, many...)
	out, said, err := p.run("clusters")
	require.NoError(t, err)
	require.Equal(t, "501 clusters: 501 New\n", said)
	require.Equal(t, 502, strings.Count(out, "\n"))
}

func TestClustersWatch(t *testing.T) {
	p := fleetOf(t, registeredCluster("east", corev1.ConditionTrue, time.Now()), registeredCluster("west", corev1.ConditionTrue, time.Now()))
	ctx, stop := context.WithCancel(t.Context())
	var out lockedBuffer
	app := App(Streams{Out: &out, Err: &out, Env: func(string) string { return "" }, Now: time.Now})
	ended := make(chan error, 1)
	go func() {
		ended <- app.RunContext(ctx, FlagsFirst(app, []string{"muster", "clusters", "--watch", "-n", p.namespace}))
	}()
	shows := func(lines ...string) {
		t.Helper()
		testenv.Eventually(t, func() (bool, string) { return strings.Count(out.String(), "\n") >= len(lines), out.String() })
		got := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, got, len(lines), out.String())
		for i, line := range lines {
			require.Regexp(t, line, got[i])
		}
	}
	list := []string{"^NAMESPACE", "east +agent +Registered", "west +agent +Registered", "^2 clusters: 2 Registered"}
	shows(list...)

	// A heartbeat is no news. What comes after it is shown alone.
	clusters := p.hub.Fleet.Clusters(p.namespace)
	testenv.Merge(t, clusters.Patch, "east", `{"status":{"agent":{"lastSeen":"2026-01-01T00:00:00Z"}}}`, "status")
	testenv.Merge(t, clusters.Patch, "west", `{"spec":{"quarantined":true}}`)
	list = append(list, "west +agent +Quarantined")
	shows(list...)
	require.NoError(t, clusters.Delete(t.Context(), "east", metav1.DeleteOptions{}))
	shows(append(list, "east +agent +Deleted")...)
	stop()
	require.NoError(t, <-ended)

	p.actsAsViewer()
	_, _, err := p.run("clusters", "-A", "--watch")
	require.ErrorContains(t, err, "forbidden")
}

// lockedBuffer is a buffer to which one goroutine writes while another reads.
type lockedBuffer struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.String()
}
