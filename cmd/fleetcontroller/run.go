package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/pkg/controllers"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/shard"
	"github.com/muster-fleet/muster/pkg/version"
)

// config is all the hub is told by its command line and environment.
type config struct {
	hub                           controllers.Options
	metricsAddress, healthAddress string
	profilesAddress               string
	election                      leader.Election
	sharing                       bool         // with the other replicas
	shards                        leader.Times // of their Leases
}

// run takes its turn as the hub. The Lease is that of Fleet's own registration component, so that the two never work at
// the same time.
func run(ctx context.Context, c config) error {
	launch.SpareMemory()
	health := launch.NewHealth()
	if err := health.Serve(ctx, c.healthAddress); err != nil {
		return err
	}
	if err := launch.Profiles(ctx, c.profilesAddress); err != nil {
		return err
	}
	if err := ensureNamespace(ctx, c); err != nil {
		return err
	}
	registry, err := launch.Metrics(ctx, c.metricsAddress)
	if err != nil {
		return err
	}
	c.hub.Metrics = registry
	return takeTurn(ctx, c, health, controllers.Run)
}

// takeTurn is ready while another hub works: one that waits must not hold up an update of all of them. A hub that has its
// turn is ready when it is at work.
func takeTurn(ctx context.Context, c config, health *launch.Health, work func(context.Context, controllers.Options) error) error {
	health.NotReady("asking for the Lease")
	c.election.OnWaiting = func(string) { health.Ready("standing by: another hub holds the Lease") }
	c.hub.OnReady = func() { health.Ready("at work") }
	turn := func(ctx context.Context, gate *shard.Gate) error {
		health.NotReady("filling the caches")
		c.hub.Shards = gate
		return work(ctx, c.hub)
	}
	if c.sharing {
		held := metrics.ShardsHeld(c.hub.Metrics)
		tell := func(shards int) { held.Set(float64(shards)) }
		return shard.Run(ctx, shard.Options{Main: c.election, Release: version.Version, Times: c.shards, OnHeld: tell}, turn)
	}
	return leader.Run(ctx, c.election, func(ctx context.Context) error { return turn(ctx, nil) })
}

// ensureNamespace makes the namespace the Lease is in. The chart's release has made it already; a hub that runs from a
// kubeconfig alone may be the first.
func ensureNamespace(ctx context.Context, c config) error {
	client, err := kubernetes.NewForConfig(c.election.Client)
	if err != nil {
		return err
	}
	namespaces := client.CoreV1().Namespaces()
	if _, err = namespaces.Get(ctx, c.election.Namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return nil // there, or not for us to see: the Lease will tell
	}
	_, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.election.Namespace}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
