package preserve

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

var noon = metav1.NewTime(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))

// seenAt returns the status of an agent n minutes after noon, as Fleet's controller writes it.
func seenAt(minutes int) fleet.AgentStatus {
	return fleet.AgentStatus{LastSeen: metav1.NewTime(noon.Add(time.Duration(minutes) * time.Minute)), Namespace: "agent"}
}

// reportAt returns the report of an agent of Muster n minutes after noon.
func reportAt(n int) fleet.AgentStatus {
	agent := seenAt(n)
	agent.Version, agent.Instance, agent.CheckinInterval = "v1", "i", &metav1.Duration{Duration: time.Minute}
	agent.ClockSkew, agent.Registration, agent.PossessionProof = &metav1.Duration{Duration: time.Hour}, "r-1", "r-2"
	return agent
}

func clusterOf(agent fleet.AgentStatus) *fleet.Cluster {
	return &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Status: fleet.ClusterStatus{Agent: agent}}
}

func TestAnnotation(t *testing.T) {
	cluster := clusterOf(fleet.AgentStatus{})
	text, err := Annotation(cluster)
	require.NoError(t, err)
	assert.Empty(t, text, "nothing to preserve")

	cluster = clusterOf(reportAt(1))
	cluster.Status.Import = &fleet.ImportStatus{Generation: "3"}
	text, err = Annotation(cluster)
	require.NoError(t, err)
	assert.JSONEq(t, `{"import":{"generation":"3"},"agent":{
		"lastSeen":null,"namespace":"","version":"v1","instance":"i","checkinInterval":"1m0s","clockSkew":"1h0m0s"}}`, text, "without proofs")

	cluster.Annotations = map[string]string{fleet.StatusAnnotation: text}
	for name, row := range map[string]struct {
		skew time.Duration
		same bool
	}{"a slightly other clock skew": {time.Hour + time.Second, true}, "another clock skew": {0, false}} {
		t.Run(name, func(t *testing.T) {
			cluster.Status.Agent.ClockSkew = &metav1.Duration{Duration: row.skew}
			again, err := Annotation(cluster)
			require.NoError(t, err)
			assert.Equal(t, row.same, again == text)
		})
	}
}

func TestTransform(t *testing.T) {
	stored, err := Annotation(clusterOf(reportAt(0)))
	require.NoError(t, err)
	withoutProofs := func(agent fleet.AgentStatus) fleet.AgentStatus {
		agent.Registration, agent.PossessionProof = "", ""
		return agent
	}
	for _, row := range []struct {
		name      string
		annotated bool
		versions  []fleet.AgentStatus
		want      fleet.AgentStatus
	}{
		{"a report", false, []fleet.AgentStatus{reportAt(1)}, reportAt(1)},
		{"no agent yet", true, []fleet.AgentStatus{{}}, fleet.AgentStatus{}},
		{"another agent", false, []fleet.AgentStatus{seenAt(1)}, seenAt(1)},
		{"the fields removed", false, []fleet.AgentStatus{reportAt(1), seenAt(1)}, reportAt(1)},
		{"removed before the hub started", true, []fleet.AgentStatus{seenAt(1)}, withoutProofs(reportAt(1))},
		{"a report that the watch missed", false, []fleet.AgentStatus{reportAt(1), seenAt(2)}, reportAt(2)},
		{"the fields are removed again after a missed report", false, []fleet.AgentStatus{reportAt(1), seenAt(2), seenAt(2)}, reportAt(2)},
		{"two heartbeats of another agent", true, []fleet.AgentStatus{reportAt(1), seenAt(2), seenAt(3)}, seenAt(3)},
		{"two heartbeats of another agent after the start of the hub", true, []fleet.AgentStatus{seenAt(1), seenAt(2), seenAt(3)}, seenAt(3)},
		{"a report after two heartbeats of another agent", true, []fleet.AgentStatus{reportAt(1), seenAt(2), seenAt(3), reportAt(4), seenAt(4)}, reportAt(4)},
		{"the agent is installed again", false, []fleet.AgentStatus{reportAt(1), {}, seenAt(2)}, seenAt(2)},
	} {
		t.Run(row.name, func(t *testing.T) {
			var agents AgentReports
			var cluster *fleet.Cluster
			for _, version := range row.versions {
				cluster = clusterOf(version)
				if row.annotated {
					cluster.Annotations = map[string]string{fleet.StatusAnnotation: stored}
				}
				_, err := agents.Transform(cluster)
				require.NoError(t, err)
			}
			assert.True(t, row.want.LastSeen.Equal(&cluster.Status.Agent.LastSeen))
			cluster.Status.Agent.LastSeen = row.want.LastSeen
			assert.Equal(t, row.want, cluster.Status.Agent)
		})
	}
	t.Run("a deleted Cluster is forgotten", func(t *testing.T) {
		var agents AgentReports
		_, err := agents.Transform(clusterOf(reportAt(1)))
		require.NoError(t, err)
		agents.Forget(cache.DeletedFinalStateUnknown{Obj: clusterOf(seenAt(1))})
		assert.Empty(t, agents.reports)
	})
}

func TestRestore(t *testing.T) {
	for name, row := range map[string]struct {
		annotation string
		want       *fleet.ImportStatus
	}{
		"no annotation":                  {"", &fleet.ImportStatus{Generation: "old"}},
		"the annotation has precedence":  {`{"import":{"generation":"new"}}`, &fleet.ImportStatus{Generation: "new"}},
		"an annotation that is no JSON":  {"x", &fleet.ImportStatus{Generation: "old"}},
		"an annotation without an agent": {`{}`, &fleet.ImportStatus{Generation: "old"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := clusterOf(seenAt(1))
			cluster.Status.Import = &fleet.ImportStatus{Generation: "old"}
			cluster.Annotations = map[string]string{fleet.StatusAnnotation: row.annotation}
			Restore(cluster)
			assert.Equal(t, row.want, cluster.Status.Import)
			assert.Equal(t, seenAt(1), cluster.Status.Agent)
		})
	}
}

// A user may write an annotation of up to 256 KiB. Decoded lists take several times their JSON.
func TestRestore_large(t *testing.T) {
	cluster := clusterOf(seenAt(1))
	for n, want := range map[int]bool{10_000: true, 90_000: false} {
		cluster.Status.Import = nil
		cluster.Annotations = map[string]string{fleet.StatusAnnotation: `{"import":{"staleAgentNamespaces":[` + strings.Repeat(`"",`, n) + `""]}}`}
		Restore(cluster)
		assert.Equal(t, want, cluster.Status.Import != nil, n)
	}
}

// An admission policy limits the characters of status.agent, which JSON may write as six bytes each.
func TestRestore_longestReport(t *testing.T) {
	cluster := clusterOf(reportAt(1))
	cluster.Status.Import, cluster.Status.Agent.Version = &fleet.ImportStatus{Generation: "3"}, strings.Repeat("<", 16_384)
	text, err := Annotation(cluster)
	require.NoError(t, err)
	cluster.Status.Import, cluster.Annotations = nil, map[string]string{fleet.StatusAnnotation: text}
	Restore(cluster)
	assert.NotNil(t, cluster.Status.Import)
}

// A user may write the annotation, and the API server checks no quantity in it. A quantity with a large exponent takes minutes and gigabytes to
// decode.
func TestRestore_quantities(t *testing.T) {
	for quantity, restored := range map[string]bool{`"16"`: true, `4`: true, `"64Gi"`: true, `"1e3"`: true, `"1.5e-99999"`: false, `"1e+99999"`: false, `"1e1.5"`: false} {
		t.Run(quantity, func(t *testing.T) {
			cluster := clusterOf(seenAt(1))
			cluster.Annotations = map[string]string{fleet.StatusAnnotation: `{"agent":{"version":"v1","capacity":{"cpu":` + quantity + `}}}`}
			Restore(cluster)
			assert.Equal(t, restored, cluster.Status.Agent.Version != "")
			assert.Equal(t, restored, len(cluster.Status.Agent.Capacity) > 0)
			assert.Equal(t, seenAt(1).LastSeen, cluster.Status.Agent.LastSeen)
		})
	}
}

// With a proof of possession, an agent registers for a Cluster that has an agent, without an approval. A user who may write a Cluster, but
// not its status, must not be able to forge one.
func TestRestore_proofs(t *testing.T) {
	forged := `{"agent":{"version":"v1","registration":"r-1","vouches":"r-2"}}`
	var agents AgentReports
	for name, restore := range map[string]func(*fleet.Cluster){
		"restored":                  Restore,
		"on the way into the cache": func(c *fleet.Cluster) { _, _ = agents.Transform(c) },
	} {
		t.Run(name, func(t *testing.T) {
			cluster := clusterOf(seenAt(1))
			cluster.Annotations = map[string]string{fleet.StatusAnnotation: forged}
			restore(cluster)
			assert.Equal(t, "v1", cluster.Status.Agent.Version)
			assert.Empty(t, cluster.Status.Agent.Registration)
			assert.Empty(t, cluster.Status.Agent.PossessionProof)
		})
	}
}
