package main

import (
	"context"

	lassometrics "github.com/rancher/lasso/pkg/metrics"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/leader"
)

// config is the validated configuration from the command line and the environment.
type config struct {
	hub                           hub.Options
	metricsAddress, healthAddress string
	profilesAddress               string
	election                      leader.Config
}

// run runs the hub. It uses the Lease of Fleet's own registration component, so that the two never work at the same time.
func run(ctx context.Context, c config) error {
	launch.SpareMemory()
	go launch.ReturnMemory(ctx)
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
	if c.metricsAddress != "" {
		launch.MeasureRequests(launch.HostOf(c.hub.RESTConfig))
		lassometrics.MustRegisterWithWorkqueue(registry)
	}
	c.hub.Metrics = registry
	return runHub(ctx, c, health, hub.Run)
}

// runHub serves readiness while the hub runs. A standby is ready: otherwise it would block a rolling update. A hub that has acquired the
// Lease is ready when its controllers have started. Neither is ready while the API server refuses its watches.
func runHub(ctx context.Context, c config, health *launch.Health, run func(context.Context, hub.Options) error) error {
	health.NotReady("asking for the Lease")
	standby := "standing by: another hub holds the Lease"
	c.election.OnWaiting = func(string) { health.Ready(standby) }
	c.hub.OnStandby = func() { health.Ready(standby + "; the caches are filled") }
	c.hub.OnElected = func() { health.NotReady("filling the caches") }
	c.hub.OnReady = func() { health.Ready("at work") }
	c.hub.OnWatching = func(watching bool) {
		fault := "the API server refuses watches"
		if watching {
			fault = ""
		}
		health.Fault(fault)
	}
	c.hub.Election = &c.election
	return run(ctx, c.hub)
}

// ensureNamespace creates the namespace of the Lease. A release of the chart has created it already; a hub that runs outside of the cluster
// may be the first that needs it.
func ensureNamespace(ctx context.Context, c config) error {
	client, err := kubernetes.NewForConfig(c.election.Client)
	if err != nil {
		return err
	}
	namespaces := client.CoreV1().Namespaces()
	if _, err = namespaces.Get(ctx, c.election.Namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return nil // it exists, or the error shows when the Lease is acquired
	}
	_, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.election.Namespace}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
