// Package preserve keeps the fields of a Cluster's status that Fleet's own Cluster controller does not know. That controller writes
// the whole status with a type of its own, so that each of its writes removes status.import and most of status.agent. A hub that
// works beside it (disableBundles) stores these fields in an annotation, and its cache shows each Cluster as if they were in the
// status: the rest of the hub does not notice the difference.
package preserve

import (
	"encoding/json"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// document is the JSON document in the annotation.
type document struct {
	Import *fleet.ImportStatus `json:"import,omitempty"`
	Agent  *fleet.AgentStatus  `json:"agent,omitempty"`
}

// Annotation returns the value of fleet.StatusAnnotation for a Cluster whose status has these fields, "" for no annotation. It leaves
// out lastSeen and namespace, which Fleet's controller keeps, and registration and vouches: they prove that a request is the
// agent's own, and more users may write an annotation than a status. The agent repeats them with each heartbeat.
func Annotation(cluster *fleet.Cluster) (string, error) {
	d := document{Import: cluster.Status.Import}
	if agent := cluster.Status.Agent; hasMusterFields(agent) {
		agent.LastSeen, agent.Namespace, agent.Registration, agent.PossessionProof = metav1.Time{}, "", "", ""
		if stored := stored(cluster); stored.Agent != nil && (skew(*stored.Agent)-skew(agent)).Abs() < fleetstatus.SkewTolerance {
			agent.ClockSkew = stored.Agent.ClockSkew
		}
		d.Agent = &agent
	}
	if d == (document{}) {
		return "", nil
	}
	text, err := json.Marshal(d)
	return string(text), err
}

func skew(agent fleet.AgentStatus) time.Duration {
	if agent.ClockSkew == nil {
		return 0
	}
	return agent.ClockSkew.Duration
}

// Restore completes the status of a Cluster, which was just read, from its annotation. The annotation has precedence for
// status.import, which may be a remainder of the time before disableBundles.
func Restore(cluster *fleet.Cluster) {
	d := stored(cluster)
	if d.Import != nil {
		cluster.Status.Import = d.Import
	}
	if d.Agent != nil && !cluster.Status.Agent.LastSeen.IsZero() && !hasMusterFields(cluster.Status.Agent) {
		cluster.Status.Agent = merged(*d.Agent, cluster.Status.Agent)
	}
}

// maxDocument is more than the hub writes: admission policies limit status.agent to 16,384 bytes, whose JSON has at most six times as many because of
// escapes. A larger document would take up to five times its size when it is decoded.
const maxDocument = 192 << 10

// stored returns the document in the annotation. A document that cannot be read counts as absent: the hub then writes it again. Every user who
// may write the Cluster may write the annotation, and it is read before the Cluster is in a cache, so a proof of possession in it proves nothing.
func stored(cluster *fleet.Cluster) document {
	var read struct {
		Import *fleet.ImportStatus `json:"import"`
		Agent  json.RawMessage     `json:"agent"`
	}
	if text := cluster.Annotations[fleet.StatusAnnotation]; text == "" || len(text) > maxDocument || json.Unmarshal([]byte(text), &read) != nil {
		return document{}
	}
	if read.Agent == nil {
		return document{Import: read.Import}
	}
	agent, err := fleetstatus.DecodeAgent(read.Agent)
	if err != nil {
		return document{}
	}
	agent.Registration, agent.PossessionProof = "", "" // Annotation writes neither
	return document{Import: read.Import, Agent: &agent}
}

// AgentReports has the last report of each agent. The zero value is ready to use.
type AgentReports struct {
	mu      sync.Mutex
	reports map[types.UID]*report
}

type report struct {
	agent fleet.AgentStatus
	// silent counts the heartbeats without a report since the last one with a report.
	silent int
}

// maxSilent is the number of heartbeats without a report after which the last report still counts. After an interrupted watch the cache may
// miss the version with the report and get only the one that Fleet's controller wrote; two such heartbeats in a row come from another agent.
const maxSilent = 1

// Transform restores the status of a Cluster before it enters a cache. The report in an earlier version of the Cluster has precedence over the
// annotation.
func (a *AgentReports) Transform(object any) (any, error) {
	cluster, ok := object.(*fleet.Cluster)
	if !ok {
		return object, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reports == nil {
		a.reports = map[types.UID]*report{}
	}
	agent, known := &cluster.Status.Agent, a.reports[cluster.UID]
	switch {
	case hasMusterFields(*agent):
		a.reports[cluster.UID] = &report{agent: *agent.DeepCopy()}
	case agent.LastSeen.IsZero(): // no agent yet, or the hub has cleared status.agent: for another registration, or because it removed the agent
		delete(a.reports, cluster.UID)
	case known != nil:
		if !known.agent.LastSeen.Equal(&agent.LastSeen) {
			known.silent++
		}
		known.agent = merged(known.agent, *agent)
		if known.silent <= maxSilent {
			*agent = *known.agent.DeepCopy()
		}
	}
	// A Cluster whose agent is known not to report must not get an earlier report from the annotation.
	silent := known != nil && known.silent > maxSilent && !hasMusterFields(*agent)
	status := *agent
	Restore(cluster)
	if silent {
		*agent = status
	} else if hasMusterFields(*agent) && a.reports[cluster.UID] == nil {
		a.reports[cluster.UID] = &report{agent: *agent.DeepCopy()}
	}
	return cluster, nil
}

// merged returns the report of an agent with the fields of the status that Fleet's controller keeps.
func merged(report, status fleet.AgentStatus) fleet.AgentStatus {
	report.LastSeen, report.Namespace = status.LastSeen, status.Namespace
	return report
}

// hasMusterFields reports whether the status has the fields of a Muster agent, which Fleet's agent does not report.
func hasMusterFields(agent fleet.AgentStatus) bool {
	return agent.Version != "" || agent.Instance != "" || agent.Generation != "" || agent.CheckinInterval != nil
}

// Forget drops the report of a deleted Cluster; it is called with the object of the event.
func (a *AgentReports) Forget(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if cluster, ok := object.(*fleet.Cluster); ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.reports, cluster.UID)
	}
}
