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

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// forge stores a revision as a user can who may write Secrets in the namespace. Its text is JSON, and is repeated.
func (s *stage) forge(release string, version int, text string, count int, labels map[string]string) {
	s.t.Helper()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	for range count {
		_, err := zip.Write([]byte(text))
		require.NoError(s.t, err)
	}
	require.NoError(s.t, zip.Close())
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("sh.helm.release.v1.%s.v%d", release, version), Labels: map[string]string{
			"owner": "helm", "name": release, "version": fmt.Sprint(version), "status": "deployed",
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
	s := onStage(t)
	s.forge("app", 1, strings.Repeat(" ", 1<<20), 130, nil)
	s.run()
	s.put("app", configMap("a", "one"))
	s.put("other", configMap("b", "one"))
	s.state("other", fleet.Ready)
	s.state("app", fleet.ErrApplied)
	s.condition("app", fleet.ConditionDeployed, "False Error: reading the history of Helm release "+s.target+"/app: query: failed to query with labels: the history")
}

// A user who may write Secrets in the namespace adds a revision with an object of somebody else: what differs from it would be shown to them.
func TestRun_unprovedRevision(t *testing.T) {
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
			"damaged": `{"name":"damaged","version":1,"info":{"status":"failed"},"manifest":"kind: ["}`, "stateless": `{"name":"stateless","version":1}`,
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

func (s *stage) forgetHistoryKey() {
	s.t.Helper()
	require.NoError(s.t, s.Kubernetes.CoreV1().Secrets(s.agent).Delete(context.Background(), registration.HistoryKeySecret, metav1.DeleteOptions{}))
}

// An agent that sets no labels has worked after this one, whose key is still there.
func TestRun_releaseOfAnotherAgent_unproved(t *testing.T) {
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
	for name, want := range map[string]string{"same": "same:2", "moved": "renamed:1"} {
		testenv.Eventually(t, func() (bool, string) {
			at := s.get(name).Status.Release
			return at == s.target+"/"+want, "the release is " + at
		})
	}
	s.still()
	paused := s.get("paused")
	require.Equal(t, s.target+"/paused:1", paused.Status.Release)
	require.Equal(t, paused.Spec.DeploymentID, paused.Status.AppliedDeploymentID)
	s.put("paused", configMap("paused", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Paused = false })
	testenv.Eventually(t, func() (bool, string) {
		at := s.get("paused").Status.Release
		return at == s.target+"/paused:2", "the release is " + at
	})
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
