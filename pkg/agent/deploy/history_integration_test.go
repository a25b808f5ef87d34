package deploy_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
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
		assert.Empty(t, bd.Status.ModifiedStatus)
		return bd.Status.Release == s.target+"/app:3" && bd.Status.Display.State == string(fleet.Ready), fmt.Sprintf("%+v", bd.Status)
	})
	s.value("a", "one")
}
