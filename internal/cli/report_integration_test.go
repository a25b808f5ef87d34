package cli

import (
	"archive/zip"
	"encoding/base64"
	"encoding/json"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/report"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// unzip returns the files of a report without the folder, and its overview.
func unzip(t *testing.T, file string) (files map[string]string, overview report.Overview) {
	t.Helper()
	archive, err := zip.OpenReader(file)
	require.NoError(t, err)
	defer archive.Close()
	files = map[string]string{}
	for _, entry := range archive.File {
		reader, err := entry.Open()
		require.NoError(t, err)
		data, err := io.ReadAll(reader)
		require.NoError(t, err)
		_, name, _ := strings.Cut(entry.Name, "/")
		files[name] = string(data)
	}
	require.NoError(t, json.Unmarshal([]byte(files["report.json"]), &overview))
	return files, overview
}

func TestReport(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	member, _ := p.importsEast()
	p.token(registration.ImportTokenName("east"))
	p.hub.Token(t, p.namespace, "first", fleet.ClusterRegistrationTokenSpec{})
	password := "correct horse " + p.namespace
	p.hub.WriteSecret(t, p.namespace, "workload", map[string][]byte{"password": []byte(password)})
	testenv.Create(t, p.hub.Fleet.Bundles(p.namespace).Create, &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Annotations: map[string]string{"note": "the password is " + password}},
		Spec:       fleet.BundleSpec{Resources: []fleet.BundleResource{{Name: "s.yaml", Content: "unknown-to-any-secret"}}},
	})
	testenv.Merge(t, p.hub.Fleet.Clusters(p.namespace).Patch, "east",
		`{"metadata":{"annotations":{"note":"https://somebody:rather-secret@example.com"}},"spec":{"agentEnvVars":[{"name":"A","value":"also-a-password"}]}}`)

	file := filepath.Join(t.TempDir(), "report.zip")
	out := p.mustRun("report", "east", "--member-kubeconfig", memberConfig(t, member), "--file", file)
	require.Contains(t, out, "The report is in "+file+": ")
	files, overview := unzip(t, file)
	require.Empty(t, overview.Failed)
	all := ""
	for name, text := range files {
		all += name + "\n" + text + "\n"
	}

	// No value of any Secret of hub and member is in any file.
	searched := 0
	for _, side := range []*testenv.Cluster{p.hub, member} {
		secrets := testenv.List(t, side.Kubernetes.CoreV1().Secrets(metav1.NamespaceAll).List, metav1.ListOptions{})
		for _, s := range secrets.Items {
			for key, value := range s.Data {
				if slices.Contains(report.Public, key) || len(value) < 6 {
					continue
				}
				searched++
				assert.NotContains(t, all, string(value), "%s/%s %s", s.Namespace, s.Name, key)
				assert.NotContains(t, all, base64.StdEncoding.EncodeToString(value), "%s/%s %s", s.Namespace, s.Name, key)
			}
		}
	}
	require.Greater(t, searched, 5)
	for _, secret := range []string{"eyJ", "PRIVATE KEY", password, "unknown-to-any-secret", "rather-secret", "also-a-password"} {
		assert.NotContains(t, all, secret)
	}
	requests := testenv.List(t, p.hub.Fleet.ClusterRegistrations(p.namespace).List, metav1.ListOptions{})
	require.NotContains(t, all, requests.Items[0].Spec.ClientRandom)

	// What helps is there.
	require.Contains(t, files["hub/"+p.namespace+"/clusters.json"], `"name": "east"`)
	require.Contains(t, files["hub/"+p.namespace+"/secrets.json"], `"password": "REDACTED, `)
	require.Contains(t, files["hub/"+registration.ClusterNamespace(p.namespace, "east")+"/bundledeployments.json"], `"name": "fleet-agent-east"`)
	require.Contains(t, files["member/cattle-fleet-system/secrets.json"], registration.CredentialSecret)
	require.Contains(t, files["hub/cattle-fleet-system/configmaps.json"], "apiServerURL")
	require.Contains(t, files["checks.txt"], "the hub's API server answers")
	require.Contains(t, files["checks.json"], `"id": "hub-api"`)
	require.Contains(t, files["describe.txt"], "Cluster "+p.namespace+"/east: ")
	own := "hub/" + registration.ClusterNamespace(p.namespace, "east")
	require.Contains(t, files, own+"/leases.json")
	require.Contains(t, files, own+"/events.json")
	require.Contains(t, files, "hub/"+p.namespace+"/events.json")

	// Nothing is known about a name that is wrong, but the report about a member may help.
	typo := filepath.Join(t.TempDir(), "typo.zip")
	_, _, err := p.run("report", "esat", "--file", typo)
	require.ErrorContains(t, err, "there is no Cluster "+p.namespace+"/esat")
	require.NoFileExists(t, typo)

	_, _, err = p.run("report", "--file", file)
	require.ErrorContains(t, err, "file exists")
}

// A user with few rights gets the objects that the user may read, and a list of the other parts.
func TestReportWithFewRights(t *testing.T) {
	p := atHub(t)
	p.actsAsViewer()
	file := filepath.Join(t.TempDir(), "report.zip")
	_, said, err := p.run("report", "-f", file)
	require.NoError(t, err)
	require.Contains(t, said, "not collected: hub/"+p.namespace+"/secrets.json: ")
	files, overview := unzip(t, file)
	require.Contains(t, files, "hub/"+p.namespace+"/clusters.json")
	require.NotContains(t, files, "hub/"+p.namespace+"/secrets.json")
	require.NotEmpty(t, overview.Failed)
}
