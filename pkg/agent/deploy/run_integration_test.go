package deploy_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestRun(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one")+configMap("b", "one"))
	bd := s.state("app", fleet.Ready)
	assert.Equal(t, s.target+"/app:1", bd.Status.Release)
	assert.Equal(t, fleet.ResourceCounts{Ready: 2, DesiredReady: 2}, bd.Status.ResourceCounts)
	assert.Len(t, bd.Status.Resources, 2)
	assert.Equal(t, fleet.BundleDeploymentDisplay{Deployed: "True", Monitored: "True", State: "Ready"}, bd.Status.Display)
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
	hub, member := len(s.hubWire.lines("")), len(s.member.lines(""))
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	install := [2]int{len(s.hubWire.lines("")) - hub, len(s.member.lines("")) - member}
	s.still()
	hub, member = len(s.hubWire.lines("")), len(s.member.lines(""))
	s.put("app", configMap("a", "two"))
	s.state("app", fleet.Ready)
	upgrade := [2]int{len(s.hubWire.lines("")) - hub, len(s.member.lines("")) - member}
	t.Logf("installing one object: %d requests to the hub, %d to the member; upgrading it: %d and %d", install[0], install[1], upgrade[0], upgrade[1])
	for _, line := range s.member.lines("")[member:] {
		t.Log(line)
	}
	assert.LessOrEqual(t, install[0], 3)
	assert.LessOrEqual(t, install[1], 15)
	assert.LessOrEqual(t, upgrade[0], 3)
	assert.LessOrEqual(t, upgrade[1], 20)
}

func TestRun_removedWhileStopped(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	long := strings.Repeat("long-", 15) + "app"
	s.put("app", configMap("a", "one"))
	s.put(long, configMap("l", "one"))
	s.put("kept", configMap("b", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.KeepResources = true })
	s.put("fleet-agent-other", configMap("other", "one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	for _, name := range []string{"app", long, "kept", "fleet-agent-other", s.ownBundle()} {
		s.state(name, fleet.Ready)
	}
	require.NoError(t, stop())
	for _, name := range []string{"app", long, "kept", "fleet-agent-other"} {
		s.remove(name)
	}
	s.run()
	s.gone("a")
	s.gone("l")
	testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 1, "a history is still there" })
	for _, name := range []string{"b", "other", "agent"} {
		_, err := s.configMap(name)
		require.NoError(t, err, "%s stays", name)
	}
}

func TestRun_clusterDeletedOnHub(t *testing.T) {
	s := onStage(t)
	s.run(func(c *deploy.Config) { c.Timing.Linger, c.Timing.Hold = 3*time.Second, 200*time.Millisecond })
	s.put("app", configMap("a", "one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	s.state("app", fleet.Ready)
	s.state(s.ownBundle(), fleet.Ready)
	s.removeAll()
	asks := "GET /apis/fleet.cattle.io/v1alpha1/namespaces/" + s.hub + "/bundledeployments/app"
	testenv.Eventually(t, func() (bool, string) { return len(s.hubWire.lines(asks)) > 1, "it does not ask again" })
	_, err := s.configMap("a")
	require.NoError(t, err)
	assert.Len(t, s.releases(), 2, "nor is the history removed")
	assert.Empty(t, s.member.lines("DELETE"))

	s.put(s.ownBundle(), configMap("agent", "one"))
	s.gone("a")
}

func TestRun_ownBundleDeploymentDeleted(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"))
	s.put("other", configMap("b", "one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	for _, name := range []string{"app", "other", s.ownBundle()} {
		s.state(name, fleet.Ready)
	}
	s.remove(s.ownBundle())
	s.remove("app")
	s.gone("a")
	for _, name := range []string{"b", "agent"} {
		_, err := s.configMap(name)
		require.NoError(t, err, "%s stays", name)
	}
}

// notFound is how a proxy looks that has lost its way to the API server.
const notFound = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`

func TestRun_removalNeedsTheHubsAnswer(t *testing.T) {
	answer := func(status int, body string) func(*http.Request) (*http.Response, error) {
		return func(req *http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
				Body: readCloser{strings.NewReader(body)}, Request: req,
			}, nil
		}
	}
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
			s.hubWire.inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
				if req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/bundledeployments/app") {
					return reply(req)
				}
				return send()
			})
			s.remove("app")
			testenv.Eventually(t, func() (bool, string) {
				return len(s.hubWire.lines("/bundledeployments/app")) > 4, "it does not ask again"
			})
			_, err := s.configMap("a")
			require.NoError(t, err)
			assert.Empty(t, s.member.lines("DELETE"))
			s.hubWire.inject(nil)
			s.gone("a")
		})
	}
}

func TestARestartDeploysNothingAgain(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	require.NoError(t, stop())
	told, made := len(s.hubWire.lines("/bundledeployments/app/status")), len(s.member.lines("POST"))
	s.run()
	s.put("other", configMap("b", "one"))
	s.state("other", fleet.Ready)
	assert.Equal(t, s.target+"/app:1", s.get("app").Status.Release)
	s.still()
	assert.Len(t, s.hubWire.lines("/bundledeployments/app/status"), told, "the hub knows all of it")
	assert.LessOrEqual(t, len(s.member.lines("POST"))-made, 2, "all of it for the other one")
}

// fakeList answers lists of BundleDeployments as the hub must never be believed.
func fakeList(status int, body string) testenv.Harm {
	return func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if !strings.HasSuffix(req.URL.Path, "/bundledeployments") {
			return send()
		}
		answer, err := send()
		if err == nil {
			_ = answer.Body.Close()
			answer.StatusCode, answer.Body, answer.ContentLength = status, http.NoBody, -1
			answer.Header.Set("Content-Type", "application/json")
			answer.Body = readCloser{strings.NewReader(body)}
		}
		return answer, err
	}
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

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
			s.hubWire.inject(harm)
			before := len(s.hubWire.lines("bundledeployments"))
			stop = s.run()
			testenv.Eventually(t, func() (bool, string) { return len(s.hubWire.lines("bundledeployments")) > before+1, "it does not ask" })
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
	change := func(value string) {
		_, err := s.Kubernetes.CoreV1().ConfigMaps(s.target).Patch(t.Context(), "a", types.MergePatchType,
			[]byte(`{"data":{"k":"`+value+`"}}`), metav1.PatchOptions{FieldManager: "person"})
		require.NoError(t, err)
	}
	change("theirs")
	bd := s.state("app", fleet.Modified)
	assert.JSONEq(t, `{"data":{"k":"one"}}`, bd.Status.ModifiedStatus[0].Patch)
	s.condition("app", fleet.ConditionReady, "False Modified: ConfigMap "+s.target+"/a modified")
	change("one")
	s.state("app", fleet.Ready)

	require.NoError(t, s.Kubernetes.CoreV1().ConfigMaps(s.target).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	bd = s.state("app", fleet.Modified)
	assert.True(t, bd.Status.ModifiedStatus[0].Create)
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true} })
	s.state("app", fleet.Ready)
	for range 3 {
		change("theirs")
		s.value("a", "one")
	}
	s.state("app", fleet.Ready)
}

func TestRun_failedCorrection(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true} })
	s.state("app", fleet.Ready)
	s.hubWire.inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if strings.Contains(req.URL.Path, "/contents/") {
			return nil, errors.New("no contents today")
		}
		return send()
	})
	change := func(value string) {
		_, err := s.Kubernetes.CoreV1().ConfigMaps(s.target).Patch(t.Context(), "a", types.MergePatchType,
			[]byte(`{"data":{"k":"`+value+`"}}`), metav1.PatchOptions{FieldManager: "person"})
		require.NoError(t, err)
	}
	change("theirs")
	s.condition("app", fleet.ConditionMonitored, "False CorrectionFailed: ")
	change("one")
	s.condition("app", fleet.ConditionMonitored, "True")
	s.state("app", fleet.Ready)
}

func TestRun_leftovers(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	s.put("app", configMap("a", "two")+configMap("b", "two")+"apiVersion: v1\nkind: Service\nmetadata:\n  name: z\nspec:\n  ports: [{port: 0}]\n")
	s.state("app", fleet.ErrApplied)
	s.member.inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "/configmaps/b") {
			return nil, errors.New("not today")
		}
		return send()
	})
	s.put("app", configMap("a", "three"))
	s.condition("app", fleet.ConditionMonitored, "False CorrectionFailed: removing what earlier attempts left behind: ")
	deployed := s.get("app").Status.Release
	s.member.inject(nil)
	s.gone("b")
	s.condition("app", fleet.ConditionMonitored, "True")
	assert.Equal(t, deployed, s.get("app").Status.Release, "nothing is deployed again for it")
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
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Paused = true })
	s.condition("app", fleet.ConditionDeployed, "Unknown Paused")
	_, err := s.configMap("a")
	require.True(t, apierrors.IsNotFound(err))
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Paused = false })
	s.state("app", fleet.Ready)
}

func TestRun_dependsOn(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.DependsOn = []fleet.BundleRef{{Name: "base"}} })
	s.condition("app", fleet.ConditionDeployed, "Unknown WaitingForDependency: waiting for Bundle base, which is not deployed to this cluster")
	s.put("base", configMap("b", "one"))
	s.state("app", fleet.Ready)
}

func TestRun_failure(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", "apiVersion: nowhere/v1\nkind: Nothing\nmetadata: {name: x}\n")
	s.state("app", fleet.ErrApplied)
	s.condition("app", fleet.ConditionDeployed, "False DeployFailed: ")
	version := s.get("app").ResourceVersion
	before := len(s.member.lines("helm.sh"))
	testenv.Eventually(t, func() (bool, string) { return len(s.member.lines("secrets")) > before+8, "it does not try again" })
	assert.Equal(t, version, s.get("app").ResourceVersion, "the same failure is written once")
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	s.put("other", configMap("b", "one"), func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.Kustomize = &fleet.KustomizeOptions{Dir: "x"}
	})
	s.condition("other", fleet.ConditionDeployed, "False Unsupported: kustomize is not supported")
}

func TestRun_renamedRelease(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	s.put("app", configMap("a", "two"), func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "renamed"}
	})
	s.state("app", fleet.Ready)
	testenv.Eventually(t, func() (bool, string) {
		found := s.releases()
		return len(found) == 1 && found[0].Name == "renamed", "the old release is there"
	})
	s.value("a", "two")
}

func TestRun_farewell(t *testing.T) {
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
	require.ErrorIs(t, ended(), deploy.ErrFarewell)
	assert.Empty(t, s.releases())
	_, err := s.configMap("agent")
	require.NoError(t, err)

	require.ErrorIs(t, s.ends()(), deploy.ErrFarewell, "asked again it leaves again")
	assert.Empty(t, s.releases(), "nothing is deployed any more")
}

func TestRun_farewellFails(t *testing.T) {
	s := onStage(t)
	ended := s.ends()
	s.put("app", configMap("a", "one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	s.state("app", fleet.Ready)
	s.state(s.ownBundle(), fleet.Ready)
	s.member.inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
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
	s.member.inject(nil)
	s.condition(s.ownBundle(), fleet.ConditionFarewell, "True Farewell")
	require.ErrorIs(t, ended(), deploy.ErrFarewell)
}

func TestRun_farewellIsNotedOnce(t *testing.T) {
	s := onStage(t)
	s.put(s.ownBundle(), configMap("agent", "one"), func(bd *fleet.BundleDeployment) {
		bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true"}
	})
	var noted, failed atomic.Int32
	s.hubWire.inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodPatch && failed.Add(1) < 4 {
			return nil, errors.New("away")
		}
		return send()
	})
	ended := s.ends(func(c *deploy.Config) {
		c.Leaving = func(context.Context) error {
			if noted.Add(1) == 1 {
				return errors.New("not yet")
			}
			return nil
		}
	})
	require.ErrorIs(t, ended(), deploy.ErrFarewell)
	assert.EqualValues(t, 2, noted.Load(), "until it has worked")
	assert.EqualValues(t, 4, failed.Load())
}

func TestRun_farewellWhileWorkersAreBusy(t *testing.T) {
	s := onStage(t)
	s.put(s.ownBundle(), configMap("agent", "one"))
	var busy sync.Once
	stuck := make(chan struct{})
	s.member.inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
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
	require.ErrorIs(t, ended(), deploy.ErrFarewell)
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
	s.hubWire.inject(count)
	s.member.inject(count)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	assert.GreaterOrEqual(t, limited.Load(), int32(3), "of BundleDeployments, of releases, of what is deployed")
	assert.Zero(t, unlimited.Load())
}

func TestRun_credentialRefused(t *testing.T) {
	s := onStage(t)
	refused := errors.New("refused for certain")
	s.hubWire.inject(fakeList(401, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`))
	c := s.config()
	c.Judge = func(err error) error {
		if apierrors.IsUnauthorized(err) {
			return refused
		}
		return nil
	}
	require.ErrorIs(t, deploy.Run(t.Context(), c), refused)
}

var errKilled = errors.New("killed")

// killAfter lets n writes pass, on both sides together, and nothing after them.
func (s *stage) killAfter(n int) (dead <-chan struct{}) {
	var mu sync.Mutex
	died := make(chan struct{})
	left := n
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
	s.member.inject(harm)
	s.hubWire.inject(harm)
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
	for n := range 12 {
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
		s.member.inject(nil)
		s.hubWire.inject(nil)
		again := s.run()
		s.condition(s.ownBundle(), fleet.ConditionDeployed, "True Deployed")
		s.value("agent", "one")
		deployment, err := s.Kubernetes.AppsV1().Deployments(s.target).Get(t.Context(), "fleet-agent", metav1.GetOptions{})
		require.NoError(t, err)
		assert.EqualValues(t, 1, deployment.Generation, "rolled once, killed after %d writes", n)
		require.NoError(t, again())
		if over {
			t.Logf("%d writes in all", n)
			return
		}
	}
	t.Fatal("there are more writes than expected")
}
