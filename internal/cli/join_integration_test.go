package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// cancelAt cancels a context when a text is written.
type cancelAt struct {
	bytes.Buffer
	text   string
	cancel context.CancelFunc
}

func (c *cancelAt) Write(data []byte) (int, error) {
	if strings.Contains(string(data), c.text) {
		c.cancel()
	}
	return c.Buffer.Write(data)
}

// valuesFile writes the values of a new token to a file, and returns it with the values.
func (p person) valuesFile(token string, flags ...string) (file, values string) {
	p.t.Helper()
	values = p.mustRun(append([]string{"token", "create", token, "-o", "values", "--timeout", "5m"}, flags...)...)
	file = filepath.Join(p.t.TempDir(), token+".yaml")
	require.NoError(p.t, os.WriteFile(file, []byte(values), 0o600))
	return file, values
}

// A member is joined with one command. After any failure, the same command with valid values continues.
func TestJoin(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	member := testenv.BorrowedCluster(t, "member")
	kubeconfig, namespace := memberConfig(t, member), registration.DefaultSystemNamespace
	installed := func() bool {
		deployments := testenv.List(t, member.Kubernetes.AppsV1().Deployments(namespace).List, metav1.ListOptions{})
		return len(deployments.Items) > 0
	}
	narrow, _ := p.valuesFile("narrow", "--client-id", "somebody-else")
	good, goodValues := p.valuesFile("good")

	// The preflight finds what is wrong before anything is written.

	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	require.NoError(t, os.WriteFile(wrong, []byte("token: abc\n"), 0o600))
	_, _, err := muster(t, "join", wrong, "--kubeconfig", kubeconfig)
	require.ErrorContains(t, err, "the file does not contain the values of a registration token")
	require.NotContains(t, err.Error(), "abc")
	require.NoError(t, os.WriteFile(wrong, []byte(strings.ReplaceAll(goodValues, p.hub.URL(), "https://127.0.0.1:1")), 0o600))
	_, progress, err := muster(t, "join", wrong, "--kubeconfig", kubeconfig)
	require.ErrorContains(t, err, "nothing was changed: Failed: Connection from the agent to the hub (way-tcp): no connection to 127.0.0.1:1")
	require.Contains(t, progress, "× a connection to the hub is accepted\n")
	var out, said bytes.Buffer
	app := App(Streams{Out: &out, Err: &said, In: strings.NewReader(goodValues), Env: func(string) string { return "" }, Now: time.Now})
	err = app.RunContext(t.Context(), FlagsFirst(app, []string{"muster", "join", "-", "--kubeconfig", kubeconfig, "--dry-run"}))
	require.NoError(t, err)
	require.Contains(t, said.String(), "member: there is no agent on the member\nNo check failed, 1 of ")
	require.Contains(t, out.String(), "Without --dry-run, this command would install the chart fleet-agent in namespace cattle-fleet-system, with these objects:\n")
	require.Contains(t, out.String(), "\n    Deployment cattle-fleet-system/fleet-agent\n")
	require.Contains(t, out.String(), "\nNothing was changed: it was a dry run.\n")
	requireGolden(t, "join-dry-run.txt", said.String()+out.String())
	require.False(t, installed())

	// The hub refuses the agent: the command says so, and how to undo what it has made.
	testenv.Create(t, member.Kubernetes.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	member.Agent(t, namespace) // the process of the pods that the Deployment would have
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := &cancelAt{text: "the hub refuses ClusterRegistration " + p.namespace + "/", cancel: cancel}
	app = App(Streams{Out: &bytes.Buffer{}, Err: refused, Env: func(string) string { return "" }, Now: time.Now})
	err = app.RunContext(ctx, FlagsFirst(app, []string{"muster", "join", narrow, "--kubeconfig", kubeconfig}))
	require.ErrorContains(t, err, "stopped waiting for the registration: context canceled")
	require.Contains(t, refused.String(), "s  member: the hub refuses ClusterRegistration "+p.namespace+"/")
	require.Contains(t, refused.String(), "To undo its changes on the member:\n    helm --kubeconfig="+kubeconfig+" -n cattle-fleet-system uninstall fleet-agent\n")
	require.True(t, installed())

	// The values of another token replace those that the hub refuses.
	result, progress, err := muster(t, "join", good, "--kubeconfig", kubeconfig)
	require.NoError(t, err, progress)
	requireGolden(t, "join.txt", progress+result)
	first, _, _ := strings.Cut(result, ".\n")
	cluster := strings.TrimPrefix(first, "This member is registered as Cluster "+p.namespace+"/")
	p.hub.ClusterCondition(t, p.namespace, cluster, fleet.ConditionConnected, "True")

	// Once more changes nothing, and values of another namespace of the hub are refused.
	for _, file := range []string{good, narrow} {
		result, progress, err = muster(t, "--kubeconfig", kubeconfig, "join", file)
		require.NoError(t, err)
		require.Equal(t, "Nothing was changed.\n", result)
		require.Equal(t, "member: the member is registered as Cluster "+p.namespace+"/"+cluster+" with the hub at "+p.hub.URL()+"\n", progress)
	}
	require.NoError(t, os.WriteFile(wrong, []byte(strings.ReplaceAll(goodValues, "clusterNamespace: "+p.namespace, "clusterNamespace: other")), 0o600))
	_, _, err = muster(t, "join", wrong, "--kubeconfig", kubeconfig)
	require.ErrorContains(t, err, "the member is registered as Cluster "+p.namespace+"/"+cluster+" with the hub at "+p.hub.URL()+", and the values are for namespace other of the hub")

	// The hub rejects the credential of the agent: it gets the values, and keeps waiting for a person on the hub.
	again, _ := p.valuesFile("again")
	p.renew(member, namespace)
	p.mustRun("revoke", cluster, "--yes")
	var rejected *cancelAt
	testenv.Eventually(t, func() (bool, string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		rejected = &cancelAt{text: "s  member: ", cancel: cancel}
		app := App(Streams{Out: &bytes.Buffer{}, Err: rejected, Env: func(string) string { return "" }, Now: time.Now})
		err = app.RunContext(ctx, FlagsFirst(app, []string{"muster", "join", again, "--kubeconfig", kubeconfig}))
		return strings.Contains(rejected.String(), "member: the agent is installed, and the hub rejects its credential of Cluster "+p.namespace+"/"+cluster+"\n"), rejected.String()
	})
	require.Error(t, err)
	require.Contains(t, rejected.String(), "    kubectl --kubeconfig="+kubeconfig+" -n cattle-fleet-system delete secret fleet-agent-bootstrap\n")
}

// renew stores another token of the same ServiceAccount for the agent. The API server of the hub has not seen it: it would accept a token that it has seen
// for up to ten seconds after the credential is revoked.
func (p person) renew(member *testenv.Cluster, namespace string) {
	p.t.Helper()
	secrets := member.Kubernetes.CoreV1().Secrets(namespace)
	secret := testenv.RequireThere(p.t, secrets.Get, registration.CredentialSecret)
	secret.Data[registration.CredentialKubeconfig] = testenv.EditKubeconfig(p.t, secret.Data[registration.CredentialKubeconfig],
		func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
			claims, err := credential.Inspect(credential.Token(user.Token))
			require.NoError(p.t, err)
			user.Token = p.hub.TokenOf(p.t, claims.Namespace, claims.ServiceAccount)
		})
	testenv.Update(p.t, secrets.Update, secret)
}
