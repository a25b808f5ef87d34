package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/procfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/process"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// memberWithAgent is an imported member with a real agent: the program fleetagent, which runs as a process on this machine.
type memberWithAgent struct {
	*importing
	cluster string
	agent   *process.Process
	log     string
}

func newMemberWithAgent(ctx context.Context, o Options) (*memberWithAgent, error) {
	i, err := newImporting(ctx, o)
	if err != nil {
		return nil, err
	}
	const number = "-0" // the suffix of the only Cluster that newImporting imports
	m := &memberWithAgent{importing: i, cluster: "warm-up" + number, log: filepath.Join(i.member.dir, "agent.log")}
	if err := m.start(ctx); err != nil {
		m.close()
		return nil, fmt.Errorf("%w\nthe end of the agent's log:\n%s", err, process.Tail(m.log, 10))
	}
	return m, nil
}

// start starts the agent and waits until it is registered.
func (m *memberWithAgent) start(ctx context.Context) error {
	program, err := filepath.Abs(m.Agent)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(m.member.dir, "member.kubeconfig")
	if err := os.WriteFile(kubeconfig, m.member.plane.Kubeconfig(), 0o600); err != nil {
		return err
	}
	m.agent, err = process.Start(process.Command{
		Path: program, Dir: m.member.dir, Log: m.log,
		Args: []string{"--kubeconfig", kubeconfig, "--namespace", m.cluster, "--checkin-interval", "5s"},
	})
	if err != nil {
		return err
	}
	return sim.Await(ctx, "the first heartbeat of the agent", func(ctx context.Context) (bool, error) {
		if !m.agent.Alive() {
			return false, m.agent.Death()
		}
		cluster, err := m.Fleet.Clusters(workspace).Get(ctx, m.cluster, metav1.GetOptions{})
		return err == nil && !cluster.Status.Agent.LastSeen.IsZero(), err
	})
}

func (m *memberWithAgent) close() {
	m.agent.Stop(10 * time.Second)
	m.importing.close()
}

// awaitQuiet waits until the agent has sent no request for some time. It returns the agent's requests to the hub and to the member since the last
// call, without heartbeats.
func (m *memberWithAgent) awaitQuiet(ctx context.Context) (hub, member []audit.Request, err error) {
	isAgent := audit.ByUserAgents("fleetagent")
	isHeartbeat := func(r audit.Request) bool { // without a Lease the write to the hub (audit never counts Leases), and the reads of the member for the report
		return r.ObjectRef.Resource == "clusters" && r.ObjectRef.Subresource == "status" || r.ObjectRef.Resource == "nodes" || r.ObjectRef.Resource == ""
	}
	counts := func(r audit.Request) bool { return isAgent(r) && !isHeartbeat(r) }
	_, err = awaitSilence(ctx, "the agent", func() ([]audit.Request, error) {
		toHub, err := m.environment.audit.Next(counts)
		if err != nil {
			return nil, err
		}
		toMember, err := m.member.audit.Next(counts)
		hub, member = append(hub, toHub...), append(member, toMember...)
		return slices.Concat(toHub, toMember), err
	})
	return hub, member, err
}

// deployments measures an agent to which many Bundles are deployed at the same time, and the idle agent after that.
func deployments(ctx context.Context, o Options) ([]figures.Figure, error) {
	m, err := newMemberWithAgent(ctx, o)
	if err != nil {
		return nil, err
	}
	defer m.close()
	if _, _, err := m.awaitQuiet(ctx); err != nil {
		return nil, err
	}

	var took time.Duration
	var hub, member []audit.Request
	cpu, err := cpuDuring([]int{m.agent.Pid()}, func() (err error) {
		began := time.Now()
		err = sim.InParallel(o.Bundles, o.InFlight, func(n int) error {
			_, err := m.Fleet.Bundles(workspace).Create(ctx, benchBundle(n, m.cluster), metav1.CreateOptions{})
			return err
		})
		if err != nil {
			return err
		}
		err = sim.Await(ctx, "the Bundles to be ready", func(ctx context.Context) (bool, error) {
			cluster, err := m.Fleet.Clusters(workspace).Get(ctx, m.cluster, metav1.GetOptions{})
			return err == nil && cluster.Status.Summary.Ready >= o.Bundles, err
		})
		took = time.Since(began)
		if err != nil {
			return fmt.Errorf("%w\nthe end of the agent's log:\n%s", err, process.Tail(m.log, 10))
		}
		hub, member, err = m.awaitQuiet(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	toHub, toMember := audit.Count(hub), audit.Count(member)

	if err := sim.Pause(ctx, o.Window); err != nil {
		return nil, err
	}
	hub, member, err = m.awaitQuiet(ctx)
	if err != nil {
		return nil, err
	}
	idleHub, idleMember := audit.Count(hub), audit.Count(member)
	memory, err := residentMemory(m.agent.Pid())
	if err != nil {
		return nil, err
	}
	used, err := usageOf(m.agent.Pid())
	if err != nil {
		return nil, err
	}
	m.logf("%d Bundles: ready after %s", o.Bundles, took)
	row := func(name string) string { return fmt.Sprintf("deployments/%d/%s", o.Bundles, name) }
	title := func(what string) string { return fmt.Sprintf("%d Bundles on one member: %s", o.Bundles, what) }
	each := float64(o.Bundles)
	return []figures.Figure{
		figures.Seconds(row("took"), title("all are ready after"), took),
		figures.Counted(row("hub-requests"), title("requests of the agent to the hub for one"), float64(toHub.Requests())/each).WithNote(toHub.PerItem(o.Bundles)),
		figures.Counted(row("member-requests"), title("requests of the agent to the member for one"), float64(toMember.Requests())/each).WithNote(toMember.PerItem(o.Bundles)),
		figures.Processor(row("cpu"), title("CPU of the agent for one"), cpu, o.Bundles),
		figures.Counted(row("idle"), title(fmt.Sprintf("requests of the idle agent in %s, without heartbeats", o.Window)),
			float64(idleHub.Requests()+idleMember.Requests())).WithNote(idleHub.PerItem(1) + "; " + idleMember.PerItem(1)),
		figures.Bytes(row("memory"), title("memory of the idle agent"), memory),
		figures.Bytes(row("peak-memory"), title("peak memory of the agent"), used.peakMemory),
	}, nil
}

// benchBundle returns a Bundle with three objects in one of ten namespaces.
func benchBundle(n int, cluster string) *fleet.Bundle {
	name := fmt.Sprintf("app-%d", n)
	manifest := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %[1]s}\ndata: {number: \"%[2]d\"}\n---\n"+
		"apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %[1]s}\n---\n"+
		"apiVersion: v1\nkind: Service\nmetadata: {name: %[1]s}\nspec: {selector: {app: %[1]s}, ports: [{port: 80}]}\n", name, n)
	return &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.BundleSpec{
		BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: fmt.Sprintf("apps-%d", n%10)},
		Resources:               []fleet.BundleResource{{Name: "all.yaml", Content: manifest}},
		Targets:                 []fleet.BundleTarget{{ClusterName: cluster}},
	}}
}

// residentMemory returns the current resident memory of a process.
func residentMemory(pid int) (int64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := p.NewStatus()
	return int64(status.VmRSS), err //nolint:gosec // less memory than an int64 can count
}
