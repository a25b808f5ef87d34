package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// agents are simulated agents that register with one token, as unchanged agents of Fleet do: a ClusterRegistration with a
// generated name, then the Secret with the answer. When that Secret is there is told by one watch for all of them; a real
// agent asks every two seconds, which would hide what is measured.
type agents struct {
	world    *world
	values   registration.Values
	core     kubernetes.Interface
	fleet    fleetclient.FleetV1alpha1Interface
	run      string // makes identities of one run its own
	answered signals
}

// newAgents makes a token and connects with it.
func (w *world) newAgents(ctx context.Context, run string) (*agents, error) {
	a := &agents{world: w, run: run}
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "bench-" + run}}
	if _, err := w.fleet.ClusterRegistrationTokens(workspace).Create(ctx, token, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	err := w.await(ctx, "the registration token", func(ctx context.Context) (bool, error) {
		secret, err := w.core.CoreV1().Secrets(workspace).Get(ctx, token.Name, metav1.GetOptions{})
		if err != nil {
			return false, nil
		}
		a.values, err = registration.DecodeValues(secret.Data[registration.ValuesKey])
		return a.values.Token != "", err
	})
	if err != nil {
		return nil, err
	}
	return a, a.connect()
}

func (a *agents) connect() (err error) {
	config := rest.AnonymousClientConfig(a.world.config)
	config.BearerToken, config.UserAgent, config.QPS = a.values.Token, "bench-agent", -1
	if a.core, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	a.fleet, err = fleetclient.NewForConfig(config)
	return err
}

// listen tells each agent when its Secret is there, until the context ends.
func (a *agents) listen(ctx context.Context) error {
	secrets := a.world.core.CoreV1().Secrets(a.values.SystemRegistrationNamespace)
	return follow(ctx, &corev1.Secret{}, secrets, func(secret *corev1.Secret) { a.answered.give(secret.Name) })
}

// register takes one agent from its request to its credential and returns how long that took.
func (a *agents) register(ctx context.Context, n int) (time.Duration, error) {
	id, random := fmt.Sprintf("%s-%d", a.run, n), fmt.Sprintf("random-%d", n)
	name := registration.CredentialSecretName(id, random)
	began := time.Now()
	_, err := a.fleet.ClusterRegistrations(workspace).Create(ctx, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "request-", Labels: map[string]string{fleet.RegistrationTokenLabel: a.values.TokenName}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: id, ClientRandom: random},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("agent %s: %w", id, err)
	}
	select {
	case <-a.answered.of(name):
	case <-time.After(patience):
		return 0, fmt.Errorf("agent %s got no answer within %s", id, patience)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return time.Since(began), a.fetch(ctx, name)
}

// fetch reads the credential as the agent: it must be able to.
func (a *agents) fetch(ctx context.Context, name string) error {
	return a.world.await(ctx, "the right to read Secret "+name, func(ctx context.Context) (bool, error) {
		secret, err := a.core.CoreV1().Secrets(a.values.SystemRegistrationNamespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil && len(secret.Data[registration.CredentialToken]) > 0, err
	})
}

// storm has the agents from first on register, so many at a time.
func (a *agents) storm(ctx context.Context, first, count, atATime int) (times, error) {
	took := make(times, count)
	err := inParallel(count, atATime, func(n int) (err error) {
		took[n], err = a.register(ctx, first+n)
		return err
	})
	return took, err
}

// inParallel does something count times, so many at a time, and returns the first error.
func inParallel(count, atATime int, do func(n int) error) error {
	var group errgroup.Group
	group.SetLimit(atATime)
	for n := range count {
		group.Go(func() error { return do(n) })
	}
	return group.Wait()
}
