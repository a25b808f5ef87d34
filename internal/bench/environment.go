package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/admission"
	"github.com/muster-fleet/muster/pkg/registration"
)

// environment is an API server with the hub that is measured.
type environment struct {
	Options
	*sim.API
	audit *audit.Log
	dir   string
	plane *controlplane.ControlPlane
	hub   *hubProcess // nil until it is started
}

// extraArgs are arguments of a control plane, and of the hub, in addition to the usual ones.
type extraArgs struct {
	apiServer, controllerManager, hub []string
	config                            map[string]any // fields of the hub's configuration
}

// unlimited is more than the number of clusters in any benchmark.
const unlimited = 1 << 24

// newEnvironment starts a control plane with an audit log, and no hub.
func newEnvironment(ctx context.Context, o Options, extra extraArgs) (e *environment, err error) {
	e = &environment{Options: o}
	if e.dir, err = os.MkdirTemp("", "muster-bench-"); err != nil {
		return nil, err
	}
	policy, log := filepath.Join(e.dir, "audit-policy.yaml"), filepath.Join(e.dir, "audit.log")
	if err := os.WriteFile(policy, []byte(audit.Policy), 0o600); err != nil {
		return nil, e.closeOnError(err)
	}
	e.audit = audit.NewLog(log)
	const noRotation = "--audit-log-maxsize=100000" // do not rotate the log, however long the run is
	e.plane, err = controlplane.Start(ctx, controlplane.Options{
		Name: "bench", Dir: filepath.Join(e.dir, "plane"), Binaries: o.Binaries,
		APIServerArgs:         append([]string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, noRotation}, extra.apiServer...),
		ControllerManagerArgs: extra.controllerManager,
	})
	if err != nil {
		return nil, e.closeOnError(err)
	}
	if e.API, err = sim.Connect(ctx, e.plane.RESTConfig(), systemNamespace, workspace); err != nil {
		return nil, e.closeOnError(err)
	}
	fields := map[string]any{
		"apiServerURL": e.plane.URL(), "apiServerCA": e.plane.CA(),
		"members": map[string]any{"allowedCIDRs": []any{"127.0.0.0/8"}}, // the simulated members
		// Simulated agents send no heartbeat before all of them are registered.
		"registration": map[string]any{"limits": map[string]any{"unconnectedPerToken": unlimited, "unconnectedPerNamespace": unlimited}},
	}
	maps.Copy(fields, extra.config)
	config, err := yaml.Marshal(fields)
	if err != nil {
		return nil, e.closeOnError(err)
	}
	_, err = e.Core.CoreV1().ConfigMaps(systemNamespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: registration.HubConfigMap}, Data: map[string]string{registration.ConfigKey: string(config)},
	}, metav1.CreateOptions{})
	return e, e.closeOnError(err)
}

// withHub starts a control plane and a hub, and returns when the hub serves agents.
func withHub(ctx context.Context, o Options, extra extraArgs) (e *environment, err error) {
	if e, err = newEnvironment(ctx, o, extra); err != nil {
		return nil, err
	}
	// No other process waits for the Lease, so the times can be long enough for an API server on a busy machine.
	if e.hub, err = e.prepareHub("hub", append([]string{"--lease-duration=10m", "--renew-deadline=8m"}, extra.hub...)...); err == nil {
		err = e.hub.start()
	}
	if err != nil {
		return nil, e.closeOnError(err)
	}
	return e, e.closeOnError(e.awaitHub(ctx))
}

func (e *environment) closeOnError(err error) error {
	if err != nil {
		e.close()
	}
	return err
}

func (e *environment) close() {
	if e.hub != nil {
		e.hub.stop()
	}
	if e.plane != nil {
		_ = e.plane.Stop()
	}
	_ = os.RemoveAll(e.dir)
}

// awaitHub waits until the API server serves all kinds that agents and imports need, and applies the admission policies. The hub creates
// the kinds one after the other, and the API server refuses requests while it applies a policy and does not know the schema of its kind.
func (e *environment) awaitHub(ctx context.Context) error {
	return awaitSuccess(ctx, "the kinds and the policies of the hub", func(ctx context.Context) error {
		return errors.Join(e.readKinds(ctx), admission.Probe(ctx, e.Fleet.ClusterRegistrations(workspace)))
	})
}

// awaitKinds waits until the API server serves all kinds that agents and imports need.
func (e *environment) awaitKinds(ctx context.Context) error {
	return awaitSuccess(ctx, "the kinds of the hub", e.readKinds)
}

func (e *environment) readKinds(ctx context.Context) error {
	one := metav1.ListOptions{Limit: 1}
	_, errClusters := e.Fleet.Clusters(workspace).List(ctx, one)
	_, errRequests := e.Fleet.ClusterRegistrations(workspace).List(ctx, one)
	_, errTokens := e.Fleet.ClusterRegistrationTokens(workspace).List(ctx, one)
	return errors.Join(errClusters, errRequests, errTokens)
}

// awaitSuccess repeats try until it succeeds. The error has the last error of try.
func awaitSuccess(ctx context.Context, what string, try func(context.Context) error) error {
	var last error
	err := sim.Await(ctx, what, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}

func (e *environment) logf(format string, arguments ...any) {
	fmt.Fprintf(e.Log, "bench: "+format+"\n", arguments...)
}

// cost has the requests and the CPU time of the hub and its API server during an operation.
type cost struct {
	audit.Counts
	hubCPU       time.Duration
	apiServerCPU time.Duration
	began        time.Time
}

// duration is the time until the hub's last request was answered.
func (c cost) duration() time.Duration { return max(c.Last.Sub(c.began), 0) }

// measure runs an operation on a quiet hub, waits until the hub is quiet again, and returns the cost. It fails if the hub exits.
func (e *environment) measure(ctx context.Context, operation func(context.Context) error) (c cost, err error) {
	ctx, done := e.hub.untilExit(ctx)
	defer done()
	defer func() {
		switch {
		case err == nil:
		case context.Cause(ctx) != nil:
			err = context.Cause(ctx)
		default:
			err = fmt.Errorf("%w%s", err, e.hub.logTail())
		}
	}()
	if _, err := e.awaitQuiet(ctx); err != nil {
		return c, err
	}
	c.apiServerCPU, err = cpuDuring([]int{e.plane.APIServerPid()}, func() (err error) {
		c.hubCPU, err = cpuDuring([]int{e.hub.pid()}, func() error {
			c.began = time.Now()
			if err := operation(ctx); err != nil {
				return err
			}
			requests, err := e.awaitQuiet(ctx)
			c.Counts = audit.Count(requests)
			return err
		})
		return err
	})
	return c, err
}

// awaitQuiet waits until the hub has sent no request that counts for some time, and returns all its requests since the last call.
func (e *environment) awaitQuiet(ctx context.Context) ([]audit.Request, error) {
	return awaitSilence(ctx, "the hub", func() ([]audit.Request, error) { return e.audit.Next(e.hubRequests()) })
}

// awaitSilence polls next, which returns the further requests of a program, until none has counted for two seconds. It returns all of them.
//
// Two seconds are longer than the second for which the hub delays statuses that follow from reports of agents. The reason of a wait, which the hub
// writes after ten seconds, is not waited for.
func awaitSilence(ctx context.Context, program string, next func() ([]audit.Request, error)) (all []audit.Request, err error) {
	const (
		silence = 2 * time.Second
		every   = 50 * time.Millisecond
		limit   = 30 * time.Minute
	)
	began := time.Now()
	for last := began; time.Since(last) < silence; {
		more, err := next()
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
		if audit.Count(more).Requests() > 0 {
			last = time.Now()
		}
		if time.Since(began) > limit {
			return nil, fmt.Errorf("%s is not quiet after %s: %s", program, limit, audit.Count(all).PerItem(1))
		}
		if err := sim.Pause(ctx, every); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// clusterCount is the number of Clusters in a namespace. The API server counts them without sending them.
func (e *environment) clusterCount(ctx context.Context, namespace string) (int, error) {
	first, err := e.Fleet.Clusters(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	count := len(first.Items)
	if more := first.RemainingItemCount; more != nil {
		count += int(*more)
	}
	return count, nil
}

// awaitClusters waits until a namespace has no more than so many Clusters.
func (e *environment) awaitClusters(ctx context.Context, namespace string, most int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Minute, errors.New("the clusters are not deleted"))
	defer cancel()
	for {
		if count, err := e.clusterCount(ctx, namespace); err != nil || count <= most {
			return err
		}
		if err := sim.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// databaseSize is the size of the API server's database in bytes, from its metrics.
func (e *environment) databaseSize(ctx context.Context) (int64, error) {
	metrics, err := e.Core.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	size, err := sumOf(string(metrics), "apiserver_storage_size_bytes")
	return int64(size), err
}

// sumOf adds up all series of a metric in the text format of Prometheus.
func sumOf(metrics, name string) (sum float64, err error) {
	found := false
	for line := range strings.Lines(metrics) {
		rest, isNamed := strings.CutPrefix(line, name)
		if !isNamed || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		sum, found = sum+value, true
	}
	if !found {
		return 0, fmt.Errorf("there is no metric %s", name)
	}
	return sum, nil
}
