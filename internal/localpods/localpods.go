// Package localpods stands in for a node and its kubelet where there are no containers: it takes the pods of a cluster and
// runs each one's program as a process on this machine. Everything before that, from the Deployment to the pod, is done
// by the cluster's own controllers, so that rollouts, replicas, deletion and what kubectl shows are the real thing.
//
// A process differs from a container in this:
//   - The image is not looked at. The program is the file of the command's name in one folder of binaries.
//   - Its ServiceAccount's token comes by a kubeconfig, named by $KUBECONFIG, and not by files below /var/run.
//   - Volumes, security contexts, resources and probes are ignored; a pod is ready while its process runs.
//   - Processes share the network of the machine, so that an address in a variable *_BIND_ADDRESS becomes any free port of
//     127.0.0.1.
//   - A pod has exactly one container. Environment variables hold text or fields of the pod.
package localpods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options say whose pods to run, and how.
type Options struct {
	// RESTConfig reaches the cluster as an administrator. Required. It needs a controller manager for Deployments to get
	// their pods.
	RESTConfig *rest.Config
	// Node is the name of the Node object that the pods are bound to; empty means "local". It is created.
	Node string
	// Namespaces whose pods are taken; empty means all.
	Namespaces []string
	// Selector is a label selector, such as "app=fleet-agent", for the pods that are taken; empty means all.
	Selector string
	// Binaries is the folder with the programs. Required.
	Binaries string
	// Logs is the folder, created when missing, for one NAMESPACE_POD.log per pod, which restarts append to. Required.
	Logs string
	// Homes is the folder, created when missing, for one private folder per pod, which goes with it; empty means the
	// system's folder for temporary files.
	Homes string
	// Grace bounds how long a process may take to end, whatever its pod says; 0 means 10 seconds.
	Grace time.Duration
	// RestartDelay is the pause before a process that ended is started again. It doubles up to RestartDelayMax, and starts
	// over when nothing has ended for twice that long. 0 means 1 second, and 1 minute.
	RestartDelay, RestartDelayMax time.Duration
	// Log gets what goes wrong here; nil means the standard one. What a process says goes to its own file.
	Log logrus.FieldLogger
}

func (o Options) complete() (Options, error) {
	var missing []error
	if o.RESTConfig == nil {
		missing = append(missing, errors.New("localpods: Options.RESTConfig is missing: it says which cluster's pods to run"))
	}
	if o.Binaries == "" {
		missing = append(missing, errors.New("localpods: Options.Binaries is missing: it is the folder with the programs"))
	}
	if o.Logs == "" {
		missing = append(missing, errors.New("localpods: Options.Logs is missing: it is the folder for the logs of the pods"))
	}
	if _, err := labels.Parse(o.Selector); err != nil {
		missing = append(missing, fmt.Errorf("localpods: Options.Selector %q is no label selector: %w", o.Selector, err))
	}
	return o.withDefaults(), errors.Join(missing...)
}

func (o Options) withDefaults() Options {
	if o.Node == "" {
		o.Node = "local"
	}
	setDefault(&o.Grace, 10*time.Second)
	setDefault(&o.RestartDelay, time.Second)
	setDefault(&o.RestartDelayMax, time.Minute)
	if o.Log == nil {
		o.Log = logrus.StandardLogger()
	}
	return o
}

func (o Options) makeFolders() error {
	if err := os.MkdirAll(o.Logs, 0o700); err != nil || o.Homes == "" {
		return err
	}
	return os.MkdirAll(o.Homes, 0o700)
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// Run runs pods until ctx ends, and returns when every process is gone and its folder removed. As with a node that went
// away, the pods themselves stay as they are. An error means that it could not begin.
func Run(ctx context.Context, options Options) error {
	o, err := options.complete()
	if err != nil {
		return err
	}
	if err := o.makeFolders(); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(o.RESTConfig)
	if err != nil {
		return err
	}
	n := &node{options: o, client: client, workers: map[workerKey]*worker{}}
	if err := n.announce(ctx); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return fmt.Errorf("create Node %s: %w", o.Node, err)
	}
	n.run(ctx)
	return nil
}
