package sim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/bench/figures"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Agents register with one token, as unchanged agents of Fleet do: a ClusterRegistration with a generated name, then the Secret
// with the answer, then heartbeats. When that Secret is there is told by one watch for all of them; a real agent asks every two
// seconds, which would hide what is measured.
type Agents struct {
	api      *API
	values   registration.Values
	core     kubernetes.Interface
	fleet    fleetclient.FleetV1alpha1Interface
	run      string // makes the identities of one run its own
	answered Signals
	members  []Member
}

// Member is a registered agent.
type Member struct {
	// Cluster is the name of its Cluster.
	Cluster string
	token   string
}

// NewAgents makes a registration token, connects with it, and listens for answers until ctx ends.
func NewAgents(ctx context.Context, api *API, run string) (*Agents, error) {
	a := &Agents{api: api, run: run}
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "bench-" + run}}
	if _, err := api.Fleet.ClusterRegistrationTokens(api.Workspace).Create(ctx, token, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if err := a.awaitValues(ctx, token.Name); err != nil {
		return nil, err
	}
	if err := a.connect(); err != nil {
		return nil, err
	}
	secrets := api.Core.CoreV1().Secrets(a.values.SystemRegistrationNamespace)
	return a, Follow(ctx, &corev1.Secret{}, secrets, func(secret *corev1.Secret) { a.answered.Give(secret.Name) })
}

func (a *Agents) awaitValues(ctx context.Context, token string) error {
	secrets := a.api.Core.CoreV1().Secrets(a.api.Workspace)
	return Await(ctx, "the values of token "+token, func(ctx context.Context) (bool, error) {
		secret, err := secrets.Get(ctx, token, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		a.values, err = registration.DecodeValues(secret.Data[registration.ValuesKey])
		return a.values.Token != "", err
	})
}

func (a *Agents) connect() (err error) {
	config := a.api.as(a.values.Token)
	if a.core, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	a.fleet, err = fleetclient.NewForConfig(config)
	return err
}

// as reaches the API server with a token, over connections that all who do so share.
func (a *API) as(token string) *rest.Config {
	config := rest.AnonymousClientConfig(a.Config)
	config.BearerToken, config.UserAgent, config.QPS = token, UserAgent+"-agent", -1
	return config
}

// Members are those that have registered, in the order of their numbers.
func (a *Agents) Members() []Member { return a.members }

// Register has so many more agents register, so many at a time, and returns how long each took from its request to the
// credential it can read.
func (a *Agents) Register(ctx context.Context, count, atATime int) (figures.Times, error) {
	took, first := make(figures.Times, count), len(a.members)
	a.members = append(a.members, make([]Member, count)...)
	err := InParallel(count, atATime, func(n int) (err error) {
		began := time.Now()
		a.members[first+n], err = a.register(ctx, first+n)
		took[n] = time.Since(began)
		return err
	})
	return took, err
}

func (a *Agents) register(ctx context.Context, n int) (Member, error) {
	id, random := fmt.Sprintf("%s-%d", a.run, n), fmt.Sprintf("random-%d", n)
	_, err := a.fleet.ClusterRegistrations(a.api.Workspace).Create(ctx, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "request-", Labels: map[string]string{fleet.RegistrationTokenLabel: a.values.TokenName}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: id, ClientRandom: random},
	}, metav1.CreateOptions{})
	if err != nil {
		return Member{}, fmt.Errorf("agent %s: %w", id, err)
	}
	name := registration.CredentialSecretName(id, random)
	if err := a.answered.Wait(ctx, name); err != nil {
		return Member{}, fmt.Errorf("agent %s: %w", id, err)
	}
	return a.fetch(ctx, name)
}

// fetch reads the credential as the agent: it must be able to.
func (a *Agents) fetch(ctx context.Context, name string) (m Member, err error) {
	secrets := a.core.CoreV1().Secrets(a.values.SystemRegistrationNamespace)
	err = Await(ctx, "the right to read Secret "+name, func(ctx context.Context) (bool, error) {
		secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		m = Member{Cluster: string(secret.Data[registration.CredentialClusterName]), token: string(secret.Data[registration.CredentialToken])}
		return m.token != "", nil
	})
	return m, err
}

// Numbers are those from first on, so many.
func Numbers(first, count int) []int {
	all := make([]int, count)
	for n := range all {
		all[n] = first + n
	}
	return all
}
