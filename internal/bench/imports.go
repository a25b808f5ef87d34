package bench

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"time"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// importing is a hub with one member, which is imported as many Clusters.
type importing struct {
	*environment
	member *environment
	given  *sim.Imports
}

// newImporting starts a hub and a member, and imports one cluster, so that the connections are open when the measurement begins.
func newImporting(ctx context.Context, o Options) (*importing, error) {
	hub, err := withHub(ctx, o, extraArgs{})
	if err != nil {
		return nil, err
	}
	member, err := newEnvironment(ctx, o, extraArgs{})
	if err != nil {
		return nil, hub.closeOnError(err)
	}
	i := &importing{environment: hub, member: member}
	if i.given, err = sim.NewImports(ctx, hub.API); err == nil {
		_, err = i.importMember(ctx, "warm-up", 1)
	}
	if err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

func (i *importing) close() {
	i.environment.close()
	i.member.close()
}

func (i *importing) importMember(ctx context.Context, name string, count int) (figures.Samples, error) {
	return i.given.Import(ctx, name, count, i.member.plane.Kubeconfig())
}

// imports measures many imports that begin at the same time.
func imports(ctx context.Context, o Options) ([]figures.Figure, error) {
	i, err := newImporting(ctx, o)
	if err != nil {
		return nil, err
	}
	defer i.close()
	var rate float64
	var memberLog *audit.Log
	hub, err := i.measure(ctx, func(ctx context.Context) (err error) {
		if memberLog, err = i.member.audit.FromHere(); err != nil {
			return err
		}
		began := time.Now()
		_, err = i.importMember(ctx, "many", o.Imports)
		rate = figures.PerSecond(o.Imports, time.Since(began))
		return err
	})
	if err != nil {
		return nil, err
	}
	requests, err := memberLog.Next(i.hubRequests())
	if err != nil {
		return nil, err
	}
	i.logf("%d imports: %.1f/s", o.Imports, rate)
	return importFigures(o.Imports, rate, hub, audit.Count(requests)), nil
}

func importFigures(count int, rate float64, hub cost, member audit.Counts) []figures.Figure {
	perImport := func(n int) float64 { return float64(n) / float64(count) }
	return []figures.Figure{
		figures.Rate("imports/rate", fmt.Sprintf("%d clusters of one member imported at once: imports per second", count), rate),
		figures.Counted("imports/hub-requests", "requests to the hub's API server for one import", perImport(hub.Requests())).WithNote(hub.PerItem(count)),
		figures.Counted("imports/member-requests", "requests to the member for one import", perImport(member.Requests())).WithNote(member.PerItem(count)),
		figures.Processor("imports/cpu", "CPU of the hub for one import", hub.hubCPU, count),
		figures.Processor("imports/apiserver-cpu", "CPU of the hub's API server for one import", hub.apiServerCPU, count),
	}
}

// silence measures a few imports alone, and then the same number beside imports of members that accept connections and never answer. These are
// in another workspace, because the hub limits the calls of each workspace.
func silence(ctx context.Context, o Options) ([]figures.Figure, error) {
	i, err := newImporting(ctx, o)
	if err != nil {
		return nil, err
	}
	defer i.close()
	few := min(20, o.Imports)
	alone, err := i.importMember(ctx, "alone", few)
	if err != nil {
		return nil, err
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and no program answers
	if err != nil {
		return nil, err
	}
	defer silent.Close()
	kubeconfig := bytes.ReplaceAll(i.member.plane.Kubeconfig(), []byte(i.member.plane.URL()), []byte("https://"+silent.Addr().String()))
	const members = 100
	other, err := sim.Connect(ctx, i.Config, systemNamespace, "silent")
	if err != nil {
		return nil, err
	}
	given, err := sim.NewImports(ctx, other)
	if err != nil {
		return nil, err
	}
	if err := given.Create(ctx, "silent", members, i.InFlight, func(int) []byte { return kubeconfig }); err != nil {
		return nil, err
	}
	if _, err := i.awaitQuiet(ctx); err != nil { // until the hub has created the objects of each Cluster on its own API server
		return nil, err
	}
	beside, err := i.importMember(ctx, "beside", few)
	if err != nil {
		return nil, err
	}
	a, b := alone.Quantile(.5), beside.Quantile(.5)
	i.logf("%d imports: p50 %s alone, %s beside %d silent members", few, a, b, members)
	return []figures.Figure{
		figures.Seconds("imports/alone-p50", fmt.Sprintf("%d imports: p50", few), a),
		figures.Seconds("imports/silent-p50", fmt.Sprintf("%d imports beside %d members of another workspace that never answer: p50", few, members), b),
		figures.Quotient("imports/silent-ratio", "the same, divided by that without silent members", b.Seconds(), a.Seconds()),
	}, nil
}
