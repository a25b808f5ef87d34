//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestATokenExpires(t *testing.T) {
	s := begin(t)
	s.takeChart()
	s.workspace()
	id := s.named("late")
	var values string
	var m *enrolled
	s.step("a person makes a token that lives three seconds", func() { values = s.token("short", 3*time.Second) })
	s.step("it expires, and everything of it goes", func() { s.expired("short") })
	s.step("an agent comes late and is told why and what to do", func() {
		m = s.installAgent(registration.ClusterName(id), id, values, "--create-namespace")
		s.agentSays(`registration token "short" expired or was revoked; create a new one on the hub`)
	})
	s.step("a request with its name is refused with a reason", func() { s.refused("short") })
	s.step("nothing was registered", func() {
		_, err := m.get(s.Context())
		assert.True(s, apierrors.IsNotFound(err), "%v", err)
	})
	s.step("the person makes another token and upgrades the agent with it", func() {
		s.upgradeAgent("upgrade", id, s.token("another", time.Hour))
	})
	s.step("the agent registers", func() { m.registered() })
}

func (s *scene) expired(token string) {
	s.Helper()
	s.until("the token and its Secret to be gone", func(ctx context.Context) (bool, string) {
		_, errToken := s.hub.fleet.ClusterRegistrationTokens(s.id).Get(ctx, token, metav1.GetOptions{})
		_, errSecret := s.hub.kube.CoreV1().Secrets(s.id).Get(ctx, token, metav1.GetOptions{})
		return apierrors.IsNotFound(errToken) && apierrors.IsNotFound(errSecret), fmt.Sprintf("token: %v, Secret: %v", errToken, errSecret)
	})
}

// agentSays waits until the log of the agent that the chart installed contains a text.
func (s *scene) agentSays(what string) {
	s.Helper()
	s.until("the agent to log: "+what, func(ctx context.Context) (bool, string) {
		pods, err := s.member.pods(ctx, systemNamespace, agentPods)
		if err != nil || len(pods) == 0 {
			return seen(err, false, "there is no pod yet")
		}
		log, err := s.member.kube.CoreV1().Pods(systemNamespace).GetLogs(pods[0].Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		said := strings.ReplaceAll(string(log), `\"`, `"`)
		return seen(err, strings.Contains(said, what), said)
	})
}

// refused creates a request with a token that expires before the hub processes it, and waits for the reason.
func (s *scene) refused(token string) {
	s.Helper()
	requests := s.hub.fleet.ClusterRegistrations(s.id)
	request, err := requests.Create(s.Context(), &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "request-", Labels: map[string]string{fleet.RegistrationTokenLabel: token}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: s.named("refused"), ClientRandom: s.id},
	}, metav1.CreateOptions{})
	s.fail(err)
	s.until("the request to be refused", func(ctx context.Context) (bool, string) {
		latest, err := requests.Get(ctx, request.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		answer := describe(latest.Status.Conditions, fleet.ConditionGranted)
		return strings.HasPrefix(answer, "False TokenNotFound"), answer
	})
}
