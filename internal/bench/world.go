package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/process"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	systemNamespace = registration.DefaultSystemNamespace
	workspace       = "fleet-default"
	hubAgent        = "fleetcontroller" // how the User-Agent of a hub begins
	patience        = 3 * time.Minute
)

// world is an API server with nothing else on it, and the hub that is measured.
type world struct {
	dir    string
	plane  *controlplane.ControlPlane
	audit  *auditLog
	config *rest.Config // of the bench's own client
	core   kubernetes.Interface
	fleet  fleetclient.FleetV1alpha1Interface
	hub    *process.Process
	binary string
	log    io.Writer
}

// newWorld starts an API server with an audit log, and a controller manager, whose requests a second may be bounded.
func newWorld(ctx context.Context, o Options, managerArgs ...string) (w *world, err error) {
	w = &world{binary: o.Hub, log: o.Log}
	if w.dir, err = os.MkdirTemp("", "muster-bench-"); err != nil {
		return nil, err
	}
	policy := filepath.Join(w.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	w.audit = &auditLog{path: filepath.Join(w.dir, "audit.log")}
	w.plane, err = controlplane.Start(ctx, controlplane.Options{
		Name: "bench", Dir: filepath.Join(w.dir, "plane"), Binaries: o.Binaries, ControllerManager: true,
		APIServerArgs:         []string{"--audit-policy-file=" + policy, "--audit-log-path=" + w.audit.path},
		ControllerManagerArgs: managerArgs,
	})
	if err != nil {
		return nil, w.with(err)
	}
	return w, w.with(w.connect(ctx))
}

// with ends the world when something went wrong.
func (w *world) with(err error) error {
	if err != nil {
		w.close()
	}
	return err
}

func (w *world) close() {
	if w.hub != nil {
		w.hub.Stop(stopGrace)
	}
	if w.plane != nil {
		_ = w.plane.Stop()
	}
	_ = os.RemoveAll(w.dir)
}

const stopGrace = 10 * time.Second

func (w *world) connect(ctx context.Context) error {
	w.config = w.plane.RESTConfig()
	w.config.UserAgent = "bench"
	hub, err := admin.Connect(w.config)
	if err != nil {
		return err
	}
	w.core, w.fleet = hub.Kubernetes, hub.Fleet
	for _, name := range []string{systemNamespace, workspace} {
		_, err := w.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return w.configure(ctx)
}

// configure writes the hub's configuration: a check-in every 15 minutes, as the chart has it.
func (w *world) configure(ctx context.Context) error {
	config, err := yaml.Marshal(map[string]any{"apiServerURL": w.plane.URL(), "apiServerCA": w.plane.CA()})
	if err != nil {
		return err
	}
	_, err = w.core.CoreV1().ConfigMaps(systemNamespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: registration.HubConfigMap}, Data: map[string]string{registration.ConfigKey: string(config)},
	}, metav1.CreateOptions{})
	return err
}

// startHub runs the hub as a process of its own and returns when it is at work.
func (w *world) startHub(ctx context.Context, args ...string) error {
	kubeconfig := filepath.Join(w.dir, "hub.kubeconfig")
	if err := os.WriteFile(kubeconfig, w.plane.Kubeconfig(), 0o600); err != nil {
		return err
	}
	var err error
	w.hub, err = process.Start(process.Command{
		Path: w.binary, Dir: w.dir,
		Args: append([]string{"--kubeconfig", kubeconfig, "--namespace", systemNamespace, "--disable-bootstrap"}, args...),
	})
	if err != nil {
		return err
	}
	return w.await(ctx, "the hub's kinds", func(ctx context.Context) (bool, error) {
		_, err := w.fleet.Clusters(workspace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, nil
	})
}

func (w *world) stopHub() {
	w.hub.Stop(stopGrace)
	w.hub = nil
}

func (w *world) await(ctx context.Context, what string, reached wait.ConditionWithContextFunc) error {
	const every = 20 * time.Millisecond
	if err := wait.PollUntilContextTimeout(ctx, every, patience, true, reached); err != nil {
		return fmt.Errorf("waiting for %s: %w\n%s", what, err, w.hubLog())
	}
	return nil
}

func (w *world) hubLog() string {
	const lines = 20
	return process.Tail(filepath.Join(w.dir, filepath.Base(w.binary)+".log"), lines)
}

// quiet waits until the hub has sent no write and no read for a while, and returns all it sent since the last call.
func (w *world) quiet(ctx context.Context) ([]sent, error) {
	const still = 1500 * time.Millisecond
	var all []sent
	last := time.Now()
	err := w.await(ctx, "the hub to become quiet", func(context.Context) (bool, error) {
		more, err := w.audit.since(byAgent(hubAgent))
		all = append(all, more...)
		for _, s := range more {
			if s.isWrite() || s.isRead() {
				last = time.Now()
			}
		}
		return time.Since(last) > still, err
	})
	return all, err
}

func (w *world) usage() (usage, error) { return usageOf(w.hub.Pid()) }
