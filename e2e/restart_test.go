//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// moment is a point of a registration at which hub or agent is restarted or killed.
type moment struct {
	name    string
	reached func(ctx context.Context, e *enrolled) (bool, error)
}

func hasNamespace() moment {
	return moment{"when the Cluster has its namespace", func(ctx context.Context, e *enrolled) (bool, error) {
		c, err := e.get(ctx)
		return err == nil && c.Status.Namespace != "", err
	}}
}

func hasToken() moment {
	return moment{"when the token is ready", func(ctx context.Context, e *enrolled) (bool, error) {
		token, err := e.s.hub.fleet.ClusterRegistrationTokens(e.namespace).Get(ctx, registration.ImportTokenName(e.name), metav1.GetOptions{})
		return err == nil && token.Status.SecretName != "", err
	}}
}

func installed() moment {
	return moment{"when the agent is installed", func(ctx context.Context, e *enrolled) (bool, error) {
		pods, err := e.on.pods(ctx, e.agentNamespace, agentPods)
		return len(pods) > 0, err
	}}
}

func asked() moment {
	return moment{"when the agent has asked", func(ctx context.Context, e *enrolled) (bool, error) {
		requests, err := e.requests(ctx)
		return len(requests) > 0, err
	}}
}

func granted() moment {
	return moment{"when the request is granted", func(ctx context.Context, e *enrolled) (bool, error) {
		requests, err := e.requests(ctx)
		return len(requests) > 0 && requests[0].Status.Granted, err
	}}
}

func stored() moment {
	return moment{"when the agent has stored its credential", func(ctx context.Context, e *enrolled) (bool, error) {
		_, err := e.on.kube.CoreV1().Secrets(e.agentNamespace).Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
		return err == nil, err
	}}
}

func heard() moment {
	return moment{"when the agent has been heard of", func(ctx context.Context, e *enrolled) (bool, error) {
		c, err := e.get(ctx)
		return err == nil && !c.Status.Agent.LastSeen.IsZero(), err
	}}
}

// at waits for the moment.
func (e *enrolled) at(m moment) {
	e.s.Helper()
	e.s.until("the moment "+m.name, func(ctx context.Context) (bool, string) {
		reached, err := m.reached(ctx, e)
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return seen(err, reached, "not yet")
	})
}

func TestTheHubRestartsAtEveryMoment(t *testing.T) {
	s := beginAlone(t)
	s.workspace()
	when := []moment{hasNamespace(), hasToken(), installed(), asked(), granted(), heard()}
	for i, m := range when {
		s.step("the hub restarts "+m.name, func() {
			e := s.enrol(fmt.Sprintf("m%d", i))
			e.at(m)
			s.restartPods(s.hub, systemNamespace, hubPods)
			e.registered()
		})
	}
	s.step("no cluster has registered twice", func() { s.registeredOnce(len(when)) })
}

func TestTheAgentIsKilledAtEveryMoment(t *testing.T) {
	s := begin(t)
	s.workspace()
	when := []moment{installed(), asked(), granted(), stored(), heard()}
	started := make([]*enrolled, len(when))
	for i, m := range when {
		s.step("the agent is killed "+m.name, func() {
			started[i] = s.enrol(fmt.Sprintf("m%d", i))
			started[i].at(m)
			s.killPods(s.member, started[i].agentNamespace, agentPods)
		})
	}
	s.step("all of them register", func() {
		for _, e := range started {
			e.registered()
		}
	})
	s.step("no cluster has registered twice", func() { s.registeredOnce(len(when)) })
}

// registeredOnce looks that each Cluster of the scene has one request: an agent or hub that starts again goes on where it was.
func (s *scene) registeredOnce(clusters int) {
	s.Helper()
	list, err := s.hub.fleet.ClusterRegistrations(s.id).List(s.Context(), metav1.ListOptions{})
	s.fail(err)
	if len(list.Items) != clusters {
		s.Errorf("%d Clusters have %d ClusterRegistrations: %v", clusters, len(list.Items), requestsByCluster(list.Items))
	}
}

func requestsByCluster(requests []fleet.ClusterRegistration) map[string]int {
	count := map[string]int{}
	for _, r := range requests {
		count[r.Status.ClusterName]++
	}
	return count
}
