package clusternet

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/cli"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// The Secret that the command prints can be applied to a member, and its agent registers with it.
func TestPrintedSecret(t *testing.T) {
	s := newStage(t)
	file := filepath.Join(t.TempDir(), "hub.kubeconfig")
	require.NoError(t, os.WriteFile(file, s.Hub.Kubeconfig(), 0o600))
	var out bytes.Buffer
	app := cli.App(cli.Streams{Out: &out, Err: &out, Env: func(string) string { return "" }, Now: time.Now})
	require.NoError(t, app.RunContext(t.Context(), []string{
		"muster", "--kubeconfig", file, "-n", s.Namespace, "token", "create", "--usage-limit", "1", "--timeout", "2m", "-o", "clusternet", "printed",
	}))

	var printed corev1.Secret
	require.NoError(t, yaml.UnmarshalStrict(out.Bytes(), &printed))
	assert.Equal(t, "clusternet-system/clusternet-agent-cluster-registration", printed.Namespace+"/"+printed.Name)
	printed.Namespace = s.Member.Namespace(t)
	stored, err := s.Member.Kubernetes.CoreV1().Secrets(printed.Namespace).Create(t.Context(), &printed, metav1.CreateOptions{})
	require.NoError(t, err)

	p := s.peer(t, registration.Values{Token: string(stored.Data["regToken"])})
	p.options.HubURL = string(stored.Data["parentURL"])
	p.registered()
	token := s.ReadyToken(t, "printed")
	assert.Equal(t, int64(1), token.Status.Uses)
	s.Hub.ClusterCondition(t, s.Namespace, p.cluster(), fleet.ConditionRegistered, "True")
}
