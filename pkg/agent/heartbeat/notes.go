package heartbeat

import (
	"context"
	"sync"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Notes are what the agent's loop adds to the heartbeats. The zero value adds nothing.
type Notes struct {
	mutex sync.Mutex
	notes
	pendingTopic string
	wake         chan struct{} // closed to send a heartbeat at once; nil until the heartbeat waits
}

type notes struct {
	pendingEndpoint string // why the agent cannot switch to another endpoint
	possessionProof string // the request for which the agent proves possession of its credential
}

// SetPendingEndpoint reports why the agent cannot switch to another endpoint; empty if no switch is pending. A new topic is
// reported at once; another text about the same topic waits for the next heartbeat. It returns whether the topic is new.
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

func (n *Notes) read() (notes, <-chan struct{}) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.wake == nil {
		n.wake = make(chan struct{})
	}
	return n.notes, n.wake
}

// ProvePossession writes the name of a new ClusterRegistration into the agent's Lease or the status of the Cluster, with the credential in
// use. Only the holder of that credential can do so, which proves to the hub that the request is this agent's own. The heartbeats repeat
// the proof, so an error here only delays it.
func (n *Notes) ProvePossession(ctx context.Context, use *credential.InUse, request string) error {
	n.SetPossessionProof(request)
	stored := use.Stored()
	if stored.Lease != "" {
		_, err := use.Conn.PatchLease(ctx, stored.Lease, map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{registration.LeaseProof: request},
		}})
		if !isWithoutLease(err) {
			return err
		}
	}
	return use.Conn.PatchAgentStatus(ctx, stored.Workspace, stored.ClusterName, map[string]any{"vouches": request})
}
