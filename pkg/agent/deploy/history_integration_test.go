package deploy_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	helm "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// forge stores a revision as a user can who may write Secrets in the namespace. Its text is JSON, and is repeated.
func (s *stage) forge(name string, version int, text string, count int, labels map[string]string) {
	s.t.Helper()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	for range count {
		_, err := zip.Write([]byte(text))
		require.NoError(s.t, err)
	}
	require.NoError(s.t, zip.Close())
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("sh.helm.release.v1.%s.v%d", name, version), Labels: map[string]string{
			"owner": "helm", "name": name, "version": fmt.Sprint(version), "status": "deployed",
		}},
		Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(packed.Bytes()))},
	}
	for key, value := range labels {
		secret.Labels[key] = value
	}
	_, err := s.Kubernetes.CoreV1().Secrets(s.target).Create(context.Background(), secret, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

func TestRun_historyTooLarge(t *testing.T) {
	sample.Long(t)
	s := onStage(t)
	s.forge("app", 1, strings.Repeat(" ", 1<<20), 130, nil)
	s.run()
	s.put("app", configMap("a", "one"))
	s.put("other", configMap("b", "one"))
	s.state("other", fleet.Ready)
	s.state("app", fleet.ErrApplied)
	s.condition("app", fleet.ConditionDeployed, "False Error: reading the history of Helm release "+s.target+"/app: query: failed to query with labels: the history")
}

// leaveUnlabelled leaves the release of BundleDeployment app as one of an agent that sets no labels and no longer runs.
func (s *stage) leaveUnlabelled() {
	s.t.Helper()
	stop := s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	require.NoError(s.t, stop())
	s.unlabel("app")
}

// The history of a release that an agent without labels has deployed cannot be read, so that this agent cannot take the release over.
func TestRun_releaseOfAnotherAgent_historyTooLarge(t *testing.T) {
	sample.Long(t)
	s := onStage(t)
	s.leaveUnlabelled()
	s.forge("app", 2, strings.Repeat(" ", 1<<20), 130, nil)
	before := s.get("app").Status
	s.run()
	s.condition("app", fleet.ConditionDeployed, "False Error: reading the history of Helm release "+s.target+"/app: query: failed to query with labels: the history")
	s.condition("app", fleet.ConditionReady, "False Error: reading the history of Helm release "+s.target+"/app")
	after := s.get("app").Status
	require.Contains(t, after.Display.Deployed, "Error: reading the history")
	after.Conditions, after.Display = before.Conditions, before.Display
	require.Equal(t, before, after, "the rest says what to adopt")

	require.NoError(t, s.Kubernetes.CoreV1().Secrets(s.target).Delete(t.Context(), "sh.helm.release.v1.app.v2", metav1.DeleteOptions{}))
	s.condition("app", fleet.ConditionDeployed, "True")
	s.condition("app", fleet.ConditionReady, "True")
	s.signed("app", 1)
}

// While it is paused, the status of a deployed BundleDeployment does not change, whatever happens to the history.
func TestRun_pausedHistoryTooLarge(t *testing.T) {
	sample.Long(t)
	s := onStage(t)
	s.leaveUnlabelled()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Paused = true })
	s.forge("app", 2, strings.Repeat(" ", 1<<20), 130, nil)
	before := s.get("app").Status
	reads := func() int { return len(s.member.Requests("GET /api/v1/namespaces/" + s.target + "/secrets")) }
	began := reads()
	s.run()
	testenv.Eventually(t, func() (bool, string) {
		return reads() >= began+10, fmt.Sprintf("%d reads of the history", reads()-began)
	})
	require.NoError(t, s.Kubernetes.CoreV1().Secrets(s.target).Delete(t.Context(), "sh.helm.release.v1.app.v2", metav1.DeleteOptions{}))
	s.still()
	require.Equal(t, before, s.get("app").Status)
}

// A user who may write Secrets in the namespace adds a revision with an object of somebody else: what differs from it would be shown to them.
func TestRun_revisionNotSigned(t *testing.T) {
	s := onStage(t)
	theirs := s.Namespace(t)
	_, err := s.Kubernetes.CoreV1().ConfigMaps(theirs).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Data: map[string]string{"k": "hidden"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	secrets := s.Kubernetes.CoreV1().Secrets(s.target)
	first, err := secrets.Get(t.Context(), "sh.helm.release.v1.app.v1", metav1.GetOptions{})
	require.NoError(t, err)
	manifest := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theirs, namespace: " + theirs + "}\n"
	text, err := json.Marshal(map[string]any{
		"name": "app", "namespace": s.target, "version": 2, "manifest": manifest, "info": map[string]string{"status": "deployed"},
	})
	require.NoError(t, err)
	labels := maps.Clone(first.Labels)
	labels["version"] = "2"
	s.forge("app", 2, string(text), 1, labels)
	testenv.Eventually(t, func() (bool, string) {
		bd := s.get("app")
		require.Empty(t, bd.Status.ModifiedStatus)
		return bd.Status.Release == s.target+"/app:3" && bd.Status.Display.State == string(fleet.Ready), fmt.Sprintf("%+v", bd.Status)
	})
	s.value("a", "one")
}

// A user who may write Secrets in any namespace stores revisions with the labels of a BundleDeployment. Helm cannot remove them.
func TestRun_forgedReleases(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	forge := func() {
		for name, text := range map[string]string{
			"damaged": `{"name":"damaged","namespace":"` + s.target + `","version":1,"info":{"status":"failed"},"manifest":"kind: ["}`, "stateless": `{"name":"stateless","version":1}`,
			"renamed": `{"name":"other","version":1,"info":{"status":"failed"}}`, "undecoded": "?",
		} {
			labels := maps.Clone(s.releases()[0].Labels)
			maps.DeleteFunc(labels, func(key, _ string) bool { return !strings.Contains(key, "/") })
			s.forge(name, 1, text, 1, labels)
		}
	}
	history := func(want int) {
		testenv.Eventually(t, func() (bool, string) {
			found, err := s.Kubernetes.CoreV1().Secrets(s.target).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
			return err == nil && len(found.Items) == want, fmt.Sprint(err, len(found.Items), " revisions")
		})
	}
	forge()
	history(1)
	s.put("app", configMap("a", "two"))
	s.state("app", fleet.Ready)
	history(2)
	forge()
	s.remove("app")
	s.gone("a")
	history(0)
}

// A user who may write Secrets in the namespace of a release stores Secrets that look like later revisions of it.
func TestRun_undecodedRevision(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	before := s.releases()[0]
	for at, change := range []func(labels map[string]string){
		func(labels map[string]string) { labels[release.DeploymentIDLabel] = "x" },
		func(map[string]string) {},
	} {
		labels := maps.Clone(before.Labels)
		labels["version"] = "2000000000"
		change(labels)
		s.forge("app", 2_000_000_000, "?", 1, labels)
		testenv.Eventually(t, func() (bool, string) {
			found := s.releases()[0]
			return found.Version == 2+at, fmt.Sprint("the last revision is ", found)
		})
		s.still()
		require.Equal(t, 2+at, s.releases()[0].Version, "it is deployed once")
		require.Equal(t, s.releases()[0].String(), s.state("app", fleet.Ready).Status.Release)
	}
}

// A user who may write Secrets in another namespace stores a revision of the agent's own BundleDeployment, which does not exist. The agent still removes
// what the hub deletes.
func TestRun_forgedOwnRelease(t *testing.T) {
	s := onStage(t)
	elsewhere := s.Namespace(t)
	s.run(func(c *deploy.Config) { c.Timing.RemovalRecheck = time.Hour }) // before that, the agent would not remove a release of its own
	s.put("app", configMap("a", "one"))
	s.put("other", configMap("b", "one"))
	s.state("app", fleet.Ready)
	s.state("other", fleet.Ready)
	labels := maps.Clone(s.releases()[0].Labels)
	labels["name"], labels[release.DeploymentLabel] = "own", registration.LabelValue(s.ownBundle())
	forged := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sh.helm.release.v1.own.v1", Labels: labels}}
	_, err := s.Kubernetes.CoreV1().Secrets(elsewhere).Create(t.Context(), forged, metav1.CreateOptions{})
	require.NoError(t, err)
	asks := "GET /apis/fleet.cattle.io/v1alpha1/namespaces/" + s.hub + "/bundledeployments/" + s.ownBundle()
	testenv.Eventually(t, func() (bool, string) { return len(s.hubWire.Requests(asks)) > 0, "it does not see the revision" })
	s.remove("app")
	s.gone("a")
}

func (s *stage) forgetHistoryKey() {
	s.t.Helper()
	require.NoError(s.t, s.Kubernetes.CoreV1().Secrets(s.agent).Delete(context.Background(), registration.HistoryKeySecret, metav1.DeleteOptions{}))
}

// An agent that sets no labels has worked after this one, whose key is still there.
func TestRun_releaseOfAnotherAgent_notSigned(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	names := []string{"same", "paused", "moved"}
	for _, name := range names {
		s.put(name, configMap(name, "one"))
		s.state(name, fleet.Ready)
	}
	require.NoError(t, stop())
	for _, name := range names {
		s.unlabel(name)
	}
	s.put("paused", configMap("paused", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Paused = true })
	s.put("moved", configMap("moved", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "renamed"} })
	s.run()
	testenv.Eventually(t, func() (bool, string) {
		at := s.get("moved").Status.Release
		return at == s.target+"/renamed:1", "the release is " + at
	})
	s.signed("same", 1)
	s.still()
	paused := s.get("paused")
	require.Equal(t, s.target+"/paused:1", paused.Status.Release)
	require.Equal(t, paused.Spec.DeploymentID, paused.Status.AppliedDeploymentID)
	s.put("paused", configMap("paused", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Paused = false })
	s.signed("paused", 1)
	for _, name := range []string{"same", "paused"} {
		require.Equal(t, s.target+"/"+name+":1", s.state(name, fleet.Ready).Status.Release)
	}
}

// signed waits until the last revision of a release is a signed one.
func (s *stage) signed(name string, version int) {
	s.t.Helper()
	client, err := release.New(s.RESTConfig())
	require.NoError(s.t, err)
	client, err = client.WithHistoryKey(s.t.Context(), s.agent)
	require.NoError(s.t, err)
	testenv.Eventually(s.t, func() (bool, string) {
		_, err := client.Get(context.Background(), release.Found{Namespace: s.target, Name: name, Version: version})
		return err == nil, fmt.Sprint(name, ": ", err)
	})
}

// What another agent has deployed, or this one for another Cluster, stays if it is the same as what this agent would deploy.
func TestRun_deployedByAnotherAgent(t *testing.T) {
	sample.Long(t)
	files := func(value string) []fleet.BundleResource {
		return []fleet.BundleResource{
			{Name: "Chart.yaml", Content: "apiVersion: v2\nname: app\nversion: 1.0.0\n"},
			{Name: "templates/all.yaml", Content: configMap("a", value) +
				"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hook, annotations: {helm.sh/hook: \"pre-install,pre-upgrade,pre-rollback\"}}\n"},
		}
	}
	correct := func(bd *fleet.BundleDeployment) { bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true} }
	// byFleet deploys as an agent that sets no labels: Helm copies those of the revision before.
	byFleet := func(s *stage) {
		s.putFiles("app", files("two"), correct)
		bd := s.get("app")
		client, err := release.New(s.RESTConfig())
		require.NoError(t, err)
		made, err := client.Deploy(t.Context(), release.Request{
			Namespace: s.target, Name: "app", BundleDeployment: "app", Resources: files("two"), Options: bd.Spec.Options,
			Labels:                  release.Owner{Namespace: s.agent, Workspace: "fleet-default", ClusterName: s.cluster}.LabelsFor("app", bd.Status.AppliedDeploymentID),
			ServiceAccountNamespace: s.agent,
		})
		require.NoError(t, err)
		bd.Status.AppliedDeploymentID, bd.Status.Release = bd.Spec.DeploymentID, made.String()
		_, err = s.Fleet.BundleDeployments(s.hub).UpdateStatus(t.Context(), bd, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	for name, row := range map[string]struct {
		meanwhile func(*stage)
		// kept is the revision that stays; 0 if the agent deploys again.
		kept int
	}{
		"Fleet's own agent": {byFleet, 2},
		"Fleet's own agent, and the values were changed": {func(s *stage) {
			byFleet(s)
			config, err := release.Configuration(s.RESTConfig(), s.target)
			require.NoError(t, err)
			forged, err := config.Releases.Last("app")
			require.NoError(t, err)
			forged.(*helm.Release).Config = map[string]any{"theirs": "x"}
			require.NoError(t, config.Releases.Update(forged))
		}, 0},
		"the agent for another Cluster": {func(s *stage) {
			bd := s.get("app")
			bd.Status = fleet.BundleDeploymentStatus{}
			_, err := s.Fleet.BundleDeployments(s.hub).UpdateStatus(t.Context(), bd, metav1.UpdateOptions{})
			require.NoError(t, err)
			s.cluster = "other"
		}, 1},
		"an agent in another namespace": {func(s *stage) {
			before := release.Owner{Namespace: s.agent, Workspace: "fleet-default", ClusterName: s.cluster}
			s.agent = s.Namespace(t)
			client, err := release.New(s.RESTConfig())
			require.NoError(t, err)
			after := release.Owner{Namespace: s.agent, Workspace: "fleet-default", ClusterName: s.cluster}
			_, err = client.EnsureHistoryKey(t.Context(), after)
			require.NoError(t, err)
			revisions, err := client.List(t.Context(), before.Selector())
			require.NoError(t, err)
			for _, r := range revisions { // as the hub
				testenv.Merge(t, s.Kubernetes.CoreV1().Secrets(r.Namespace).Patch, fmt.Sprintf("sh.helm.release.v1.%s.v%d", r.Name, r.Version),
					map[string]any{"metadata": map[string]any{"labels": after.Labels()}})
			}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			stop := s.run()
			s.putFiles("app", files("one"), correct)
			s.state("app", fleet.Ready)
			require.NoError(t, stop())
			row.meanwhile(s)
			hook := func() string {
				o, err := s.configMap("hook")
				require.NoError(t, err)
				return string(o.UID)
			}
			was := hook()
			s.run()
			if row.kept == 0 {
				s.signed("app", 3)
				testenv.Eventually(t, func() (bool, string) {
					at := s.get("app").Status.Release
					return at == s.target+"/app:3", "the release is " + at
				})
				require.NotEqual(t, was, hook())
				s.value("a", "two")
				return
			}
			s.signed("app", row.kept)
			require.Equal(t, fmt.Sprintf("%s/app:%d", s.target, row.kept), s.state("app", fleet.Ready).Status.Release)
			require.Equal(t, was, hook(), "no hook runs")

			s.change("theirs")
			testenv.Eventually(t, func() (bool, string) {
				o, err := s.configMap("a")
				return err == nil && o.Data["k"] != "theirs", "the difference stays"
			})
			testenv.Eventually(t, func() (bool, string) {
				at := s.get("app").Status.Release
				return at == fmt.Sprintf("%s/app:%d", s.target, row.kept+1), "the release is " + at
			})
			require.NotEqual(t, was, hook(), "it is rolled back to")
		})
	}
}

func TestRun_oldReleaseCannotBeRemoved(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("old", "one"))
	s.state("app", fleet.Ready)
	s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "/configmaps/old") {
			return nil, errors.New("broken")
		}
		return send()
	})
	s.put("app", configMap("new", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "renamed"} })
	bd := s.state("app", fleet.Ready)
	require.Equal(t, s.target+"/renamed:1", bd.Status.Release, "the status is written")
	require.Len(t, s.releases(), 2)
	s.remove("app")
	s.gone("new")
	_, err := s.configMap("old")
	require.NoError(t, err)
	s.member.Inject(nil)
	s.gone("old")
}

// A hook of the installation fails at first. Until it has succeeded, the BundleDeployment is not ready, and each attempt is an installation.
func TestRun_failedInstallationHook(t *testing.T) {
	s := onStage(t)
	hooks := "hooks-" + s.target
	s.putFiles("app", []fleet.BundleResource{
		{Name: "Chart.yaml", Content: "apiVersion: v2\nname: app\nversion: 1.0.0\n"},
		{Name: "templates/a.yaml", Content: configMap("a", `"{{ .Release.IsInstall }}"`)},
		{Name: "templates/hook.yaml", Content: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hook, namespace: " + hooks + ", annotations: {helm.sh/hook: pre-install}}\n"},
	})
	s.run()
	fails := func(revision int) {
		testenv.Eventually(s.t, func() (bool, string) {
			found := s.releases()
			return len(found) == 1 && found[0].Version >= revision && found[0].Failed, fmt.Sprint(found)
		})
	}
	fails(3)
	s.condition("app", fleet.ConditionDeployed, "False Error: failed pre-install: ")
	s.condition("app", fleet.ConditionReady, "False ")
	_, err := s.Kubernetes.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hooks}}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.state("app", fleet.Ready)
	s.value("a", "true")
	_, err = s.Kubernetes.CoreV1().ConfigMaps(hooks).Get(t.Context(), "hook", metav1.GetOptions{})
	require.NoError(t, err)
}
