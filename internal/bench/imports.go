package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// imports measures clusters that the hub is given kubeconfigs of: all of one member, each with an agent namespace of its own,
// alone and beside members that accept connections and never answer.
func imports(ctx context.Context, o Options) ([]Result, error) {
	hub, err := newWorld(ctx, o)
	if err != nil {
		return nil, err
	}
	defer hub.close()
	member, err := newWorld(ctx, o)
	if err != nil {
		return nil, err
	}
	defer member.close()
	if err := hub.startHub(ctx); err != nil {
		return nil, err
	}
	i := &importing{hub: hub, member: member, log: o}
	if err := i.listen(ctx); err != nil {
		return nil, err
	}
	if _, err := i.all(ctx, "warm", 1, 1, member.plane.Kubeconfig()); err != nil {
		return nil, err
	}
	many, err := i.many(ctx, o)
	if err != nil {
		return nil, err
	}
	beside, err := i.besideSilence(ctx, o)
	return append(many, beside...), err
}

type importing struct {
	hub, member *world
	log         Options
	imported    signals
}

// listen tells when each Cluster has its agent installed.
func (i *importing) listen(ctx context.Context) error {
	return follow(ctx, &fleet.Cluster{}, i.hub.fleet.Clusters(workspace), func(cluster *fleet.Cluster) {
		if cluster.Status.AgentDeployedGeneration != nil {
			i.imported.give(cluster.Name)
		}
	})
}

// create gives the hub a cluster.
func (i *importing) create(ctx context.Context, name string, kubeconfig []byte) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-kubeconfig"}, Data: map[string][]byte{registration.KubeconfigValue: kubeconfig},
	}
	if _, err := i.hub.core.CoreV1().Secrets(workspace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := i.hub.fleet.Clusters(workspace).Create(ctx, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: secret.Name, AgentNamespace: name},
	}, metav1.CreateOptions{})
	return err
}

// all imports so many clusters and returns how long each took.
func (i *importing) all(ctx context.Context, prefix string, count, atATime int, kubeconfig []byte) (times, error) {
	took := make(times, count)
	return took, inParallel(count, atATime, func(n int) error {
		name, began := fmt.Sprintf("%s-%d", prefix, n), time.Now()
		if err := i.create(ctx, name, kubeconfig); err != nil {
			return err
		}
		select {
		case <-i.imported.of(name):
		case <-time.After(patience):
			return fmt.Errorf("cluster %s was not imported within %s: %s", name, patience, i.stateOf(ctx, name))
		case <-ctx.Done():
			return ctx.Err()
		}
		took[n] = time.Since(began)
		return nil
	})
}

// stateOf is what the hub says of a cluster.
func (i *importing) stateOf(ctx context.Context, name string) string {
	cluster, err := i.hub.fleet.Clusters(workspace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%+v", cluster.Status.Conditions)
}

func (i *importing) many(ctx context.Context, o Options) ([]Result, error) {
	if _, err := errors2(i.hub.quiet(ctx))(i.member.audit.since(byAgent(hubAgent))); err != nil {
		return nil, err
	}
	count := o.Imports
	began := time.Now()
	if _, err := i.all(ctx, "many", count, count, i.member.plane.Kubeconfig()); err != nil {
		return nil, err
	}
	rate := perSecond(count, time.Since(began))
	atHub, err := i.hub.quiet(ctx)
	if err != nil {
		return nil, err
	}
	atMember, err := i.member.audit.since(byAgent(hubAgent))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Log, "imports: %.1f/s\n", rate)
	each := func(r Requests) float64 { return float64(r.Writes+r.Reads) / float64(count) }
	hub, member := countAll(atHub), countAll(atMember)
	return []Result{
		atLeast(fmt.Sprintf("%d imports: a second", count), rate, "1/s", 25),
		counted("imports: requests to the hub's API server, each", each(hub), "", 16),
		counted("imports: requests to the member, each", each(member), "", 16),
		{Row: "imports: requests to the hub's API server by kind", Note: kinds(hub, count), Bound: -1},
		{Row: "imports: requests to the member by kind", Note: kinds(member, count), Bound: -1},
	}, nil
}

// errors2 joins the errors of two calls whose results are not wanted.
func errors2(_ []sent, first error) func([]sent, error) ([]sent, error) {
	return func(all []sent, second error) ([]sent, error) { return all, errors.Join(first, second) }
}

// besideSilence imports clusters, then the same beside members that never answer.
func (i *importing) besideSilence(ctx context.Context, o Options) ([]Result, error) {
	const count, silent = 20, 100
	alone, err := i.all(ctx, "alone", count, count, i.member.plane.Kubeconfig())
	if err != nil {
		return nil, err
	}
	listener, err := newSilence()
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	kubeconfig, err := kubeconfigOf(listener.Addr().String())
	if err != nil {
		return nil, err
	}
	for n := range silent {
		if err := i.create(ctx, fmt.Sprintf("silent-%d", n), kubeconfig); err != nil {
			return nil, err
		}
	}
	beside, err := i.all(ctx, "beside", count, count, i.member.plane.Kubeconfig())
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Log, "20 imports: p50 %s alone, %s beside 100 silent members\n", alone.quantile(.5), beside.quantile(.5))
	return []Result{
		shown("20 imports: p50", alone.quantile(.5).Seconds(), "s"),
		atMost("20 imports beside 100 members that never answer: p50", beside.quantile(.5).Seconds(), "s", 1),
		atMost("the same, compared with it alone", beside.quantile(.5).Seconds()/alone.quantile(.5).Seconds(), "", 1.1),
	}, nil
}

// newSilence accepts connections and says nothing.
func newSilence() (net.Listener, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		var open []net.Conn
		for {
			connection, err := listener.Accept()
			if err != nil {
				for _, c := range open {
					_ = c.Close()
				}
				return
			}
			open = append(open, connection)
		}
	}()
	return listener, nil
}

func kubeconfigOf(address string) ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://" + address, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: "nobody-hears-it"}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	})
}
