package controllers_test

import (
	"context"
	"fmt"

	"github.com/rancher/lasso/pkg/controller"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// runHub runs a hub inside a program that watches Clusters itself, until ctx ends. cfg and factory are the program's own.
func runHub(ctx context.Context, cfg *rest.Config, factory controller.SharedControllerFactory, seen func(*fleet.Cluster)) error {
	// Handlers of the program are registered before Run, which starts the factory: one watch serves the program and the hub.
	clusters := fleetcontrollers.New(factory).Cluster()
	clusters.OnChange(ctx, "my-program", func(_ string, cluster *fleet.Cluster) (*fleet.Cluster, error) {
		if cluster != nil {
			seen(cluster)
		}
		return cluster, nil
	})
	err := controllers.Run(ctx, controllers.Options{
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
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cfg := &rest.Config{Host: "https://hub.example:6443", BearerToken: "of the program's ServiceAccount"}
	factory, err := controller.NewSharedControllerFactoryFromConfig(cfg, nil)
	if err != nil {
		logrus.Error(err)
		return
	}
	err = runHub(ctx, cfg, factory, func(cluster *fleet.Cluster) {
		logrus.Infof("Cluster %s was last seen at %s", cluster.Name, cluster.Status.Agent.LastSeen)
	})
	if err != nil {
		logrus.Error(err)
	}
}
