package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/pkg/registration"
)

// minuteLoad is what was measured while all agents of a fleet sent one heartbeat each.
type minuteLoad struct {
	planned      float64 // heartbeats per second
	sent, failed int     // heartbeats
	took         time.Duration
	used         processes
	others       figures.Samples
	othersFailed int
}

func (m minuteLoad) figures(row, title func(string) string) []figures.Figure {
	all := m.used.hub + m.used.apiServer + m.used.etcd + m.used.controllerManager
	return []figures.Figure{
		figures.Rate(row("rate"), title(fmt.Sprintf("heartbeats sent per second, of %.1f planned", m.planned)), figures.PerSecond(m.sent, m.took)),
		figures.Counted(row("failed"), title("heartbeats that failed"), float64(m.failed)),
		figures.CPUs(row("apiserver-cpus"), title("CPUs that the API server uses"), m.used.apiServer, m.took),
		figures.CPUs(row("cpus"), title("CPUs that API server, etcd, controller manager and hub use"), all, m.took),
		figures.Milliseconds(row("p50"), title(fmt.Sprintf("p50 of %d other requests", len(m.others))), m.others.Quantile(.5)),
		figures.Milliseconds(row("p99"), title("p99 of the other requests"), m.others.Quantile(.99)),
		figures.Counted(row("others-failed"), title("other requests that failed"), float64(m.othersFailed)),
	}
}

// measureMinute lets all agents of the fleet send one heartbeat each within a minute, with the credentials of some of them, while a person sends other
// requests.
func (l *loaded) measureMinute(ctx context.Context, size int, agents []int) error {
	ctx, done := l.hub.untilExit(ctx)
	defer done()
	person, err := l.newPerson(ctx, l.agents.Registered[agents[0]].Cluster)
	if err != nil {
		return err
	}
	if err := l.calm(ctx, l.plane.APIServerPid(), l.hub.pid()); err != nil {
		return err
	}
	beats := sim.Beats{Checkin: checkin, Over: l.Minute, Limit: l.InFlight, Report: fmt.Sprint("minute-", size)}
	load := minuteLoad{planned: figures.PerSecond(size, l.Minute)}
	load.used, err = l.cpuOf(func() error {
		began := time.Now()
		requesting, stop := context.WithCancel(ctx)
		defer stop()
		var group errgroup.Group
		group.Go(func() (err error) {
			defer stop()
			load.sent, load.failed, err = l.agents.Steady(ctx, agents, size, beats)
			return err
		})
		group.Go(func() error {
			load.others, load.othersFailed = person.request(requesting)
			return nil
		})
		err := group.Wait()
		load.took = time.Since(began)
		return err
	})
	if err != nil {
		return fmt.Errorf("a minute of heartbeats: %w", err)
	}
	row := func(what string) string { return l.row(size, "minute/"+what) }
	title := func(what string) string {
		return titleAt(size, fmt.Sprintf("a heartbeat of each within %s: %s", l.Minute, what))
	}
	l.add(load.figures(row, title)...)
	return nil
}

// person sends requests as people and other programs do.
type person struct {
	api     *sim.API
	cluster string
}

// newPerson returns a user with all rights. Unlike the administrator of the API server, who is in the group system:masters, a person is subject to
// RBAC and to the priority levels of the API server.
func (l *loaded) newPerson(ctx context.Context, cluster string) (p *person, err error) {
	const user = "bench-person"
	_, err = l.Core.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	config := rest.CopyConfig(l.Config)
	config.Impersonate.UserName = user
	p = &person{cluster: cluster}
	return p, awaitSuccess(ctx, "the rights of "+user, func(ctx context.Context) (err error) {
		p.api, err = sim.Connect(ctx, config, l.SystemNamespace, l.Workspace)
		return err
	})
}

// request begins some requests per second until ctx ends, whether or not earlier ones are answered. It returns how long each took that succeeded.
func (p *person) request(ctx context.Context) (took figures.Samples, failed int) {
	const every = 200 * time.Millisecond
	send := context.WithoutCancel(ctx)
	var mu sync.Mutex
	timed := func(do func() error) {
		began := time.Now()
		err := do()
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed++
			return
		}
		took = append(took, time.Since(began))
	}
	clusters, configMaps := p.api.Fleet.Clusters(p.api.Workspace), p.api.Core.CoreV1().ConfigMaps(p.api.Workspace)
	deployments := p.api.Fleet.BundleDeployments(registration.ClusterNamespace(p.api.Workspace, p.cluster))
	kinds := []func(n int){
		func(int) {
			timed(func() error { _, err := clusters.Get(send, p.cluster, metav1.GetOptions{}); return err })
		},
		func(int) {
			timed(func() error { _, err := deployments.List(send, metav1.ListOptions{}); return err })
		},
		func(n int) {
			label := fmt.Appendf(nil, `{"metadata":{"labels":{"person":"%d"}}}`, n)
			timed(func() error {
				_, err := clusters.Patch(send, p.cluster, types.MergePatchType, label, metav1.PatchOptions{})
				return err
			})
		},
		func(n int) {
			name := fmt.Sprint("person-", n)
			timed(func() error {
				_, err := configMaps.Create(send, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				return err
			})
			timed(func() error { return configMaps.Delete(send, name, metav1.DeleteOptions{}) })
		},
	}
	var running sync.WaitGroup
	for n := 0; sim.Pause(ctx, every) == nil; n++ {
		running.Go(func() { kinds[n%len(kinds)](n) })
	}
	running.Wait()
	return took, failed
}
