package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/bench/usage"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/registration"
)

// world is an API server, and the hub that is measured.
type world struct {
	Options
	*sim.API
	audit *audit.Log
	dir   string                     // of a control plane of ours; empty where the hub is named
	plane *controlplane.ControlPlane // nil where the hub is named
	hub   hub                        // nil until it is started
}

// flavour is what a control plane is told beside the usual.
type flavour struct {
	apiServer, controllerManager []string
}

// withHub is a world with a hub at work: one of ours on a control plane of its own, or the one that is named.
func withHub(ctx context.Context, o Options, f flavour) (w *world, err error) {
	if o.Named != nil {
		return named(ctx, o)
	}
	if w, err = newWorld(ctx, o, f); err != nil {
		return nil, err
	}
	return w, w.orClose(w.startHub(ctx))
}

func named(ctx context.Context, o Options) (*world, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.Named.Kubeconfig)
	if err != nil {
		return nil, err
	}
	w := &world{Options: o, audit: audit.NewLog(o.Named.AuditLog)}
	w.hub = &foreign{Named: *o.Named}
	return w, w.connect(ctx, config)
}

// newWorld starts a control plane with an audit log, and nothing on it.
func newWorld(ctx context.Context, o Options, f flavour) (w *world, err error) {
	w = &world{Options: o}
	if w.dir, err = os.MkdirTemp("", "muster-bench-"); err != nil {
		return nil, err
	}
	policy, log := filepath.Join(w.dir, "audit-policy.yaml"), filepath.Join(w.dir, "audit.log")
	if err := os.WriteFile(policy, []byte(audit.Policy), 0o600); err != nil {
		return nil, w.orClose(err)
	}
	w.audit = audit.NewLog(log)
	const megabytes = "--audit-log-maxsize=100000" // one file, however long the run
	w.plane, err = controlplane.Start(ctx, controlplane.Options{
		Name: "bench", Dir: filepath.Join(w.dir, "plane"), Binaries: o.Binaries, ControllerManager: true,
		APIServerArgs:         append([]string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, megabytes}, f.apiServer...),
		ControllerManagerArgs: f.controllerManager,
	})
	if err != nil {
		return nil, w.orClose(err)
	}
	return w, w.orClose(w.prepare(ctx))
}

// orClose ends the world when something went wrong.
func (w *world) orClose(err error) error {
	if err != nil {
		w.close()
	}
	return err
}

func (w *world) close() {
	if w.hub != nil {
		w.hub.stop()
	}
	if w.plane != nil {
		_ = w.plane.Stop()
	}
	if w.dir != "" {
		_ = os.RemoveAll(w.dir)
	}
}

func (w *world) connect(ctx context.Context, config *rest.Config) (err error) {
	w.API, err = sim.Connect(ctx, config, systemNamespace, workspace)
	return err
}

// prepare connects, and writes the hub's configuration.
func (w *world) prepare(ctx context.Context) error {
	if err := w.connect(ctx, w.plane.RESTConfig()); err != nil {
		return err
	}
	config, err := yaml.Marshal(map[string]any{"apiServerURL": w.plane.URL(), "apiServerCA": w.plane.CA()})
	if err != nil {
		return err
	}
	_, err = w.Core.CoreV1().ConfigMaps(systemNamespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: registration.HubConfigMap}, Data: map[string]string{registration.ConfigKey: string(config)},
	}, metav1.CreateOptions{})
	return err
}

func (w *world) say(format string, arguments ...any) {
	fmt.Fprintf(w.Log, "bench: "+format+"\n", arguments...)
}

// quiet waits until the hub has sent nothing that counts for a while, and returns all it sent since the last call.
func (w *world) quiet(ctx context.Context) (all []audit.Request, err error) {
	const (
		still = 2 * time.Second // what lasts longer than that has a line in a status, which the hub writes then
		every = 50 * time.Millisecond
		most  = 30 * time.Minute
	)
	began := time.Now()
	for last := began; time.Since(last) < still; {
		more, err := w.audit.Since(audit.ByAgents(w.UserAgents...))
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
		if audit.Count(more).All() > 0 {
			last = time.Now()
		}
		if time.Since(began) > most {
			return nil, fmt.Errorf("the hub is not quiet after %s: %s", most, audit.Count(more).Each(1))
		}
		if err := sim.Pause(ctx, every); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (w *world) usage() (usage.Usage, error) { return usage.Of(w.hub.pids()...) }

// cost is what something cost the hub.
type cost struct {
	audit.Tally
	cpu   time.Duration
	began time.Time
}

// until is how long it took until the hub's last request was answered.
func (c cost) until() time.Duration { return max(c.Last.Sub(c.began), 0) }

// costOf does something on a quiet hub, waits until the hub is quiet again, and returns what that cost. It ends with the hub.
func (w *world) costOf(ctx context.Context, do func(context.Context) error) (c cost, err error) {
	ctx, done := w.hub.during(ctx)
	defer done()
	c, err = w.measure(ctx, do)
	if err != nil && context.Cause(ctx) != nil {
		return c, context.Cause(ctx)
	} else if err != nil {
		return c, fmt.Errorf("%w%s", err, w.hub.ending())
	}
	return c, nil
}

func (w *world) measure(ctx context.Context, do func(context.Context) error) (c cost, err error) {
	if _, err := w.quiet(ctx); err != nil {
		return c, err
	}
	before, err := w.usage()
	if err != nil {
		return c, err
	}
	c.began = time.Now()
	if err := do(ctx); err != nil {
		return c, err
	}
	all, err := w.quiet(ctx)
	if err != nil {
		return c, err
	}
	after, err := w.usage()
	c.Tally, c.cpu = audit.Count(all), after.CPU-before.CPU
	return c, err
}

// run is a name for the identities of one run: a control plane that is named may have those of an earlier one.
func (w *world) run(name string) string {
	if w.plane != nil {
		return name
	}
	const base = 36
	return name + "-" + strconv.FormatInt(time.Now().UnixMilli(), base)
}
