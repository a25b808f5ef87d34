package agent

import (
	"context"
	"encoding/json"
	"sync"
)

// vouching is the request for which the agent vouches with the credential it holds: it registers anew, and nobody else can
// prove to the hub that the request is this agent's own. Heartbeats repeat it, so that it reaches the hub in the end.
type vouching struct {
	mutex   sync.Mutex
	request string
}

func (v *vouching) set(request string) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.request = request
}

// name is "" while there is nothing to vouch for.
func (v *vouching) name() string {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	return v.request
}

// vouch comes before the request, so that the hub finds it when it judges. Without a session there is no credential to do it
// with. One that fails is no reason not to register: the request may have another proof.
func (a *attempt) vouch(ctx context.Context) {
	s := a.situation.session
	if s == nil {
		return
	}
	a.vouching.set(a.pending.name)
	if err := s.vouch(ctx, a.pending.name); err != nil && ctx.Err() == nil {
		a.log.Warnf("Cannot vouch for ClusterRegistration %s/%s, the next heartbeat does it: %v", a.bootstrap.clusterNamespace, a.pending.name, err)
	}
}

func (s *session) vouch(ctx context.Context, request string) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"agent": map[string]any{"vouches": request}}})
	if err != nil {
		return err
	}
	return s.hub.patchClusterStatus(ctx, s.credential.clusterNamespace, s.credential.clusterName, patch)
}
