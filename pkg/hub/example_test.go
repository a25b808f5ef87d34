package hub_test

import (
	"context"
	"fmt"

	"github.com/rancher/lasso/pkg/controller"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// watchClusters is work of the program itself, registered before the hub. ctx ends after the hub's.
func watchClusters(ctx context.Context, factory controller.SharedControllerFactory, seen func(*fleet.Cluster)) {
	clusters := fleetcontrollers.New(factory).Cluster()
	clusters.OnChange(ctx, "my-program", func(_ string, cluster *fleet.Cluster) (*fleet.Cluster, error) {
		if cluster != nil {
			seen(cluster)
		}
		return cluster, nil
	})
}

// runHub runs the hub until ctx ends. cfg and factory are the program's own; Run starts the factory, so that one watch
// serves the program and the hub.
func runHub(ctx context.Context, cfg *rest.Config, factory controller.SharedControllerFactory) error {
	err := muster.Run(ctx, muster.Options{
		RESTConfig:              cfg,
		SharedControllerFactory: factory, // may be left out
		OnReady:                 func() { logrus.Info("The hub is at work") },
	})
	if err != nil {
		return fmt.Errorf("the hub could not start: %w", err)
	}
	return nil // ctx ended, and everything of the hub with it
}

// A program that has a rest.Config and a factory of its own runs a hub beside its other work.
func ExampleRun() {
	program, end := context.WithCancel(context.Background())
	defer end()
	cfg := &rest.Config{Host: "https://hub.example:6443", BearerToken: "of the program's ServiceAccount"}
	factory, err := controller.NewSharedControllerFactoryFromConfig(cfg, nil)
	if err != nil {
		logrus.Error(err)
		return
	}
	watchClusters(program, factory, func(cluster *fleet.Cluster) {
		logrus.Infof("Cluster %s was last seen at %s", cluster.Name, cluster.Status.Agent.LastSeen)
	})
	hub, stop := context.WithCancel(program)
	defer stop()
	if err := runHub(hub, cfg, factory); err != nil {
		logrus.Error(err)
	}
}
