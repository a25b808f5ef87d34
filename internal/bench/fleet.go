package bench

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/controlplane"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// loaded is a hub with many clusters. Most of them did not register: their objects are copies of the objects of one that did. etcd has the
// copies as the hub and the controller manager would have written them, so a hub that starts later writes nothing for them.
type loaded struct {
	growing
	leases  bool
	ready   string    // the URL of the hub's probe
	bundled int       // Bundles that exist, each for one cluster
	idle    processes // CPU per second while nothing happens
}

// checkin is the interval that the agents report: no Cluster is disconnected while others are measured.
const checkin = 12 * time.Hour

// fleetOf measures what one unit of each kind of work costs at several numbers of clusters: with agents that renew a Lease, or with
// agents that write the status of their Cluster, as unchanged agents of Fleet do.
func fleetOf(leases bool) func(context.Context, Options) ([]figures.Figure, error) {
	return func(ctx context.Context, o Options) ([]figures.Figure, error) {
		port, err := controlplane.FreePort()
		if err != nil {
			return nil, err
		}
		probes := fmt.Sprint("127.0.0.1:", port)
		e, err := withHub(ctx, o, extraArgs{
			hub: []string{"--health-bind-address", probes}, config: map[string]any{"agentLastSeenInterval": checkin.String()},
		})
		if err != nil {
			return nil, err
		}
		defer e.close()
		l := &loaded{growing: growing{environment: e}, leases: leases, ready: "http://" + probes + "/readyz"}
		if l.agents, err = sim.NewAgents(ctx, e.API, l.kind()); err != nil {
			return nil, err
		}
		l.agents.Leases = leases
		err = l.eachSize(ctx, l.atSize)
		return l.rows, err
	}
}

func (l *loaded) kind() string {
	if l.leases {
		return "lease"
	}
	return "status"
}

func (l *loaded) row(size int, what string) string {
	return fmt.Sprintf("fleet/%s/%d/%s", l.kind(), size, what)
}

// atSize grows the fleet to a number of clusters, of which the last register one after the other, and measures there.
func (l *loaded) atSize(ctx context.Context, size int) error {
	if err := l.grow(ctx, size-l.Idle); err != nil {
		return err
	}
	if err := l.measureRestart(ctx, size); err != nil {
		return err
	}
	idle, err := l.cpuOf(func() error { return sim.Pause(ctx, l.Window) })
	if err != nil {
		return err
	}
	l.idle = idle.each(l.Window.Seconds())
	l.add(l.idle.figures(func(what string) string { return l.row(size, "idle/"+what) }, titleAt(size, "nothing happens, for each second"), 1)...)

	first := len(l.agents.Registered)
	err = l.operation(ctx, size, "registration", "a registration with the first heartbeat and the agent's Bundle", l.Idle, func(ctx context.Context) error {
		if _, err := l.agents.Register(ctx, l.Idle, 1); err != nil {
			return err
		}
		return l.beat(ctx, sim.Numbers(first, l.Idle), "v1")
	})
	if err != nil {
		return err
	}

	const beating = 1000
	some := spread(len(l.agents.Registered), beating)
	if err := l.agents.Authenticate(ctx, some, l.InFlight); err != nil {
		return err
	}
	// After some seconds of heartbeats, the API server collects garbage, which takes longer the more objects it has. A single round could have no
	// collection, or more than its share.
	const rounds = 10
	err = l.operation(ctx, size, "heartbeat", "a heartbeat", rounds*len(some), func(ctx context.Context) error {
		for range rounds {
			if err := l.beat(ctx, some, ""); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if l.leases {
		few := spread(len(l.agents.Registered), beating/5)
		err := l.operation(ctx, size, "report", "a heartbeat whose report has changed, which the hub copies to the Cluster", len(few), func(ctx context.Context) error {
			return l.beat(ctx, few, fmt.Sprint("v", size))
		})
		if err != nil {
			return err
		}
	}
	if err := l.measureBundle(ctx, size); err != nil {
		return err
	}
	if err := l.measureSizes(ctx, size); err != nil {
		return err
	}
	return l.measureMinute(ctx, size, some) // last, because its heartbeats make etcd larger
}

func (l *loaded) beat(ctx context.Context, numbers []int, report string) error {
	_, err := l.agents.Beat(ctx, numbers, sim.Beats{Checkin: checkin, Limit: l.InFlight, Report: report})
	return err
}

// spread returns up to count numbers below total with equal distances.
func spread(total, count int) []int {
	all := make([]int, min(total, count))
	for n := range all {
		all[n] = n * total / len(all)
	}
	return all
}

// grow registers the first clusters, at most Storm, and copies the others while the hub is stopped.
func (l *loaded) grow(ctx context.Context, size int) error {
	if len(l.agents.Registered) == 0 {
		count := min(size, l.Storm)
		s, err := l.storm(ctx, l.agents.Register, count, l.InFlight)
		if err != nil {
			return err
		}
		l.add(figures.Rate(fmt.Sprintf("fleet/%s/rate", l.kind()), s.title("registrations per second"), s.rate))
		if err := l.beat(ctx, sim.Numbers(0, count), "v1"); err != nil {
			return err
		}
		if _, err := l.awaitQuiet(ctx); err != nil {
			return err
		}
	}
	missing := size - len(l.agents.Registered)
	if missing <= 0 {
		return nil
	}
	t, err := l.newTemplate(ctx)
	if err != nil {
		return err
	}
	l.add(figures.Counted(fmt.Sprintf("fleet/%s/%d/stored", l.kind(), size+l.Idle), titleAt(size+l.Idle, "bytes of the keys and values of one cluster"), float64(t.bytes())).
		WithNote(fmt.Sprintf("%d objects", len(t.entries))))
	l.hub.stop()
	return l.load(ctx, t, missing-1) // newTemplate has registered one
}

// newTemplate registers one more cluster, and takes its objects from etcd once it is settled.
func (l *loaded) newTemplate(ctx context.Context) (*template, error) {
	if _, err := l.awaitQuiet(ctx); err != nil {
		return nil, err
	}
	before, err := l.plane.StoredObjects(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, entry := range before {
		known[string(entry.Key)] = true
	}
	n := len(l.agents.Registered)
	if _, err := l.agents.Register(ctx, 1, 1); err != nil {
		return nil, err
	}
	if err := l.beat(ctx, []int{n}, "v1"); err != nil {
		return nil, err
	}
	clientID, clientRandom := l.agents.Identity(n)
	agent := l.agents.Registered[n]
	if !l.leases { // the hub deletes the credential after 40 minutes, and then the right to read it
		secrets := l.Core.CoreV1().Secrets(registration.SystemRegistrationNamespace(systemNamespace))
		if err := secrets.Delete(ctx, registration.AnswerSecretName(clientID, clientRandom), metav1.DeleteOptions{}); err != nil {
			return nil, err
		}
	}
	if _, err := l.awaitQuiet(ctx); err != nil {
		return nil, err
	}
	after, err := l.plane.StoredObjects(ctx)
	if err != nil {
		return nil, err
	}
	var created []controlplane.StoredObject
	for _, entry := range after {
		if !known[string(entry.Key)] {
			created = append(created, entry)
		}
	}
	namespace, err := l.Core.CoreV1().Namespaces().Get(ctx, registration.ClusterNamespace(workspace, agent.Cluster), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	request, err := l.Fleet.ClusterRegistrations(workspace).Get(ctx, agent.Request, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	old, err := identity{
		clientID: clientID, clientRandom: clientRandom, request: agent.Request, requestUID: string(request.UID),
		cluster: agent.Cluster, key: namespace.Annotations[fleet.NamespaceKeyAnnotation],
	}.complete(l.leases)
	if err != nil {
		return nil, err
	}
	token, err := l.Fleet.ClusterRegistrationTokens(workspace).Get(ctx, "bench-"+l.kind(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return newTemplate(created, old, string(token.UID))
}

// load writes the objects of more clusters to etcd, and waits until the API server has them.
func (l *loaded) load(ctx context.Context, t *template, count int) error {
	began, first := time.Now(), len(l.agents.Registered)
	added := make([]sim.Agent, count)
	err := l.plane.WriteStoredObjects(ctx, count, func(n int) ([]controlplane.StoredObject, error) {
		clientID, clientRandom := l.agents.Identity(first + n)
		request := copiedRequest(first + n)
		if l.leases {
			request = registration.RequestName(clientRandom)
		}
		i, err := identity{
			clientID: clientID, clientRandom: clientRandom, request: request, requestUID: string(uuid.NewUUID()),
			cluster: registration.ClusterName(clientID), key: rand.Text(),
		}.complete(l.leases)
		if err != nil {
			return nil, err
		}
		added[n] = sim.Agent{Cluster: i.cluster, Request: i.request, Account: i.account}
		return t.copyFor(i)
	})
	if err != nil {
		return err
	}
	l.agents.Registered = append(l.agents.Registered, added...)
	l.logf("%d clusters copied in %s", count, time.Since(began).Round(time.Second))
	return l.caughtUp(ctx)
}

// caughtUp waits until the API server and the controller manager have processed the copies: until both are nearly idle.
func (l *loaded) caughtUp(ctx context.Context) error {
	return l.calm(ctx, l.plane.APIServerPid(), l.plane.ControllerManagerPid())
}

// calm waits until the processes have used less than a fifth of a CPU for three seconds.
func (l *loaded) calm(ctx context.Context, pids ...int) error {
	const window, limit, enough = time.Second, time.Second / 5, 3
	for calm := 0; calm < enough; {
		used, err := cpuDuring(pids, func() error { return sim.Pause(ctx, window) })
		if err != nil {
			return err
		}
		if calm++; used > limit {
			calm = 0
		}
	}
	return nil
}

// awaitReady waits until the hub has filled its caches and works.
func (l *loaded) awaitReady(ctx context.Context) error {
	ctx, done := l.hub.untilExit(ctx)
	defer done()
	return sim.Await(ctx, "the hub to be ready", func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.ready, nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil { // it does not listen yet
			return false, context.Cause(ctx)
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK, nil
	})
}

// measureRestart starts the hub, or starts it again, and measures until it has processed all objects in its caches.
func (l *loaded) measureRestart(ctx context.Context, size int) error {
	l.hub.stop()
	if _, err := l.awaitQuiet(ctx); err != nil {
		return err
	}
	var took time.Duration
	var c audit.Counts
	api, err := cpuDuring([]int{l.plane.APIServerPid()}, func() error {
		began := time.Now()
		if err := l.hub.start(); err != nil {
			return err
		}
		if err := l.awaitReady(ctx); err != nil {
			return err
		}
		if err := l.calm(ctx, l.hub.pid()); err != nil {
			return err
		}
		took = time.Since(began)
		requests, err := l.awaitQuiet(ctx)
		c = audit.Count(requests)
		return err
	})
	if err != nil {
		return err
	}
	used, err := usageOf(l.hub.pid())
	if err != nil {
		return err
	}
	const calmTime = 3 * time.Second
	title := func(what string) string { return titleAt(size, "a start of the hub: "+what) }
	l.add(
		figures.Counted(l.row(size, "restart/writes"), title("writes"), float64(c.Writes)).WithNote(c.PerItem(1)),
		figures.Counted(l.row(size, "restart/reads"), title("reads"), float64(c.Reads)),
		figures.Processor(l.row(size, "restart/cpu"), title("CPU of the hub"), used.cpu, 1),
		figures.Processor(l.row(size, "restart/apiserver-cpu"), title("CPU of the API server"), api, 1),
		figures.Seconds(l.row(size, "restart/settled"), title("until all objects are processed"), took-calmTime),
	)
	if c.Writes > 0 { // the copies differ from the objects that this hub would have created
		return fmt.Errorf("the hub has written after its start: %s", c.PerItem(1))
	}
	return nil
}

// processes are the CPU times of the hub and of the control plane.
type processes struct {
	hub, apiServer, etcd, controllerManager time.Duration
}

func (p processes) each(n float64) processes {
	part := func(d time.Duration) time.Duration { return time.Duration(float64(d) / n) }
	return processes{hub: part(p.hub), apiServer: part(p.apiServer), etcd: part(p.etcd), controllerManager: part(p.controllerManager)}
}

// without subtracts the CPU time of the control plane while nothing happens. An idle hub uses nothing, except to collect garbage after
// its start, which may or may not be in a window of some seconds.
func (p processes) without(idle processes, took time.Duration) processes {
	rest := func(d, perSecond time.Duration) time.Duration {
		return max(0, d-time.Duration(perSecond.Seconds()*float64(took)))
	}
	return processes{
		hub: p.hub, apiServer: rest(p.apiServer, idle.apiServer),
		etcd: rest(p.etcd, idle.etcd), controllerManager: rest(p.controllerManager, idle.controllerManager),
	}
}

func (p processes) figures(row func(string) string, title string, n int) []figures.Figure {
	return []figures.Figure{
		figures.Processor(row("cpu"), title+": CPU of the hub", p.hub, n),
		figures.Processor(row("apiserver-cpu"), title+": CPU of the API server", p.apiServer, n),
		figures.Processor(row("etcd-cpu"), title+": CPU of etcd", p.etcd, n),
		figures.Processor(row("controller-manager-cpu"), title+": CPU of the controller manager", p.controllerManager, n),
	}
}

func (l *loaded) cpuOf(operation func() error) (p processes, err error) {
	read := func() (now processes, err error) {
		for pid, d := range map[int]*time.Duration{
			l.hub.pid(): &now.hub, l.plane.APIServerPid(): &now.apiServer, l.plane.EtcdPid(): &now.etcd, l.plane.ControllerManagerPid(): &now.controllerManager,
		} {
			used, err := usageOf(pid)
			if err != nil {
				return now, err
			}
			*d = used.cpu
		}
		return now, nil
	}
	before, err := read()
	if err != nil {
		return p, err
	}
	if err := operation(); err != nil {
		return p, err
	}
	after, err := read()
	return processes{
		hub: after.hub - before.hub, apiServer: after.apiServer - before.apiServer,
		etcd: after.etcd - before.etcd, controllerManager: after.controllerManager - before.controllerManager,
	}, err
}

// traffic has counters of the API server and etcd since their start.
type traffic struct{ written, events, sent float64 }

func (l *loaded) traffic(ctx context.Context) (t traffic, err error) {
	etcd, err := l.plane.EtcdMetrics(ctx)
	if err != nil {
		return t, err
	}
	api, err := l.Core.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return t, err
	}
	for _, metric := range []struct {
		text, name string
		value      *float64
	}{
		{etcd, "etcd_debugging_mvcc_total_put_size_in_bytes", &t.written},
		{string(api), "apiserver_watch_events_total", &t.events},
		{string(api), "apiserver_watch_events_sizes_sum", &t.sent},
	} {
		if *metric.value, err = sumOf(metric.text, metric.name); err != nil {
			return t, err
		}
	}
	return t, nil
}

// operation measures n units of work on a quiet hub.
func (l *loaded) operation(ctx context.Context, size int, name, title string, n int, do func(context.Context) error) error {
	if err := l.calm(ctx, l.plane.APIServerPid(), l.hub.pid()); err != nil {
		return err
	}
	before, err := l.traffic(ctx)
	if err != nil {
		return err
	}
	var c cost
	var took time.Duration
	used, err := l.cpuOf(func() error {
		began := time.Now()
		c, err = l.measure(ctx, do)
		took = time.Since(began)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	after, err := l.traffic(ctx)
	if err != nil {
		return err
	}
	row := func(what string) string { return l.row(size, name+"/"+what) }
	title = titleAt(size, title)
	each := func(sum float64) float64 { return sum / float64(n) }
	l.add(used.without(l.idle, took).figures(row, title, n)...)
	l.add(
		figures.Counted(row("requests"), title+": requests of the hub", each(float64(c.Requests()))).WithNote(c.PerItem(n)),
		figures.Counted(row("etcd-bytes"), title+": bytes written to etcd", each(after.written-before.written)),
		figures.Counted(row("watch-events"), title+": events to all watches", each(after.events-before.events)),
		figures.Counted(row("watch-bytes"), title+": bytes of these events", each(after.sent-before.sent)),
	)
	return nil
}

// measureBundle changes Bundles, each of which is for one cluster.
func (l *loaded) measureBundle(ctx context.Context, size int) error {
	bundles := l.Fleet.Bundles(workspace)
	for ; l.bundled < l.Idle; l.bundled++ {
		bundle, err := bundles.Create(ctx, benchBundle(l.bundled, l.agents.Registered[l.bundled].Cluster), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if l.bundled < l.Idle-1 {
			continue
		}
		err = sim.Await(ctx, "the first status of Bundle "+bundle.Name, func(ctx context.Context) (bool, error) { // up to half a minute
			latest, err := bundles.Get(ctx, bundle.Name, metav1.GetOptions{})
			return err == nil && latest.Status.ObservedGeneration > 0, err
		})
		if err != nil {
			return err
		}
	}
	return l.operation(ctx, size, "bundle", "a change of a Bundle for one cluster", l.bundled, func(ctx context.Context) error {
		return sim.InParallel(l.bundled, 1, func(n int) error {
			content := strings.ReplaceAll(benchBundle(n, "").Spec.Resources[0].Content, "app-", fmt.Sprintf("app%d-", size))
			patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/resources/0/content", "value": content}})
			if err != nil {
				return err
			}
			_, err = bundles.Patch(ctx, fmt.Sprint("app-", n), types.JSONPatchType, patch, metav1.PatchOptions{})
			return err
		})
	})
}

// measureSizes measures memory and disk space after all other work.
func (l *loaded) measureSizes(ctx context.Context, size int) error {
	title := func(what string) string { return titleAt(size, what) }
	for _, p := range []struct {
		what, of string
		pid      int
	}{
		{"memory", "the hub", l.hub.pid()},
		{"apiserver-memory", "the API server", l.plane.APIServerPid()},
		{"controller-manager-memory", "the controller manager", l.plane.ControllerManagerPid()},
	} {
		used, err := usageOf(p.pid)
		if err != nil {
			return err
		}
		now, err := residentMemory(p.pid)
		if err != nil {
			return err
		}
		l.add(
			figures.Bytes(l.row(size, p.what), title("peak memory of "+p.of+" since its start"), used.peakMemory),
			figures.Bytes(l.row(size, p.what+"-now"), title("memory of "+p.of), now),
		)
	}
	database, err := l.databaseSize(ctx)
	if err != nil {
		return err
	}
	l.add(figures.Bytes(l.row(size, "etcd"), title("size of etcd"), database))
	return nil
}
