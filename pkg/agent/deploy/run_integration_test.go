package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

func TestRun(t *testing.T) {
	s := onStage(t)
	s.run(func(c *deploy.Config) { c.Scope = "blue" })
	s.put("app", configMap("a", "one")+configMap("b", "one"))
	bd := s.state("app", fleet.Ready)
	assert.Equal(t, s.target+"/app:1", bd.Status.Release)
	assert.Equal(t, fleet.ResourceCounts{Ready: 2, DesiredReady: 2}, bd.Status.ResourceCounts)
	assert.Len(t, bd.Status.Resources, 2)
	assert.Equal(t, fleet.BundleDeploymentDisplay{Deployed: "True", Monitored: "True", State: "Ready"}, bd.Status.Display)
	a, err := s.configMap("a")
	require.NoError(t, err)
	assert.Equal(t, "default-app-blue", a.Annotations["objectset.rio.cattle.io/id"])
	s.put("app", configMap("a", "two"))
	s.state("app", fleet.Ready)
	s.value("a", "two")
	s.gone("b")
	s.remove("app")
	s.gone("a")
}

func TestRun_requestsOfADeployment(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("first", configMap("first", "one"))
	s.state("first", fleet.Ready)
	s.still()
	hub, member := len(s.hubWire.Requests("")), len(s.member.Requests(""))
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	install := [2]int{len(s.hubWire.Requests("")) - hub, len(s.member.Requests("")) - member}
	s.still()
	hub, member = len(s.hubWire.Requests("")), len(s.member.Requests(""))
	s.put("app", configMap("a", "two"))
	s.state("app", fleet.Ready)
	upgrade := [2]int{len(s.hubWire.Requests("")) - hub, len(s.member.Requests("")) - member}
	t.Logf("installing one object: %d requests to the hub, %d to the member; upgrading it: %d and %d", install[0], install[1], upgrade[0], upgrade[1])
	for _, line := range s.member.Requests("")[member:] {
		t.Log(line)
	}
	assert.LessOrEqual(t, install[0], 3)
	assert.LessOrEqual(t, install[1], 15)
	assert.LessOrEqual(t, upgrade[0], 3)
	assert.LessOrEqual(t, upgrade[1], 20)
}

func TestRun_idle(t *testing.T) {
	sample.Long(t)
	s := onStage(t)
	s.run()
	const count = 20
	for n := range count {
		s.put(fmt.Sprint("app-", n), configMap(fmt.Sprint("a-", n), "one"))
	}
	for n := range count {
		s.state(fmt.Sprint("app-", n), fleet.Ready)
	}
	s.still()
	hub, member := s.hubWire.Requests(""), s.member.Requests("")
	s.still() // longer than the pauses of this agent
	assert.Equal(t, hub, s.hubWire.Requests(""), "the idle agent asks the hub for nothing")
	assert.Equal(t, member, s.member.Requests(""), "and the member neither")
}

func TestRun_removedWhileStopped(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	long := strings.Repeat("long-", 15) + "app"
	s.put("app", configMap("a", "one"))
	s.put(long, configMap("l", "one"))
	s.put("kept", configMap("b", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.KeepResources = true })
	s.put(s.ownBundle(), configMap("agent", "one"))
	for _, name := range []string{"app", long, "kept", s.ownBundle()} {
		s.state(name, fleet.Ready)
	}
	require.NoError(t, stop())
	for _, name := range []string{"app", long, "kept"} {
		s.remove(name)
	}
	s.run()
	s.gone("a")
	s.gone("l")
	testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 1, "a history is still there" })
	for _, name := range []string{"b", "agent"} {
		_, err := s.configMap(name)
		require.NoError(t, err, "%s stays", name)
	}
}

// The hub changes the comparePatches without another deployment ID.
func TestRun_changedComparePatches(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	s.change("theirs")
	s.state("app", fleet.Modified)
	tolerate := &fleet.DiffOptions{ComparePatches: []fleet.ComparePatch{{APIVersion: "v1", Kind: "ConfigMap", JSONPointers: []string{"/data"}}}}
	s.update("app", func(bd *fleet.BundleDeployment) { bd.Spec.Options.Diff = tolerate })
	s.state("app", fleet.Ready)
	s.update("app", func(bd *fleet.BundleDeployment) { bd.Spec.Options.Diff = nil })
	s.state("app", fleet.Modified)

	// A correction does not undo what the same change tolerates.
	s.update("app", func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.Diff, bd.Spec.CorrectDrift = tolerate, &fleet.CorrectDrift{Enabled: true}
	})
	s.state("app", fleet.Ready)
	s.still()
	s.value("a", "theirs")
	assert.Equal(t, s.target+"/app:1", s.get("app").Status.Release)
}

func TestRun_clusterDeletedOnHub(t *testing.T) {
	sample.Long(t)
	s := onStage(t)
	kept := &keptReleases{}
	s.run(func(c *deploy.Config) {
		c.Timing.RemovalDelay, c.Timing.RemovalRecheck = 3*time.Second, 200*time.Millisecond
	}, kept.receive)
	s.put("app", configMap("a", "one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	s.state("app", fleet.Ready)
	s.state(s.ownBundle(), fleet.Ready)
	s.removeAll()
	s.asksAgain("app")
	_, err := s.configMap("a")
	require.NoError(t, err)
	assert.Len(t, s.releases(), 2, "nor is the history removed")
	assert.Empty(t, s.member.Requests("DELETE"))

	// The hub creates the BundleDeployments anew, that of the agent first: whether the others follow is not known.
	s.put(s.ownBundle(), configMap("agent", "one"))
	kept.require(t, s.target+"/app")
	s.value("a", "one")
	s.put("app", configMap("a", "one"))
	kept.require(t)
	s.state("app", fleet.Ready)
	s.remove("app")
	s.gone("a")
}

// Fleet's own hub deletes the BundleDeployments, the namespace and the credential of a Cluster within 0.2 s.
func TestRun_clusterDeletedWithItsCredential(t *testing.T) {
	s := onStage(t)
	log, entries := logtest.NewNullLogger()
	s.run(func(c *deploy.Config) { c.Log = log; c.Timing.RemovalRecheck = 20 * time.Millisecond })
	s.put("app", configMap("a", "one"))
	s.put("other", configMap("b", "one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	for _, name := range []string{"app", "other", s.ownBundle()} {
		s.state(name, fleet.Ready)
	}
	s.hubWire.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if !strings.Contains(req.URL.Path, "/bundledeployments/") {
			return send()
		}
		return answer(http.StatusUnauthorized, unauthorized)(req)
	})
	s.removeAll()
	s.asksAgain("app")
	for _, name := range []string{"a", "b", "agent"} {
		_, err := s.configMap(name)
		require.NoError(t, err, "%s stays", name)
	}
	var said []string
	for _, entry := range entries.AllEntries() {
		if entry.Level <= logrus.WarnLevel {
			said = append(said, entry.Message)
		}
	}
	// Until the last deletion arrives, the agent only knows that the hub does not confirm the first ones.
	const kept = "What was deployed stays on this cluster"
	at := slices.IndexFunc(said, func(message string) bool { return strings.Contains(message, kept) })
	require.Equal(t, len(said)-1, at, "said once, and nothing after it: %q", said)
}

func TestRun_ownBundleDeploymentDeleted(t *testing.T) {
	sample.Long(t)
	deleted := func(t *testing.T, change func(*fleet.BundleDeployment), configure ...func(*deploy.Config)) (s *stage, stop func() error) {
		s = onStage(t)
		stop = s.run(configure...)
		s.put("app", configMap("a", "one"))
		s.put("other", configMap("b", "one"))
		s.put(s.ownBundle(), configMap("agent", "one"), change)
		for _, name := range []string{"app", "other", s.ownBundle()} {
			s.state(name, fleet.Ready)
		}
		s.remove(s.ownBundle())
		s.remove("app")
		return s, stop
	}
	const goneAnnotation = "muster.fleet.cattle.io/hub-agent-gone-since"
	recorded := func(s *stage) string {
		secret, err := s.Kubernetes.CoreV1().Secrets(s.agent).Get(s.t.Context(), registration.HistoryKeySecret, metav1.GetOptions{})
		require.NoError(s.t, err)
		return secret.Annotations[goneAnnotation]
	}
	t.Run("the hub no longer manages the agent", func(t *testing.T) {
		s, _ := deleted(t, func(bd *fleet.BundleDeployment) {
			bd.Annotations = map[string]string{fleet.UnmanagedAnnotation: "true"}
		})
		s.gone("a")
		for _, name := range []string{"b", "agent"} {
			_, err := s.configMap(name)
			require.NoError(t, err, "%s stays", name)
		}
	})
	t.Run("the hub has not said so", func(t *testing.T) {
		s, _ := deleted(t, func(*fleet.BundleDeployment) {})
		s.asksAgain("app") // RemovalRecheck has passed more than once
		s.asksAgain(s.ownBundle())
		for _, name := range []string{"a", "b", "agent"} {
			_, err := s.configMap(name)
			require.NoError(t, err, "%s stays", name)
		}
		assert.Len(t, s.releases(), 3, "nor is the history removed")

		s.put(s.ownBundle(), configMap("agent", "one"))
		testenv.Eventually(t, func() (bool, string) { return recorded(s) == "", "the record is still there" })
	})
	t.Run("gone with all others", func(t *testing.T) {
		s, stop := deleted(t, func(*fleet.BundleDeployment) {})
		s.remove("other")
		testenv.Eventually(t, func() (bool, string) { return recorded(s) == "", "the record is still there" })
		s.asksAgain(s.ownBundle())
		assert.Empty(t, recorded(s), "only the time counts in which others exist")
		require.NoError(t, stop())
	})
	for name, row := range map[string]struct {
		unmanaged bool
		passed    time.Duration // until the restart
	}{
		"restarted after the hub has said that it no longer manages the agent": {true, 0},
		"restarted after RemovalAlone has passed":                              {false, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			s, stop := deleted(t, func(bd *fleet.BundleDeployment) {
				if row.unmanaged {
					bd.Annotations = map[string]string{fleet.UnmanagedAnnotation: "true"}
				}
			}, func(c *deploy.Config) { c.Timing.RemovalRecheck = time.Hour })
			testenv.Eventually(t, func() (bool, string) { return recorded(s) != "", "nothing is recorded" })
			require.NoError(t, stop())
			since, err := time.Parse(time.RFC3339, recorded(s))
			require.NoError(t, err)
			patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, goneAnnotation, since.Add(-row.passed).Format(time.RFC3339))
			_, err = s.Kubernetes.CoreV1().Secrets(s.agent).Patch(t.Context(), registration.HistoryKeySecret, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			require.NoError(t, err)
			s.run()
			s.gone("a")
			_, err = s.configMap("b")
			require.NoError(t, err, "what the hub has stays")
		})
	}
}

const unauthorized = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`

// answer responds in place of an API server.
func answer(status int, body string) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: req,
		}, nil
	}
}

// notFound is how a proxy looks that has lost its way to the API server.
const notFound = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`

// answerAsks answers the agent's questions whether app is gone in place of the hub.
func (s *stage) answerAsks(reply func(*http.Request) (*http.Response, error)) {
	s.hubWire.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/bundledeployments/app") {
			return reply(req)
		}
		return send()
	})
}

// asks returns how often the agent has asked the hub whether a BundleDeployment is gone.
func (s *stage) asks(name string) int {
	return len(s.hubWire.Requests("GET /apis/fleet.cattle.io/v1alpha1/namespaces/" + s.hub + "/bundledeployments/" + name))
}

// asksAgain waits until the agent has asked several times more whether a BundleDeployment is gone.
func (s *stage) asksAgain(name string) {
	s.t.Helper()
	before := s.asks(name)
	testenv.Eventually(s.t, func() (bool, string) { return s.asks(name) > before+4, "it does not ask again" })
}

func TestRun_removalNeedsTheHubsAnswer(t *testing.T) {
	sample.Long(t)
	for name, reply := range map[string]func(*http.Request) (*http.Response, error){
		"no answer":                func(*http.Request) (*http.Response, error) { return nil, errors.New("away") },
		"an error of the server":   answer(500, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`),
		"a page of a proxy":        answer(404, `<html>not found</html>`),
		"a Status about no object": answer(404, notFound),
		"it is still there":        answer(200, `{"kind":"BundleDeployment","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"name":"app"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			s.run()
			s.put("app", configMap("a", "one"))
			s.state("app", fleet.Ready)
			s.answerAsks(reply)
			s.remove("app")
			s.asksAgain("app")
			_, err := s.configMap("a")
			require.NoError(t, err)
			assert.Empty(t, s.member.Requests("DELETE"))
			s.hubWire.Inject(nil)
			s.gone("a")
		})
	}
}

func TestRun_restart(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	require.NoError(t, stop())
	told, made := len(s.hubWire.Requests("/bundledeployments/app/status")), len(s.member.Requests("POST"))
	s.run()
	s.put("other", configMap("b", "one"))
	s.state("other", fleet.Ready)
	assert.Equal(t, s.target+"/app:1", s.get("app").Status.Release)
	s.still()
	assert.Len(t, s.hubWire.Requests("/bundledeployments/app/status"), told, "the hub knows all of it")
	assert.LessOrEqual(t, len(s.member.Requests("POST"))-made, 2, "all of it for the other one")
}

// fakeList answers lists of BundleDeployments as the hub must never be believed.
func fakeList(status int, body string) testenv.Harm {
	return func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if !strings.HasSuffix(req.URL.Path, "/bundledeployments") {
			return send()
		}
		return answer(status, body)(req)
	}
}

func TestRun_badListRemovesNothing(t *testing.T) {
	for name, harm := range map[string]testenv.Harm{
		"an error of the server": fakeList(500, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`),
		"a list of nobody":       fakeList(200, `{"kind":"BundleDeploymentList","apiVersion":"fleet.cattle.io/v1alpha1","items":[]}`),
		"no answer": func(*http.Request, func() (*http.Response, error)) (*http.Response, error) {
			return nil, errors.New("away")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			stop := s.run()
			s.put("app", configMap("a", "one"))
			s.state("app", fleet.Ready)
			require.NoError(t, stop())
			s.hubWire.Inject(harm)
			before := len(s.hubWire.Requests("bundledeployments"))
			stop = s.run()
			testenv.Eventually(t, func() (bool, string) {
				return len(s.hubWire.Requests("bundledeployments")) > before+1, "it does not ask"
			})
			require.NoError(t, stop())
			_, err := s.configMap("a")
			require.NoError(t, err)
		})
	}
}

func TestRun_drift(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	s.change("theirs")
	bd := s.state("app", fleet.Modified)
	assert.JSONEq(t, `{"data":{"k":"one"}}`, bd.Status.ModifiedStatus[0].Patch)
	s.condition("app", fleet.ConditionReady, "False Error: configmap.v1 "+s.target+"/a modified")
	s.change("one")
	s.state("app", fleet.Ready)

	require.NoError(t, s.Kubernetes.CoreV1().ConfigMaps(s.target).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	bd = s.state("app", fleet.Modified)
	assert.True(t, bd.Status.ModifiedStatus[0].Create)
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true} })
	s.state("app", fleet.Ready)
	for range 3 {
		s.change("theirs")
		s.value("a", "one")
	}
	s.state("app", fleet.Ready)
}

// The agent does not watch an object without Helm's label. It is modified, and as ready as before, so that it stops no rollout.
func TestRun_lostLabel(t *testing.T) {
	s := onStage(t)
	s.run()
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}\n"
	s.put("app", configMap("a", "one")+service)
	s.state("app", fleet.Ready)
	unlabel := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, release.ManagedByLabel)
	_, err := s.Kubernetes.CoreV1().ConfigMaps(s.target).Patch(t.Context(), "a", types.MergePatchType, unlabel, metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = s.Kubernetes.CoreV1().Services(s.target).Patch(t.Context(), "s", types.MergePatchType, unlabel, metav1.PatchOptions{})
	require.NoError(t, err)
	testenv.Eventually(t, func() (bool, string) {
		status := s.get("app").Status
		return len(status.ModifiedStatus) == 2 && status.Display.State == string(fleet.Modified), fmt.Sprintf("%+v", status)
	})
	bd := s.get("app")
	assert.True(t, bd.Status.Ready)
	assert.Equal(t, fleet.ResourceCounts{DesiredReady: 2, Modified: 2}, bd.Status.ResourceCounts)
	for _, r := range bd.Status.Resources {
		assert.False(t, r.CreatedAt.IsZero(), r.Name)
	}
}

// Fleet's hub changes the correctDrift in the options only with the deployment ID.
func TestRun_correctDriftTurnedOff(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) {
		bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true}
		bd.Spec.Options.CorrectDrift = bd.Spec.CorrectDrift
	})
	s.state("app", fleet.Ready)
	s.change("theirs")
	s.value("a", "one")
	s.state("app", fleet.Ready)
	for _, off := range []*fleet.CorrectDrift{{Force: true}, nil} {
		require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the agent writes the status meanwhile
			bd := s.get("app")
			bd.Spec.CorrectDrift = off
			_, err := s.Fleet.BundleDeployments(s.hub).Update(t.Context(), bd, metav1.UpdateOptions{})
			return err
		}))
		s.change("theirs")
		s.state("app", fleet.Modified)
		s.still()
		s.value("a", "theirs")
		s.change("one")
		s.state("app", fleet.Ready)
	}
}

func TestRun_changedCompareInterval(t *testing.T) {
	s := onStage(t)
	changed := make(chan time.Duration, 1)
	s.run(func(c *deploy.Config) { c.CompareInterval, c.CompareIntervalChanged = time.Hour, changed })
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	s.still()
	compare := "PATCH /api/v1/namespaces/" + s.target + "/configmaps/a"
	compared := len(s.member.Requests(compare))
	changed <- 50 * time.Millisecond
	testenv.Eventually(t, func() (bool, string) {
		return len(s.member.Requests(compare)) > compared+1, "the objects are not compared again"
	})
}

// change sets a key of ConfigMap a as a person does.
func (s *stage) change(value string) {
	s.t.Helper()
	_, err := s.Kubernetes.CoreV1().ConfigMaps(s.target).Patch(s.t.Context(), "a", types.MergePatchType,
		[]byte(`{"data":{"k":"`+value+`"}}`), metav1.PatchOptions{FieldManager: "person"})
	require.NoError(s.t, err)
}

func TestRun_failedCorrection(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true} })
	s.state("app", fleet.Ready)
	s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodPatch && !strings.Contains(req.URL.RawQuery, "dryRun") {
			return nil, errors.New("not today")
		}
		return send()
	})
	s.change("theirs")
	s.condition("app", fleet.ConditionMonitored, "False Error: ")
	assert.Contains(t, testenv.Condition(s.get("app").Status.Conditions, fleet.ConditionReady), "not today")
	assert.Equal(t, s.target+"/app:1", s.get("app").Status.Release)
	s.change("one")
	s.condition("app", fleet.ConditionMonitored, "True")
	s.state("app", fleet.Ready)
}

func TestRun_correctionWithoutContent(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true} })
	s.state("app", fleet.Ready)
	name, _, _ := strings.Cut(s.get("app").Spec.DeploymentID, ":")
	require.NoError(t, s.Fleet.Contents().Delete(t.Context(), name, metav1.DeleteOptions{}))
	s.change("theirs")
	s.value("a", "one")
	testenv.Eventually(t, func() (bool, string) {
		release := s.get("app").Status.Release
		return release == s.target+"/app:2", "the release is " + release
	})
	s.state("app", fleet.Ready)
}

func TestRun_overwrittenObjectIsCreatedAgain(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one")+configMap("b", "one"), func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.Overwrites = []fleet.OverwrittenResource{{Kind: "ConfigMap", Namespace: s.target, Name: "a"}}
	})
	s.state("app", fleet.Ready)
	remove := func(name string) {
		require.NoError(t, s.Kubernetes.CoreV1().ConfigMaps(s.target).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	remove("b")
	s.state("app", fleet.Modified)
	remove("a")
	s.value("a", "one")
	s.state("app", fleet.Ready)
}

func TestRun_leftovers(t *testing.T) {
	for name, restarts := range map[string]bool{"the agent runs": false, "the agent restarts": true} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			stop := s.run()
			s.put("app", configMap("a", "one"))
			s.state("app", fleet.Ready)
			s.put("app", configMap("a", "two")+configMap("b", "two")+"apiVersion: v1\nkind: Service\nmetadata:\n  name: z\nspec:\n  ports: [{port: 0}]\n")
			s.state("app", fleet.ErrApplied)
			s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
				if req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "/configmaps/b") {
					return nil, errors.New("not today")
				}
				return send()
			})
			s.put("app", configMap("a", "three"))
			s.condition("app", fleet.ConditionMonitored, "False Error: removing what earlier attempts left behind: ")
			deployed := s.get("app").Status.Release
			if restarts {
				require.NoError(t, stop())
			}
			s.member.Inject(nil)
			if restarts {
				s.run()
			}
			s.gone("b")
			s.condition("app", fleet.ConditionMonitored, "True")
			assert.Equal(t, deployed, s.get("app").Status.Release, "nothing is deployed again for it")
		})
	}
}

func TestRun_ownObjectsAreCorrected(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put(s.ownBundle(), configMap("agent", "one"))
	s.state(s.ownBundle(), fleet.Ready)
	_, err := s.Kubernetes.CoreV1().ConfigMaps(s.target).Patch(t.Context(), "agent", types.MergePatchType,
		[]byte(`{"data":{"k":"theirs"}}`), metav1.PatchOptions{FieldManager: "person"})
	require.NoError(t, err)
	s.value("agent", "one")
}

// A user may name a Bundle like that of an agent.
func TestRun_namedLikeAnAgent(t *testing.T) {
	s := onStage(t)
	s.agent = s.Namespace(t)
	s.run(func(c *deploy.Config) { c.Timing.Elsewhere = 50 * time.Millisecond })
	s.put("fleet-agent-tools", configMap("a", "one"))
	s.state("fleet-agent-tools", fleet.Ready)
	s.change("theirs")
	s.state("fleet-agent-tools", fleet.Modified)
	s.remove("fleet-agent-tools")
	s.gone("a")

	s.put(s.ownBundle(), configMap("agent", "one"))
	s.condition(s.ownBundle(), fleet.ConditionDeployed, "False Error: this is the BundleDeployment of the agent, and its defaultNamespace is "+s.target)
	_, err := s.configMap("agent")
	require.True(t, apierrors.IsNotFound(err))
	s.put(s.ownBundle(), configMap("agent", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.DefaultNamespace = s.agent })
	s.state(s.ownBundle(), fleet.Ready)
}

func TestRun_uninstalledByAPerson(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	secrets := s.Kubernetes.CoreV1().Secrets(s.target)
	require.NoError(t, secrets.Delete(t.Context(), "sh.helm.release.v1.app.v1", metav1.DeleteOptions{}))
	testenv.Eventually(t, func() (bool, string) {
		_, err := secrets.Get(context.Background(), "sh.helm.release.v1.app.v1", metav1.GetOptions{})
		return err == nil, "no history"
	})
	s.state("app", fleet.Ready)
}

func TestRun_paused(t *testing.T) {
	for name, set := range map[string]func(*fleet.BundleDeploymentSpec, bool){
		"paused":      func(spec *fleet.BundleDeploymentSpec, on bool) { spec.Paused = on },
		"offSchedule": func(spec *fleet.BundleDeploymentSpec, on bool) { spec.OffSchedule = on },
	} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			s.run()
			s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { set(&bd.Spec, true) })
			s.condition("app", fleet.ConditionDeployed, "Unknown Paused")
			_, err := s.configMap("a")
			require.True(t, apierrors.IsNotFound(err))
			s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { set(&bd.Spec, false) })
			s.state("app", fleet.Ready)
			s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { set(&bd.Spec, true) })
			s.remove("app")
			s.gone("a")
		})
	}
}

func TestRun_pausedWithAReplacedRelease(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodDelete {
			return nil, errors.New("not today")
		}
		return send()
	})
	renamed := func(paused bool) {
		s.put("app", configMap("a", "two"), func(bd *fleet.BundleDeployment) {
			bd.Spec.Options.Helm, bd.Spec.Paused = &fleet.HelmOptions{ReleaseName: "renamed"}, paused
		})
	}
	renamed(false)
	testenv.Eventually(t, func() (bool, string) { return len(s.member.Requests("DELETE")) > 0, "the old release is not removed" })
	require.NoError(t, stop())
	s.member.Inject(nil)
	renamed(true)
	s.run()
	s.put("other", configMap("b", "one"))
	s.state("other", fleet.Ready)
	s.still()
	assert.Len(t, s.releases(), 3, "while it is paused, the old release stays")
	renamed(false)
	testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 2, "the old release is there" })
	s.state("app", fleet.Ready)
	s.value("a", "two")
}

func TestRun_dependsOn(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.DependsOn = []fleet.BundleRef{{Name: "base"}} })
	s.condition("app", fleet.ConditionDeployed, "False Error: list bundledeployments: no bundles matching labels fleet.cattle.io/bundle-name=base")
	s.put("base", configMap("b", "one"))
	s.state("app", fleet.Ready)

	// It stays deployed when the base becomes unready, also when a pass reports something else; a change of it is judged again.
	s.put("base", "apiVersion: nowhere/v1\nkind: Nothing\nmetadata: {name: x}\n")
	s.state("base", fleet.ErrApplied)
	require.NoError(t, s.Kubernetes.CoreV1().ConfigMaps(s.target).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	s.state("app", fleet.Modified)
	s.condition("app", fleet.ConditionDeployed, "True")
	s.put("app", configMap("a", "two"), func(bd *fleet.BundleDeployment) { bd.Spec.DependsOn = []fleet.BundleRef{{Name: "base"}} })
	s.condition("app", fleet.ConditionDeployed, "False Error: dependent bundle(s) are not ready: [base]")
}

func TestRun_failure(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", "apiVersion: nowhere/v1\nkind: Nothing\nmetadata: {name: x}\n")
	s.state("app", fleet.ErrApplied)
	s.condition("app", fleet.ConditionDeployed, "False Error: ")
	version := s.get("app").ResourceVersion
	before := len(s.member.Requests("helm.sh"))
	testenv.Eventually(t, func() (bool, string) { return len(s.member.Requests("secrets")) > before+8, "it does not try again" })
	assert.Equal(t, version, s.get("app").ResourceVersion, "the same failure is written once")
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	s.put("other", configMap("b", "one"), func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.Helm = &fleet.HelmOptions{Repo: "https://charts.example.com", Chart: "x"}
	})
	s.condition("other", fleet.ConditionDeployed, "False Error: helm.repo is not supported")
}

// writeDisplay writes status.display as Fleet's own hub does, after each change of a status, and counts those changes.
func (s *stage) writeDisplay(changes *atomic.Int32) {
	s.t.Helper()
	events, err := s.Fleet.BundleDeployments(s.hub).Watch(s.t.Context(), metav1.ListOptions{})
	require.NoError(s.t, err)
	s.t.Cleanup(events.Stop)
	shown := func(bd *fleet.BundleDeployment, kind string) string {
		for _, c := range bd.Status.Conditions {
			if c.Type == kind && c.Reason == "Error" {
				return "Error: " + c.Message
			} else if c.Type == kind {
				return string(c.Status)
			}
		}
		return ""
	}
	go func() {
		for event := range events.ResultChan() {
			bd, ok := event.Object.(*fleet.BundleDeployment)
			if !ok {
				continue
			}
			changes.Add(1)
			display := fleet.BundleDeploymentDisplay{
				Deployed: shown(bd, "Deployed"), Monitored: shown(bd, "Monitored"), State: string(fleetstatus.BundleState(bd.Spec, bd.Status)),
			}
			if display == bd.Status.Display {
				continue
			}
			patch, _ := json.Marshal(map[string]any{"status": map[string]any{"display": display}})
			_, _ = s.Fleet.BundleDeployments(s.hub).Patch(context.Background(), bd.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		}
	}()
}

// Each write of one side is an event for the other: they have to agree in every state.
func TestRun_anotherWriterOfTheDisplay(t *testing.T) {
	s := onStage(t)
	var changes atomic.Int32
	s.writeDisplay(&changes)
	s.run(func(c *deploy.Config) { c.Timing.RetryMax = time.Minute })
	s.put("ready", configMap("r", "one"))
	s.put("failed", "apiVersion: nowhere/v1\nkind: Nothing\nmetadata: {name: x}\n")
	s.put("paused", configMap("p", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Paused = true })
	s.put("waits", configMap("w", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.DependsOn = []fleet.BundleRef{{Name: "paused"}} })
	s.put("values", configMap("v", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.WaitingForValues = true })
	s.put("unready", agentManifest)
	s.put("modified", configMap("a", "one"))
	s.state("modified", fleet.Ready)
	s.change("theirs")
	for name, want := range map[string]fleet.BundleState{
		"ready": fleet.Ready, "failed": fleet.ErrApplied, "paused": fleet.WaitApplied, "waits": fleet.ErrApplied, "values": fleet.WaitApplied,
		"unready": fleet.NotReady, "modified": fleet.Modified,
	} {
		testenv.Eventually(t, func() (bool, string) {
			got := s.get(name).Status.Display.State
			return got == string(want), name + " is " + got
		})
	}
	s.still()
	before := changes.Load()
	s.still()
	assert.Equal(t, before, changes.Load(), "nobody writes")
	assert.Less(t, before, int32(60))
}

func TestRun_customResourcesSurvive(t *testing.T) {
	s := onStage(t)
	s.run()
	group := s.target + ".example.com"
	definition := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: widgets." + group + "}\n" +
		"spec:\n  group: " + group + "\n  scope: Namespaced\n  names: {plural: widgets, singular: widget, kind: Widget}\n" +
		"  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n"
	s.put("app", definition)
	s.state("app", fleet.Ready)
	path := "/apis/" + group + "/v1/namespaces/" + s.target + "/widgets"
	client := s.Kubernetes.Discovery().RESTClient()
	testenv.Eventually(t, func() (bool, string) {
		err := client.Post().AbsPath(path).Body([]byte(`{"apiVersion":"` + group + `/v1","kind":"Widget","metadata":{"name":"w"}}`)).Do(t.Context()).Error()
		return err == nil || apierrors.IsAlreadyExists(err), fmt.Sprint(err)
	})
	s.remove("app")
	testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 0, "the release is there" })
	s.put("app", definition)
	s.state("app", fleet.Ready)
	require.NoError(t, client.Get().AbsPath(path, "w").Do(t.Context()).Error(), "the custom resource is still there")
}

func TestRun_uninstall(t *testing.T) {
	s := onStage(t)
	ended := s.ends()
	s.put("app", configMap("a", "one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	s.state("app", fleet.Ready)
	s.state(s.ownBundle(), fleet.Ready)
	s.put(s.ownBundle(), configMap("agent", "one"), func(bd *fleet.BundleDeployment) {
		bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true"}
	})
	s.gone("a")
	s.condition(s.ownBundle(), fleet.ConditionFarewell, "True Farewell")
	require.ErrorIs(t, ended(), deploy.ErrUninstall)
	assert.Empty(t, s.releases())
	_, err := s.configMap("agent")
	require.NoError(t, err)

	require.ErrorIs(t, s.ends()(), deploy.ErrUninstall, "asked again it leaves again")
	assert.Empty(t, s.releases(), "nothing is deployed any more")
}

// A release without a BundleDeployment has nothing else that says that its objects stay.
func TestRun_uninstallKeepingWorkloads(t *testing.T) {
	s := onStage(t)
	ended := s.ends()
	s.put("app", configMap("a", "one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	s.state("app", fleet.Ready)
	s.state(s.ownBundle(), fleet.Ready)
	s.put(s.ownBundle(), configMap("agent", "one"), func(bd *fleet.BundleDeployment) {
		bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true", fleet.KeepWorkloadsAnnotation: fleet.KeepWorkloadsValue}
	})
	require.ErrorIs(t, ended(), deploy.ErrUninstall)
	s.condition(s.ownBundle(), fleet.ConditionFarewell, "True Farewell")
	assert.Empty(t, s.releases())
	s.value("a", "one")
}

func TestRun_uninstallFails(t *testing.T) {
	s := onStage(t)
	ended := s.ends()
	s.put("app", configMap("a", "one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	s.state("app", fleet.Ready)
	s.state(s.ownBundle(), fleet.Ready)
	s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodDelete {
			return nil, errors.New("not today")
		}
		return send()
	})
	s.put(s.ownBundle(), configMap("agent", "one"), func(bd *fleet.BundleDeployment) {
		bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true"}
	})
	s.condition(s.ownBundle(), fleet.ConditionFarewell, "False FarewellFailed: ")
	assert.Contains(t, testenv.Condition(s.get(s.ownBundle()).Status.Conditions, fleet.ConditionFarewell), "not today")
	s.member.Inject(nil)
	s.condition(s.ownBundle(), fleet.ConditionFarewell, "True Farewell")
	require.ErrorIs(t, ended(), deploy.ErrUninstall)
}

func TestRun_uninstallIsNotedOnce(t *testing.T) {
	s := onStage(t)
	s.put(s.ownBundle(), configMap("agent", "one"), func(bd *fleet.BundleDeployment) {
		bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true"}
	})
	var noted, failed atomic.Int32
	s.hubWire.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodPatch && failed.Add(1) < 4 {
			return nil, errors.New("away")
		}
		return send()
	})
	ended := s.ends(func(c *deploy.Config) {
		c.BeginUninstall = func(context.Context) error {
			if noted.Add(1) == 1 {
				return errors.New("not yet")
			}
			return nil
		}
	})
	require.ErrorIs(t, ended(), deploy.ErrUninstall)
	assert.EqualValues(t, 2, noted.Load(), "until it has worked")
	assert.EqualValues(t, 4, failed.Load())
}

func TestRun_uninstallWhileWorkersAreBusy(t *testing.T) {
	s := onStage(t)
	s.put(s.ownBundle(), configMap("agent", "one"))
	var busy sync.Once
	stuck := make(chan struct{})
	s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodGet || !strings.Contains(req.URL.Path, "/configmaps") || !strings.Contains(req.URL.Path, s.target) {
			return send()
		}
		busy.Do(func() { close(stuck) })
		<-req.Context().Done()
		return nil, req.Context().Err()
	})
	ended := s.ends(func(c *deploy.Config) { c.Workers = 1 })
	<-stuck
	s.put(s.ownBundle(), configMap("agent", "one"), func(bd *fleet.BundleDeployment) {
		bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true"}
	})
	s.condition(s.ownBundle(), fleet.ConditionFarewell, "True Farewell")
	require.ErrorIs(t, ended(), deploy.ErrUninstall)
	assert.Empty(t, s.releases())
}

func TestRun_watchesAreLimited(t *testing.T) {
	s := onStage(t)
	var limited, unlimited atomic.Int32
	count := func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if strings.Contains(req.URL.RawQuery, "watch=") {
			if _, has := req.Context().Deadline(); has {
				limited.Add(1)
			} else {
				unlimited.Add(1)
			}
		}
		return send()
	}
	s.hubWire.Inject(count)
	s.member.Inject(count)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	assert.GreaterOrEqual(t, limited.Load(), int32(3), "of BundleDeployments, of releases, of what is deployed")
	assert.Zero(t, unlimited.Load())
}

func TestRun_credentialRefused(t *testing.T) {
	s := onStage(t)
	refused := errors.New("refused for certain")
	s.hubWire.Inject(fakeList(401, unauthorized))
	c := s.config()
	c.CheckRejection = func(err error) error {
		if apierrors.IsUnauthorized(err) {
			return refused
		}
		return nil
	}
	require.ErrorIs(t, deploy.Run(t.Context(), c), refused)
}

var errKilled = errors.New("killed")

// killAfter lets n-1 writes pass, on both sides together, and nothing after them.
func (s *stage) killAfter(n int) (dead <-chan struct{}) {
	var mu sync.Mutex
	died := make(chan struct{})
	left := n - 1
	harm := func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		mu.Lock()
		if left < 0 {
			mu.Unlock()
			return nil, errKilled
		}
		if req.Method != http.MethodGet && !strings.Contains(req.URL.RawQuery, "dryRun") {
			if left--; left < 0 {
				close(died)
			}
		}
		kill := left < 0
		mu.Unlock()
		if kill {
			return nil, errKilled
		}
		return send()
	}
	s.member.Inject(harm)
	s.hubWire.Inject(harm)
	return died
}

const agentManifest = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: fleet-agent
spec:
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec: {containers: [{name: c, image: i, env: [{name: GENERATION, value: managed/0}]}]}
---
`

func TestRun_killedAtAnyWrite(t *testing.T) {
	for n := range sample.Numbers(t, 4) {
		s := onStage(t)
		dead := s.killAfter(n)
		s.put(s.ownBundle(), agentManifest+configMap("agent", "one"))
		stop := s.run(func(c *deploy.Config) { c.Timing.Grace = 1 })
		over := false
		testenv.Eventually(t, func() (bool, string) {
			select {
			case <-dead:
				return true, ""
			default:
			}
			bd := s.get(s.ownBundle())
			over = bd.Status.AppliedDeploymentID == bd.Spec.DeploymentID && bd.Status.Display.State != ""
			return over, "neither killed nor done"
		})
		require.NoError(t, stop())
		s.member.Inject(nil)
		s.hubWire.Inject(nil)
		again := s.run()
		s.condition(s.ownBundle(), fleet.ConditionDeployed, "True")
		s.value("agent", "one")
		deployment, err := s.Kubernetes.AppsV1().Deployments(s.target).Get(t.Context(), "fleet-agent", metav1.GetOptions{})
		require.NoError(t, err)
		assert.EqualValues(t, 1, deployment.Generation, "rolled once, killed at write %d", n)
		require.NoError(t, again())
		if over {
			require.Greater(t, n, 4, "the scenario must need more writes")
			return
		}
	}
}

// unlabel makes a release look as Fleet's own agent leaves it: it labels no revision, but annotates its charts as this agent does.
func (s *stage) unlabel(name string) {
	s.t.Helper()
	secrets := s.Kubernetes.CoreV1().Secrets(s.target)
	list, err := secrets.List(context.Background(), metav1.ListOptions{LabelSelector: "owner=helm,name=" + name})
	require.NoError(s.t, err)
	require.NotEmpty(s.t, list.Items)
	for i := range list.Items {
		secret := &list.Items[i]
		maps.DeleteFunc(secret.Labels, func(key, _ string) bool { return strings.HasPrefix(key, "muster.") })
		_, err := secrets.Update(context.Background(), secret, metav1.UpdateOptions{})
		require.NoError(s.t, err)
	}
}

// Fleet's own agent was replaced by this one.
func TestRun_releaseOfAnotherAgent(t *testing.T) {
	sample.Long(t)
	s := onStage(t)
	log, entries := logtest.NewNullLogger()
	stop := s.run()
	names := []string{"same", "paused", "failed", "moved", "deleted", "kept"}
	for _, name := range names {
		s.put(name, configMap(name, "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.KeepResources = name == "kept" })
		s.state(name, fleet.Ready)
	}
	require.NoError(t, stop())
	for _, name := range names {
		s.unlabel(name)
	}
	s.forgetHistoryKey() // an agent that sets no labels has none
	pause := func(bd *fleet.BundleDeployment) { bd.Spec.Paused = true }
	s.put("paused", configMap("paused", "one"), pause)
	s.put("kept", configMap("kept", "two"), pause)
	_, err := s.Fleet.BundleDeployments(s.hub).Patch(t.Context(), "failed", types.MergePatchType, []byte(`{"status":{"release":null}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	s.put("moved", configMap("moved", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "renamed"} })
	s.remove("deleted")

	told := len(s.hubWire.Requests("/bundledeployments/same/status"))
	s.run(func(c *deploy.Config) { c.Log = log })
	testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 5, "not all are adopted" })
	testenv.Eventually(t, func() (bool, string) {
		at := s.get("failed").Status.Release
		return at == s.target+"/failed:2", "the release is " + at
	})
	testenv.Eventually(t, func() (bool, string) {
		at := s.get("moved").Status.Release
		return at == s.target+"/renamed:1", "the release is " + at
	})
	s.still()
	for _, name := range []string{"same", "paused"} {
		assert.Equal(t, s.target+"/"+name+":1", s.get(name).Status.Release)
		assert.Equal(t, s.get(name).Spec.DeploymentID, s.get(name).Status.AppliedDeploymentID)
	}
	assert.Len(t, s.hubWire.Requests("/bundledeployments/same/status"), told, "the hub knows all of it")
	_, err = s.configMap("moved")
	require.NoError(t, err, "the renamed release has it")

	// Nobody can tell whether a BundleDeployment that this agent never saw was deleted, or was that of another hub.
	_, err = s.configMap("deleted")
	require.NoError(t, err, "it stays")
	warnings := 0
	for _, entry := range entries.AllEntries() {
		if strings.Contains(entry.Message, "helm uninstall --namespace "+s.target+" deleted") {
			warnings++
		}
	}
	assert.Equal(t, 1, warnings)

	// What this agent saw is removed, although it never deployed it.
	s.remove("paused")
	s.gone("paused")
	s.remove("kept")
	testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 3, "the histories are still there" })
	_, err = s.configMap("kept")
	require.NoError(t, err)
}

// A user who may write Secrets in one namespace of the member writes the history of a release, with the labels of the agent.
func TestRun_forgedRelease(t *testing.T) {
	hook := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", annotations: {helm.sh/hook: pre-delete}}\n"
	}
	for name, before := range map[string]bool{"while the agent runs": false, "while it is stopped": true} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			stop := s.run()
			s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true} })
			s.state("app", fleet.Ready)
			if before {
				require.NoError(t, stop())
			}
			forger, err := release.New(s.RESTConfig())
			require.NoError(t, err)
			owner := release.Owner{Namespace: s.agent, Workspace: "fleet-default", ClusterName: s.cluster}
			for deployment, name := range map[string]string{"forged": "forged", "app": "renamed"} {
				_, err = forger.Deploy(t.Context(), release.Request{
					Namespace: s.target, Name: name, BundleDeployment: deployment, Labels: owner.LabelsFor(deployment, "one"), ServiceAccountNamespace: s.agent,
					Resources: []fleet.BundleResource{
						{Name: "Chart.yaml", Content: "apiVersion: v2\nname: forged\nversion: 1.0.0\n"},
						{Name: "templates/all.yaml", Content: hook("run-as-agent") + "---\n" + configMap(name, "one")},
					},
				})
				require.NoError(t, err)
			}
			if before {
				s.run()
			}
			s.gone("forged")
			testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 1, "the forged release is still there" })
			_, err = s.configMap("run-as-agent")
			require.True(t, apierrors.IsNotFound(err), "no hook runs with the rights of the agent")
			assert.True(t, strings.HasSuffix(s.get("app").Status.Release, ":1"), "nothing is deployed again because of a forged release under another name")

			// Drift is corrected to what the hub has, and not to a history that somebody changed.
			secrets := s.Kubernetes.CoreV1().Secrets(s.target)
			list, err := secrets.List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
			require.NoError(t, err)
			for i := range list.Items {
				list.Items[i].Annotations = nil
				_, err := secrets.Update(t.Context(), &list.Items[i], metav1.UpdateOptions{})
				require.NoError(t, err)
			}
			s.change("theirs")
			s.value("a", "one")
			s.remove("app")
			s.gone("a")
		})
	}
}

// Two BundleDeployments share a release: the second adopts it with a ServiceAccount that may only write in its namespace, and brings a
// hook that an upgrade does not run.
func TestRun_releaseTakenOver(t *testing.T) {
	s := onStage(t)
	s.tenant("tenant")
	s.run(func(c *deploy.Config) { c.CompareInterval = 50 * time.Millisecond })
	shared := func(takesOwnership bool) *fleet.HelmOptions {
		return &fleet.HelmOptions{ReleaseName: "shared", TakeOwnership: takesOwnership}
	}
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) {
		bd.Spec.CorrectDrift, bd.Spec.Options.Helm = &fleet.CorrectDrift{Enabled: true}, shared(false)
	})
	s.state("app", fleet.Ready)

	hook := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: run-as-agent, namespace: " + s.hub + ", annotations: {helm.sh/hook: pre-rollback}}\n"
	s.putFiles("other", []fleet.BundleResource{
		{Name: "Chart.yaml", Content: "apiVersion: v2\nname: other\nversion: 1.0.0\n"},
		{Name: "templates/all.yaml", Content: hook + "---\n" + configMap("a", "two")},
	}, func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.ServiceAccount, bd.Spec.Options.Helm = "tenant", shared(true)
	})
	s.state("other", fleet.Ready)
	s.condition("app", fleet.ConditionDeployed, "False Error: Helm release "+s.target+"/shared exists and belongs to BundleDeployment other")
	_, err := s.Kubernetes.CoreV1().ConfigMaps(s.hub).Get(t.Context(), "run-as-agent", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "no hook of the tenant runs with the rights of the agent")
	assert.Equal(t, s.target+"/shared:2", s.get("other").Status.Release)
	s.value("a", "two")
}

// A BundleDeployment whose release belongs to another one must not get the events of its objects.
func TestRun_conflictLeavesTheEvents(t *testing.T) {
	s := onStage(t)
	s.run()
	shared := func(bd *fleet.BundleDeployment) { bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "shared"} }
	s.put("app", configMap("a", "one"), shared)
	s.state("app", fleet.Ready)
	s.put("other", configMap("b", "one"), shared)
	s.state("other", fleet.ErrApplied)
	s.change("theirs")
	s.state("app", fleet.Modified)
	s.remove("other")
	s.still()
	s.change("one")
	s.state("app", fleet.Ready)
}

// A Bundle is renamed, and both BundleDeployments have the same release name.
func TestRun_conflictEnds(t *testing.T) {
	for name, end := range map[string]func(*stage){
		"the hub has deleted the other BundleDeployment": func(s *stage) { s.remove("old") },
		"a person has uninstalled the release": func(s *stage) {
			s.update("old", func(bd *fleet.BundleDeployment) { bd.Spec.Paused = true })
			s.still()
			require.NoError(s.t, s.Kubernetes.CoreV1().Secrets(s.target).Delete(context.Background(), "sh.helm.release.v1.shared.v1", metav1.DeleteOptions{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			s.run(func(c *deploy.Config) { c.Timing.RetryMax = time.Hour })
			shared := func(bd *fleet.BundleDeployment) { bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "shared"} }
			s.put("old", configMap("a", "one"), shared)
			s.state("old", fleet.Ready)
			s.put("new", configMap("a", "two"), shared)
			s.condition("new", fleet.ConditionDeployed, "False Error: Helm release "+s.target+"/shared exists and belongs to BundleDeployment old")
			end(s)
			s.state("new", fleet.Ready)
			s.value("a", "two")
		})
	}
}

// A user who may write Secrets in the namespace has the last revision of the other release removed again and again.
func TestRun_conflictSeemsToEnd(t *testing.T) {
	s := onStage(t)
	s.run(func(c *deploy.Config) { c.Timing.RetryFirst, c.Timing.RetryMax = time.Minute, time.Hour })
	shared := func(bd *fleet.BundleDeployment) { bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "shared"} }
	s.put("old", configMap("a", "one"), shared)
	s.state("old", fleet.Ready)
	s.put("new", configMap("a", "two"), shared)
	s.condition("new", fleet.ConditionDeployed, "False Error: Helm release "+s.target+"/shared exists and belongs to BundleDeployment old")
	s.still()
	before := len(s.hubWire.Requests("/contents/"))
	labels := release.Owner{Namespace: s.agent, Workspace: "fleet-default", ClusterName: s.cluster}.LabelsFor("new", "forged")
	for range 10 {
		s.forge("shared", 7, "", 0, labels)
		require.NoError(t, s.Kubernetes.CoreV1().Secrets(s.target).Delete(t.Context(), "sh.helm.release.v1.shared.v7", metav1.DeleteOptions{}))
	}
	s.still()
	assert.Len(t, s.hubWire.Requests("/contents/"), before, "each attempt to deploy reads the Content")
}

// tenant creates a ServiceAccount that may do everything in the namespace that is deployed to, and nothing elsewhere.
func (s *stage) tenant(name string) {
	s.t.Helper()
	_, err := s.Kubernetes.CoreV1().ServiceAccounts(s.agent).Create(s.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	_, err = s.Kubernetes.RbacV1().RoleBindings(s.target).Create(s.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: s.agent, Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// Two BundleDeployments that both adopt the same release do it in turns, with growing pauses.
func TestRun_takenOverInTurns(t *testing.T) {
	s := onStage(t)
	s.run(func(c *deploy.Config) { c.Timing.CorrectFirst, c.Timing.CorrectMax = time.Hour, time.Hour })
	for _, name := range []string{"app", "other"} {
		s.put(name, configMap("a", name), func(bd *fleet.BundleDeployment) {
			bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "shared", TakeOwnership: true}
		})
		s.value("a", name)
	}
	testenv.Eventually(t, func() (bool, string) {
		releases := s.releases()
		return len(releases) == 1 && releases[0].Version == 4, fmt.Sprintf("each deploys twice: %v", releases)
	})
	s.still() // each waits
	releases := s.releases()
	require.Len(t, releases, 1)
	assert.Equal(t, 4, releases[0].Version)
	assert.Equal(t, "other", releases[0].Labels[release.DeploymentLabel])
}
