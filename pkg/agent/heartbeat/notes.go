package heartbeat

import (
	"cmp"
	"encoding/json"
	"strings"
	"sync"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// Notes are information of the agent's loop that the heartbeats contain. The zero value adds nothing.
type Notes struct {
	mutex sync.Mutex
	notes
	pendingTopic string
	wake         chan struct{} // closed to send a heartbeat at once; waker makes it before each heartbeat, so that a change during the heartbeat counts
}

type notes struct {
	pendingEndpoint    string          // why the agent cannot switch to another endpoint
	possessionProof    string          // the request for which the agent proves possession of its credential
	keptReleases       json.RawMessage // fleet.AgentKeptReleases, or null if there are none; empty until the agent knows it after its start
	deploymentsStalled json.RawMessage // why the agent deploys nothing, or null if it deploys; empty until the agent knows it after its start
}

// SetKeptReleases reports the releases that the agent keeps without a BundleDeployment. A change is reported at once.
func (n *Notes) SetKeptReleases(releases []string) {
	var kept *fleet.AgentKeptReleases
	if len(releases) > 0 {
		kept = &fleet.AgentKeptReleases{Count: len(releases), Names: fleetstatus.Cut(strings.Join(releases, ", "), fleetstatus.MaxKeptNames)}
	}
	text, _ := json.Marshal(kept) // cannot fail
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if cmp.Or(string(n.keptReleases), "null") != string(text) {
		n.sendNow()
	}
	n.keptReleases = text
}

// SetPendingEndpoint reports why the agent cannot switch to another endpoint; empty if no switch is pending. A new topic is
// reported at once; another text about the same topic waits for the next heartbeat. It reports whether the topic is new.
func (n *Notes) SetPendingEndpoint(topic, text string) (isNew bool) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	isNew = n.pendingTopic != topic
	n.pendingTopic, n.pendingEndpoint = topic, text
	if isNew {
		n.sendNow()
	}
	return isNew
}

// SetDeploymentsStalled reports why the agent deploys nothing; empty if it deploys. The first text and the end are reported at once; another text
// waits for the next heartbeat.
func (n *Notes) SetDeploymentsStalled(text string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if before := cmp.Or(string(n.deploymentsStalled), "null"); (text == "") != (before == "null") {
		n.sendNow()
	}
	n.deploymentsStalled, _ = json.Marshal(textOrNull(fleetstatus.Cut(text, fleetstatus.MaxStalled))) // cannot fail
}

// SetPossessionProof makes the next heartbeats repeat the proof of possession for a ClusterRegistration; empty ends the proof.
func (n *Notes) SetPossessionProof(request string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.possessionProof = request
}

// SendNow sends a heartbeat at once.
func (n *Notes) SendNow() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.sendNow()
}

func (n *Notes) sendNow() {
	if n.wake != nil {
		close(n.wake)
		n.wake = nil
	}
}

func (n *Notes) read() notes {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.notes
}

// waker returns a channel that is closed when a heartbeat must be sent at once.
func (n *Notes) waker() <-chan struct{} {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.wake == nil {
		n.wake = make(chan struct{})
	}
	return n.wake
}
