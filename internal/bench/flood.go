package bench

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// flood measures what the holder of a stolen token can store with requests of agents that never connect, with the default limits of the hub.
func flood(ctx context.Context, o Options) ([]figures.Figure, error) {
	e, err := withHub(ctx, o, extraArgs{config: map[string]any{"registration": nil}})
	if err != nil {
		return nil, err
	}
	defer e.close()
	thief, err := sim.NewAgents(ctx, e.API, "flood")
	if err != nil {
		return nil, err
	}
	if _, err := e.awaitQuiet(ctx); err != nil {
		return nil, err
	}
	memory, err := residentMemory(e.hub.pid())
	if err != nil {
		return nil, err
	}
	database, err := e.databaseSize(ctx)
	if err != nil {
		return nil, err
	}

	c, err := e.measure(ctx, func(ctx context.Context) error { return thief.Request(ctx, o.Flood, o.InFlight) })
	if err != nil {
		return nil, err
	}
	used, errUsage := usageOf(e.hub.pid())
	grown, errDatabase := e.databaseSize(ctx)
	clusters, errClusters := e.clusterCount(ctx, workspace)
	left, errLeft := e.Fleet.ClusterRegistrations(workspace).List(ctx, metav1.ListOptions{})
	token, errToken := e.Fleet.ClusterRegistrationTokens(workspace).Get(ctx, thief.TokenName(), metav1.GetOptions{})
	if err := errors.Join(errUsage, errDatabase, errClusters, errLeft, errToken); err != nil {
		return nil, err
	}
	limits := fleetstatus.Condition(token.Status.Conditions, fleet.ConditionWithinLimits)
	e.logf("flood: %d Clusters, %d requests left; condition WithinLimits of the token: %s %s", clusters, len(left.Items), limits.Status, limits.Message)
	reported := 0.
	if limits.Status == "False" {
		reported = 1
	}
	title := func(what string) string {
		return fmt.Sprintf("%d requests from one token, of agents that never connect: %s", o.Flood, what)
	}
	return []figures.Figure{
		figures.Bytes("flood/memory", title("growth of the hub's peak memory"), used.peakMemory-memory),
		figures.Bytes("flood/etcd", title("growth of etcd before it compacts its history"), grown-database),
		figures.Counted("flood/clusters", title("Clusters"), float64(clusters)),
		figures.Counted("flood/requests", title("requests that are left"), float64(len(left.Items))),
		figures.Counted("flood/reported", title("whether the condition WithinLimits of the token is False"), reported),
		figures.Processor("flood/cpu", title("CPU of the hub for each"), c.hubCPU, o.Flood),
	}, nil
}
