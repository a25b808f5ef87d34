package shards

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// scene is the hub's API server with a workspace in which clusters register.
type scene struct {
	hub    *testenv.Cluster
	ns     string
	values registration.Values
}

func newScene(t *testing.T) *scene {
	t.Helper()
	hub := testenv.OwnCluster(t, "sharing")
	hub.Configure(t, hub.Reachable())
	return &scene{hub: hub, ns: hub.Namespace(t)}
}

// token makes the token that all register with; a hub has to be at work.
func (s *scene) token(t *testing.T, limit *int32) {
	t.Helper()
	s.hub.AwaitAdmission(t)
	s.values = s.hub.Token(t, s.ns, "storm", fleet.ClusterRegistrationTokenSpec{UsageLimit: limit})
}

// storm is so many requests at once, whose names begin with the given one.
func (s *scene) storm(t *testing.T, prefix string, n int) (requests []*fleet.ClusterRegistration) {
	t.Helper()
	requests = make([]*fleet.ClusterRegistration, n)
	group, agent := errgroup.Group{}, s.hub.ClientFor(t, s.values.Token)
	for i := range requests {
		group.Go(func() (err error) {
			requests[i], err = agent.Fleet.ClusterRegistrations(s.ns).Create(context.Background(), &fleet.ClusterRegistration{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%03d", prefix, i), Labels: map[string]string{fleet.RegistrationTokenLabel: "storm"}},
				Spec:       fleet.ClusterRegistrationSpec{ClientID: fmt.Sprintf("%s-client-%03d", prefix, i), ClientRandom: fmt.Sprint("r", i)},
			}, metav1.CreateOptions{})
			return err
		})
	}
	require.NoError(t, group.Wait())
	return requests
}

// requireGranted waits until so many of all requests are granted, and the others were refused.
func (s *scene) requireGranted(t *testing.T, granted, refused int) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		all, err := s.hub.Fleet.ClusterRegistrations(s.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		counts := map[string]int{}
		for _, request := range all.Items {
			counts[reason(request)]++
		}
		want := map[string]int{fleet.ReasonGranted: granted}
		if refused > 0 {
			want[fleet.ReasonTokenUsedUp] = refused
		}
		return fmt.Sprint(counts) == fmt.Sprint(want), fmt.Sprintf("%v, want %v", counts, want)
	})
}

func reason(request fleet.ClusterRegistration) string {
	for _, condition := range request.Status.Conditions {
		if condition.Type == fleet.ConditionGranted {
			return condition.Reason
		}
	}
	return "none"
}

// requireUses waits until the token says that it was used so often.
func (s *scene) requireUses(t *testing.T, want int) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		token, err := s.hub.Fleet.ClusterRegistrationTokens(s.ns).Get(t.Context(), "storm", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return int(token.Status.Uses) == want, fmt.Sprintf("the token was used %d times, want %d", token.Status.Uses, want)
	})
}

// requireShared checks that each credential was issued once, by whichever of them, and that each has issued some.
func requireShared(t *testing.T, credentials int, replicas ...*replica) {
	t.Helper()
	all := map[string]int{}
	for _, r := range replicas {
		tokens := r.tokens()
		t.Logf("%s issued %d credentials", r.name, len(tokens))
		require.NotEmpty(t, tokens, "%s did nothing", r.name)
		for path, n := range tokens {
			all[path] += n
		}
	}
	require.Len(t, all, credentials)
	for path, n := range all {
		require.Equal(t, 1, n, "%s was sent %d times", path, n)
	}
}

func TestTwoHubsShareAStorm(t *testing.T) {
	s := newScene(t)
	replicas := []*replica{start(t, s.hub, "a"), start(t, s.hub, "b")}
	await(t, replicas, 8, 8)
	s.token(t, nil)
	issued := len(replicas[0].tokens()) + len(replicas[1].tokens()) // that of the token itself
	const storm = 60
	s.storm(t, "storm", storm)
	s.requireGranted(t, storm, 0)
	s.requireUses(t, storm)
	requireShared(t, storm+issued, replicas...)

	t.Run("a limit is kept to the last use", func(t *testing.T) {
		limit := int32(17)
		limited := &scene{hub: s.hub, ns: s.hub.Namespace(t)}
		limited.token(t, &limit)
		limited.storm(t, "limited", 40)
		limited.requireGranted(t, 17, 23)
		limited.requireUses(t, 17)
	})
	t.Run("one that stops gives its share away, and nothing is lost", func(t *testing.T) {
		begin := &scene{hub: s.hub, ns: s.hub.Namespace(t)}
		begin.token(t, nil)
		begin.storm(t, "before", 20)
		replicas[0].stop()
		begin.storm(t, "while", 20)
		require.NoError(t, replicas[0].wait(t))
		begin.storm(t, "after", 20)
		begin.requireGranted(t, 60, 0)
		begin.requireUses(t, 60)
		await(t, replicas[1:], 16)
	})
}

func TestFourHubsShareAStormAndOneAfterTheOtherGoes(t *testing.T) {
	s := newScene(t)
	var replicas []*replica
	for _, name := range []string{"a", "b", "c", "d"} {
		replicas = append(replicas, start(t, s.hub, name))
	}
	await(t, replicas, 4, 4, 4, 4)
	s.token(t, nil)
	s.storm(t, "four", 80)
	s.requireGranted(t, 80, 0)
	requireEach(t, replicas)
	for n := range 3 {
		replicas[n].stop()
		s.storm(t, fmt.Sprint("left-", n), 20)
		require.NoError(t, replicas[n].wait(t))
	}
	s.requireGranted(t, 140, 0)
	s.requireUses(t, 140)
	await(t, replicas[3:], 16)
	await(t, []*replica{replicas[3], start(t, s.hub, "e")}, 8, 8)
}

func requireEach(t *testing.T, replicas []*replica) {
	t.Helper()
	for _, r := range replicas {
		require.NotEmpty(t, r.tokens(), "%s did nothing", r.name)
	}
}
