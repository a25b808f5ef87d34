package deploy_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// stalledReport is the last report of why nothing is deployed.
type stalledReport struct{ text atomic.Pointer[string] }

func (r *stalledReport) receive(c *deploy.Config) {
	c.ReportStalled = func(text string) { r.text.Store(&text) }
	c.Timing.Stalled = time.Millisecond
}

func (r *stalledReport) eventually(t *testing.T, parts ...string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		text := r.text.Load()
		if text == nil {
			return false, "nothing is reported"
		}
		for _, part := range parts {
			if !strings.Contains(*text, part) {
				return false, "reported: " + *text
			}
		}
		return len(parts) > 0 || *text == "", "reported: " + *text
	})
}

func TestRun_historyKeyUnusable(t *testing.T) {
	s := onStage(t)
	secrets := s.Kubernetes.CoreV1().Secrets(s.agent)
	_, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: registration.HistoryKeySecret}}, metav1.CreateOptions{})
	require.NoError(t, err)
	report := &stalledReport{}
	stop := s.run(report.receive)
	s.put("app", configMap("app", "one"))
	report.eventually(t, "reading the history key on the member", "has no key of 32 bytes: restore the Secret, or delete it")
	require.NoError(t, secrets.Delete(t.Context(), registration.HistoryKeySecret, metav1.DeleteOptions{}))
	s.state("app", fleet.Ready)
	report.eventually(t)
	require.NoError(t, stop())
}

func TestRun_releasesNotListable(t *testing.T) {
	s := onStage(t)
	stop := s.run() // creates the history key, for which it lists the releases
	s.put("first", configMap("first", "one"))
	s.state("first", fleet.Ready)
	require.NoError(t, stop())
	refuse := answer(http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"secrets is forbidden"}`)
	s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodGet && req.URL.Path == "/api/v1/secrets" {
			return refuse(req)
		}
		return send()
	})
	report := &stalledReport{}
	stop = s.run(report.receive)
	s.put("app", configMap("app", "one"))
	report.eventually(t, "listing the Secrets of Helm releases on the member", "secrets is forbidden")
	s.member.Inject(nil)
	s.state("app", fleet.Ready)
	report.eventually(t)
	require.NoError(t, stop())
}
