package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestVersion(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	hub.Configure(t, hub.Reachable())
	testenv.Merge(t, hub.Kubernetes.CoreV1().ConfigMaps(registration.DefaultSystemNamespace).Patch, registration.HubConfigMap,
		`{"metadata":{"annotations":{"`+fleet.VersionAnnotation+`":"v1.2.3"}}}`)
	p := person{t, hub, hub.Namespace(t)}
	t.Setenv("KUBECONFIG", memberConfig(t, hub))
	for name, version := range map[string]string{"a": "v1.2.3", "b": "v1.2.3", "c": "v1.2.2", "d": ""} {
		testenv.Create(t, hub.Fleet.Clusters(p.namespace).Create, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}})
		testenv.Merge(t, hub.Fleet.Clusters(p.namespace).Patch, name, `{"status":{"agent":{"version":"`+version+`"}}}`, "status")
	}

	out := p.mustRun("version")
	requireGolden(t, "version.txt", strings.ReplaceAll(out, " v1.3", " Kubernetes v1.3"))
	var got struct {
		Client string
		admin.Versions
	}
	require.NoError(t, json.Unmarshal([]byte(p.mustRun("version", "-o", "json")), &got))
	require.Equal(t, "dev", got.Client)
	require.Equal(t, "v1.2.3", got.Hub)
	require.Equal(t, []admin.AgentVersion{{Clusters: 1}, {Version: "v1.2.2", Clusters: 1, Differs: true}, {Version: "v1.2.3", Clusters: 2}}, got.Agents)

	// Without a hub there is still the version of the program.
	nowhere := filepath.Join(t.TempDir(), "none")
	require.NoError(t, os.WriteFile(nowhere, nil, 0o600))
	out, _, err := muster(t, "version", "--kubeconfig", nowhere)
	require.ErrorContains(t, err, "cannot connect to the hub")
	require.Contains(t, out, "muster      dev")
	out, _, err = muster(t, "version", "--client", "--kubeconfig", nowhere, "-o", "json")
	require.NoError(t, err)
	require.JSONEq(t, `{"apiVersion":"fleet.cattle.io/v1alpha1","kind":"Versions","client":"dev"}`, out)
}
