package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// Beats are heartbeats of agents, each with its own credential.
type Beats struct {
	// Checkin is what agents say they let pass between two; 0 means that they do not say it, as unchanged agents of Fleet.
	Checkin time.Duration
	// Over is the time they are spread over: each agent has its place in it, a tenth more or less. 0 means all at once.
	Over time.Duration
	// AtATime is how many may be unanswered; 0 means any number.
	AtATime int
	// Anew says that each comes over a connection of its own, as after an outage.
	Anew bool
}

// Beat has the agents of these numbers send one heartbeat each. One that fails is tried again after a second, some times; it
// returns how often that was.
func (a *Agents) Beat(ctx context.Context, numbers []int, b Beats) (failures int, err error) {
	if b.AtATime == 0 {
		b.AtATime = max(len(numbers), 1)
	}
	var failed atomic.Int64
	began := time.Now()
	err = InParallel(len(numbers), b.AtATime, func(n int) error {
		if err := Pause(ctx, time.Until(began.Add(b.moment(n, len(numbers))))); err != nil {
			return err
		}
		return a.beat(ctx, a.members[numbers[n]], b, &failed)
	})
	return int(failed.Load()), err
}

// moment is when the n-th of so many is due. The jitter is the same in every run.
func (b Beats) moment(n, of int) time.Duration {
	if b.Over == 0 {
		return 0
	}
	const tenth = 0.1
	jitter := rand.New(rand.NewPCG(uint64(n), uint64(of))).Float64() * tenth //nolint:gosec // nobody is to be kept from guessing it
	return time.Duration(float64(b.Over) * ((1-tenth)*float64(n)/float64(of) + jitter))
}

func (a *Agents) beat(ctx context.Context, m Member, b Beats, failed *atomic.Int64) error {
	clusters, done, err := a.clientOf(m, b.Anew)
	if err != nil {
		return err
	}
	defer done()
	const tries = 30
	for range tries {
		if _, err = clusters.Clusters(a.api.Workspace).Patch(ctx, m.Cluster, types.JSONPatchType, a.pulse(b.Checkin), metav1.PatchOptions{}, "status"); err == nil {
			return nil
		}
		failed.Add(1)
		if err := Pause(ctx, time.Second); err != nil {
			return err
		}
	}
	return fmt.Errorf("the heartbeat of Cluster %s: %w", m.Cluster, err)
}

// pulse is the patch an agent sends.
func (a *Agents) pulse(checkin time.Duration) []byte {
	status := map[string]string{"lastSeen": time.Now().UTC().Format(time.RFC3339), "namespace": a.api.SystemNamespace}
	if checkin > 0 {
		status["checkinInterval"] = checkin.String()
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/status/agent", "value": status}})
	if err != nil {
		panic(fmt.Sprintf("strings that are no JSON: %v", err))
	}
	return patch
}

// clientOf is a client with the agent's credential, over connections all share or over one of its own.
func (a *Agents) clientOf(m Member, anew bool) (*fleetclient.FleetV1alpha1Client, func(), error) {
	config := a.api.as(m.token)
	if !anew {
		client, err := fleetclient.NewForConfig(config)
		return client, func() {}, err
	}
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, nil, err
	}
	connection := &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true}
	bearer, err := rest.HTTPWrappersForConfig(config, connection)
	if err != nil {
		return nil, nil, err
	}
	client, err := fleetclient.NewForConfigAndClient(config, &http.Client{Transport: bearer})
	return client, connection.CloseIdleConnections, err
}
