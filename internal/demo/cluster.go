package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/helminstall"
	"github.com/muster-fleet/muster/internal/localpods"
	"github.com/muster-fleet/muster/pkg/registration"
)

// cluster is one of the clusters of the demo.
type cluster struct {
	name, dir, kubeconfig, logs, homes string

	plane *controlplane.ControlPlane
	admin *admin.Hub // clients, also for members, which have no objects of Fleet
	stop  func()     // stops its pods
}

// newCluster sets the paths of a cluster that is not started yet.
func (d *demo) newCluster(name string) *cluster {
	return &cluster{
		name:       name,
		dir:        filepath.Join(d.dir, name),
		kubeconfig: filepath.Join(d.dir, name+".kubeconfig"),
		logs:       filepath.Join(d.dir, "logs", name),
		homes:      filepath.Join(d.dir, "pods", name),
		stop:       func() {},
	}
}

func controlPlanes(ctx context.Context, o Options) (string, error) {
	if o.ControlPlanes != "" {
		return o.ControlPlanes, nil
	}
	return controlplane.Binaries(ctx, o.Out)
}

func startClusters(ctx context.Context, d *demo) (string, error) {
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range d.clusters() {
		group.Go(func() error { return c.start(ctx, d.options) })
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	return fmt.Sprintf("hub %s, east %s, west %s", d.hub.plane.URL(), d.east.plane.URL(), d.west.plane.URL()), nil
}

func (c *cluster) start(ctx context.Context, o Options) (err error) {
	c.plane, err = controlplane.Start(ctx, controlplane.Options{
		Name: c.name, Dir: c.dir, Binaries: o.ControlPlanes,
	})
	if err != nil {
		return err
	}
	if c.admin, err = admin.Connect(c.plane.RESTConfig()); err != nil {
		return err
	}
	if err := os.WriteFile(c.kubeconfig, c.plane.Kubeconfig(), 0o600); err != nil {
		return err
	}
	return c.startPods(o)
}

// startPods runs the pods of the system namespace and of the workload, like a node, until stop is called.
func (c *cluster) startPods(o Options) error {
	if err := os.MkdirAll(c.logs, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(c.logs, "localpods.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	logger := logrus.New()
	logger.SetOutput(log)
	// The pods run for longer than the context of this step: they are stopped at the end, before the API server.
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer log.Close()
		err := localpods.Run(ctx, localpods.Options{
			RESTConfig: c.plane.RESTConfig(), Node: c.name, Namespaces: []string{systemNamespace, workload},
			Binaries: o.Programs, Logs: c.logs, Homes: c.homes, Log: logger,
		})
		if err != nil {
			logger.Error(err)
		}
	}()
	c.stop = func() { cancel(); <-ended }
	return nil
}

// tearDown stops the pods first, because they use the API server when they stop.
func (c *cluster) tearDown() error {
	c.stop()
	if c.plane == nil {
		return nil
	}
	return c.plane.Stop()
}

// tearDownAll stops the members before the hub, because their agents use the hub when they stop.
func (d *demo) tearDownAll() error {
	var members errgroup.Group
	for _, c := range []*cluster{d.east, d.west} {
		members.Go(c.tearDown)
	}
	return errors.Join(members.Wait(), d.hub.tearDown())
}

func (c *cluster) awaitDeployment(ctx context.Context, name string) error {
	return poll(ctx, func(ctx context.Context) error {
		d, err := c.admin.Kubernetes.AppsV1().Deployments(systemNamespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas == 0 {
			err = fmt.Errorf("Deployment %s/%s has no available replica", systemNamespace, name)
		}
		return err
	})
}

// registeredName returns the name that the hub gives to a Cluster that it creates for an agent.
func (c *cluster) registeredName(ctx context.Context) (string, error) {
	namespace, err := c.admin.Kubernetes.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return registration.ClusterName(string(namespace.UID)), nil
}

// install installs a chart into the system namespace.
func (c *cluster) install(ctx context.Context, name string, values map[string]any) error {
	return helminstall.Install(ctx, c.plane.RESTConfig(), systemNamespace, name, values)
}
