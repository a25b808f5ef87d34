package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/check"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// actAsProgram is an environment variable with which the test binary is muster.
const actAsProgram = "TEST_ACTS_AS_MUSTER"

func TestMain(m *testing.M) {
	if os.Getenv(actAsProgram) != "" {
		app := App(Streams{Out: os.Stdout, Err: os.Stderr, Env: os.Getenv, Now: time.Now})
		os.Args = FlagsFirst(app, os.Args)
		os.Exit(launch.Main(app))
	}
	os.Exit(controlplane.RunTests(m))
}

// person is a user of a running hub, with her own namespace.
type person struct {
	t         *testing.T
	hub       *testenv.Cluster
	namespace string
}

func atHub(t *testing.T) person {
	t.Helper()
	hub := testenv.SharedCluster(t, "hub")
	hub.Configure(t, hub.Reachable())
	hub.Hub(t)
	file := filepath.Join(t.TempDir(), "hub.kubeconfig")
	require.NoError(t, os.WriteFile(file, hub.Kubeconfig(), 0o600))
	t.Setenv("KUBECONFIG", file)
	return person{t, hub, hub.Namespace(t)}
}

// run runs a command in the namespace of the person.
func (p person) run(args ...string) (stdout, stderr string, err error) {
	p.t.Helper()
	return muster(p.t, append(args, "-n", p.namespace)...)
}

func (p person) mustRun(args ...string) (stdout string) {
	p.t.Helper()
	stdout, _, err := p.run(args...)
	require.NoError(p.t, err)
	return stdout
}

func memberConfig(t *testing.T, member *testenv.Cluster) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "member.kubeconfig")
	require.NoError(t, os.WriteFile(file, member.Kubeconfig(), 0o600))
	return file
}

// items is a list that a command prints as JSON.
type items[T any] struct{ Items []T }

func TestImport(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	member := testenv.SharedCluster(t, "member")
	agent := registration.DefaultSystemNamespace
	_, err := member.Kubernetes.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agent}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) { // another test may have created it
		require.NoError(t, err)
	}
	member.Agent(t, agent)

	out, progress, err := p.run("import", "east", "--member-kubeconfig", memberConfig(t, member), "--wait", "--timeout", "5m", "--label", "env=prod", "--label", "region=eu")
	require.NoError(t, err)
	require.Equal(t, "Cluster "+p.namespace+"/east created, with Secret east-kubeconfig.\nCluster "+p.namespace+"/east is registered.\n", out)
	require.Contains(t, progress, "s  Registered")

	cluster := testenv.RequireThere(t, p.hub.Fleet.Clusters(p.namespace).Get, "east")
	require.Equal(t, "east-kubeconfig", cluster.Spec.KubeConfigSecret)
	require.Equal(t, map[string]string{"env": "prod", "region": "eu"}, cluster.Labels)
	secret := testenv.RequireThere(t, p.hub.Kubernetes.CoreV1().Secrets(p.namespace).Get, "east-kubeconfig")
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data[registration.KubeconfigValue])
	require.NoError(t, err)
	require.Equal(t, member.URL(), config.Host)

	line := regexp.MustCompile(p.namespace + ` +east +manager +Registered +\S+ +\d/\d +\d+s ago`)
	testenv.Eventually(t, func() (bool, string) {
		shown := p.mustRun("clusters")
		return line.MatchString(shown), shown
	})
	var list items[view.Cluster]
	require.NoError(t, json.Unmarshal([]byte(p.mustRun("clusters", "-o", "json")), &list))
	require.Equal(t, "Registered", list.Items[0].State)
	list = items[view.Cluster]{}
	require.NoError(t, yaml.Unmarshal([]byte(p.mustRun("clusters", "-o", "yaml")), &list))
	require.Equal(t, "east", list.Items[0].Name)
	require.Equal(t, "cluster.fleet.cattle.io/east\n", p.mustRun("clusters", "-o", "name"))
	require.Equal(t, "cluster.fleet.cattle.io/east\n", p.mustRun("describe", "east", "-o", "name"))
	require.Equal(t, "east manager", p.mustRun("clusters", "-o", "jsonpath={.items[*].name} {.items[*].wayIn}"))
	require.Regexp(t, "^"+p.namespace+" +east ", p.mustRun("clusters", "--no-headers"))
	_, _, err = p.run("clusters", "--as", "nobody", "--as-group", "a", "--as-group", "b")
	require.ErrorContains(t, err, `User "nobody" cannot list resource "clusters"`)

	_, _, err = p.run("import", "east", "--member-kubeconfig", memberConfig(t, member))
	require.EqualError(t, err, "Cluster "+p.namespace+"/east already exists: to have the hub install its agent again, run `muster -n "+p.namespace+
		" rotate east`; to import another cluster, choose another name")
}

// The kubeconfig of a cloud names a program that obtains a credential. The command runs it, and gives the hub the token of a ServiceAccount.
func TestImportWithServiceAccount(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	member := testenv.SharedCluster(t, "member")
	namespaces := member.Kubernetes.CoreV1().Namespaces()
	_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: registration.DefaultSystemNamespace}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) { // another test may have created it
		require.NoError(t, err)
	}
	member.Agent(t, registration.DefaultSystemNamespace)
	cloud := cloudConfig(t, member)
	account, err := (&admin.Hub{Kubernetes: p.hub.Kubernetes}).AccountOf(t.Context(), p.namespace, "east")
	require.NoError(t, err)
	elsewhere := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace, UID: "on-another-hub"}})
	other, err := (&admin.Hub{Kubernetes: elsewhere}).AccountOf(t.Context(), p.namespace, "east")
	require.NoError(t, err)
	require.NotEqual(t, account, other)
	bindings, accounts := member.Kubernetes.RbacV1().ClusterRoleBindings(), member.Kubernetes.CoreV1().ServiceAccounts(account.Namespace)

	_, _, err = p.run("import", "east", "--member-kubeconfig", cloud)
	require.ErrorContains(t, err, "authenticates with a program or plugin, which the hub does not have: run the command again with --create-service-account")

	out, said, err := p.run("import", "east", "--member-kubeconfig", cloud, "--create-service-account", "--dry-run")
	require.NoError(t, err)
	require.Equal(t, "Cluster "+p.namespace+"/east would be created, with Secret east-kubeconfig.\n", out)
	rights := "east: ServiceAccount " + account.String() + " on the member gets all rights there (ClusterRole cluster-admin), "
	require.Contains(t, said, rights)
	testenv.RequireGone(t, bindings.Get, "ClusterRoleBinding", account.Name)
	_, err = p.hub.Fleet.Clusters(p.namespace).Get(t.Context(), "east", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))

	// A user of the member without these rights cannot give them, and nothing is created.
	testenv.Create(t, member.Kubernetes.CoreV1().ServiceAccounts(account.Namespace).Create, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "nobody-" + p.namespace},
	})
	powerless := filepath.Join(t.TempDir(), "powerless.yaml")
	require.NoError(t, os.WriteFile(powerless, member.UserKubeconfig(member.TokenOf(t, account.Namespace, "nobody-"+p.namespace)), 0o600))
	_, _, err = p.run("import", "east", "--member-kubeconfig", powerless, "--create-service-account")
	require.ErrorContains(t, err, "ClusterRoleBinding "+account.Name+" on the member: clusterrolebindings.rbac.authorization.k8s.io is forbidden")
	testenv.RequireGone(t, p.hub.Kubernetes.CoreV1().Secrets(p.namespace).Get, "Secret", "east-kubeconfig")

	// What an interrupted command has left is used.
	first, err := account.Ensure(t.Context(), member.Kubernetes, false)
	require.NoError(t, err)
	out, said, err = p.run("import", "--member-kubeconfig", cloud, "east", "--create-service-account", "--wait", "--timeout", "5m")
	require.NoError(t, err, said)
	require.Contains(t, out, "Cluster "+p.namespace+"/east is registered.\n")
	require.Contains(t, said, rights)
	secret := testenv.RequireThere(t, p.hub.Kubernetes.CoreV1().Secrets(p.namespace).Get, "east-kubeconfig")
	stored, err := clientcmd.Load(secret.Data[registration.KubeconfigValue])
	require.NoError(t, err)
	require.Equal(t, map[string]*clientcmdapi.AuthInfo{"cloud": {Token: first, Extensions: map[string]runtime.Object{}}}, stored.AuthInfos)
	_, _, err = p.run("import", "east", "--member-kubeconfig", cloud, "--create-service-account")
	require.ErrorContains(t, err, "Cluster "+p.namespace+"/east already exists")

	p.hub.ClusterCondition(t, p.namespace, "east", fleet.ConditionConnected, "True")
	out, _, err = p.run("remove", "east")
	require.Error(t, err)
	require.Contains(t, out, "\nServiceAccount "+account.String()+", with which the hub connects to the member, remains there, bound to ClusterRole cluster-admin, unless you pass --member-kubeconfig.\n")
	clusters := p.hub.Fleet.Clusters(p.namespace)
	testenv.Merge(t, clusters.Patch, "east", `{"metadata":{"annotations":{"`+fleet.MemberAccountAnnotation+`":"`+other.String()+`"}}}`)
	_, _, err = p.run("remove", "east", "--yes", "--member-kubeconfig", cloud)
	require.ErrorContains(t, err, "names ServiceAccount \""+other.String()+"\", but muster import creates "+account.String())
	require.Nil(t, testenv.RequireThere(t, clusters.Get, "east").DeletionTimestamp)
	testenv.Merge(t, clusters.Patch, "east", `{"metadata":{"annotations":{"`+fleet.MemberAccountAnnotation+`":"`+account.String()+`"}}}`)
	out = p.mustRun("remove", "east", "--yes", "--member-kubeconfig", cloud, "--timeout", "5m")
	require.Contains(t, out, "\nServiceAccount "+account.String()+" is removed from the member.\n")
	testenv.RequireGone(t, bindings.Get, "ClusterRoleBinding", account.Name)
	testenv.RequireGone(t, accounts.Get, "ServiceAccount", account.Name)
	testenv.RequireGone(t, member.Kubernetes.CoreV1().Secrets(account.Namespace).Get, "Secret", account.Name)
}

// cloudConfig is a kubeconfig with a program that prints the credential of the administrator of a member.
func cloudConfig(t *testing.T, member *testenv.Cluster) string {
	t.Helper()
	config, err := clientcmd.Load(member.Kubeconfig())
	require.NoError(t, err)
	require.NoError(t, clientcmdapi.MinifyConfig(config))
	current := config.Contexts[config.CurrentContext]
	user := config.AuthInfos[current.AuthInfo]
	credential, err := json.Marshal(clientauthenticationv1.ExecCredential{
		TypeMeta: metav1.TypeMeta{APIVersion: clientauthenticationv1.SchemeGroupVersion.String(), Kind: "ExecCredential"},
		Status: &clientauthenticationv1.ExecCredentialStatus{
			Token: user.Token, ClientCertificateData: string(user.ClientCertificateData), ClientKeyData: string(user.ClientKeyData),
		},
	})
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "cloud-login")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\ncat <<'END'\n"+string(credential)+"\nEND\n"), 0o700))
	current.AuthInfo = "cloud"
	config.AuthInfos = map[string]*clientcmdapi.AuthInfo{"cloud": {Exec: &clientcmdapi.ExecConfig{
		APIVersion: clientauthenticationv1.SchemeGroupVersion.String(), Command: program, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}}
	file := filepath.Join(t.TempDir(), "cloud.yaml")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	return file
}

func TestImportKeepsAnExistingSecret(t *testing.T) {
	p := atHub(t)
	p.hub.WriteSecret(t, p.namespace, "east-kubeconfig", map[string][]byte{"value": []byte("precious")})
	_, _, err := p.run("import", "east", "--member-kubeconfig", memberConfig(t, p.hub))
	require.ErrorContains(t, err, "Secret "+p.namespace+"/east-kubeconfig already exists")
	secret := testenv.RequireThere(t, p.hub.Kubernetes.CoreV1().Secrets(p.namespace).Get, "east-kubeconfig")
	require.Equal(t, "precious", string(secret.Data["value"]))
	_, err = p.hub.Fleet.Clusters(p.namespace).Get(t.Context(), "east", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

// If some of several clusters cannot be imported, the others are imported nevertheless.
func TestImportOfMany(t *testing.T) {
	p := atHub(t)
	dir, good := t.TempDir(), p.hub.Kubeconfig()
	for name, content := range map[string]string{"a.yaml": string(good), "b.kubeconfig": string(good), "broken.yaml": "{", "UP.yaml": string(good), ".hidden": ""} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	names := func() string {
		return strings.Join(strings.Fields(p.mustRun("clusters", "-o", "jsonpath={.items[*].name}")), " ")
	}

	out, _, err := p.run("import", "--from-dir", dir, "--dry-run")
	require.EqualError(t, err, "2 of 4 clusters could not be imported")
	require.Regexp(t, `(?m)^a +\S+a.yaml +- +Checked +-$`, out)
	require.Empty(t, names(), "it was a dry run")

	out, _, err = p.run("import", "--from-dir", dir, "--label", "env=prod")
	require.EqualError(t, err, "2 of 4 clusters could not be imported")
	require.Regexp(t, `(?m)^b +\S+b.kubeconfig +- +Created +-$`, out)
	require.Regexp(t, `(?m)^broken +\S+broken.yaml +- +Failed +\S+ is not a kubeconfig`, out)
	require.Regexp(t, `(?m)^UP +\S+UP.yaml +- +Failed +"UP" is not a valid object name`, out)
	require.Equal(t, "a b", names())

	contexts := writeConfig(t, func(_ string, config *clientcmdapi.Config) {
		config.Contexts["other"] = config.Contexts["ctx"]
	})
	out = p.mustRun("import", "--member-kubeconfig", contexts, "--member-context", "ctx", "--member-context", "other")
	require.Regexp(t, `(?m)^other +\S+ +other +Created +-$`, out)
	require.Contains(t, out, "To see the state: muster -n "+p.namespace+" clusters -o wide\n")
	require.Equal(t, "a b ctx other", names())
}

func TestMissingNamespace(t *testing.T) {
	p := atHub(t)
	p.namespace = "nowhere"
	_, _, err := p.run("import", "east", "--member-kubeconfig", memberConfig(t, p.hub))
	require.ErrorContains(t, err, "create it with `kubectl create namespace nowhere`")
	_, _, err = p.run("token", "create", "t")
	require.ErrorContains(t, err, "create it with `kubectl create namespace nowhere`")
}

// --kubeconfig selects the hub after the command, too. It never names the member, so that a forgotten flag does not import the hub.
func TestImportWithTwoKubeconfigs(t *testing.T) {
	p := atHub(t)
	hub := os.Getenv("KUBECONFIG")
	t.Setenv("KUBECONFIG", "/nowhere")
	_, _, err := muster(t, "import", "east", "--kubeconfig", hub, "-n", p.namespace)
	require.ErrorContains(t, err, "no cluster to import")
	_, _, err = muster(t, "import", "east", "--kubeconfig", hub, "--member-kubeconfig", memberConfig(t, testenv.SharedCluster(t, "member")), "-n", p.namespace)
	require.NoError(t, err)
	testenv.RequireThere(t, p.hub.Fleet.Clusters(p.namespace).Get, "east")
}

func TestTokens(t *testing.T) {
	p := atHub(t)
	out := p.mustRun("token", "create", "west", "--timeout", "5m", "--ttl", "2h", "--chart", "oci://example.com/agent")
	require.Contains(t, out, "Token "+p.namespace+"/west is ready")
	require.Contains(t, out, "fleet-agent oci://example.com/agent")
	token := testenv.RequireThere(t, p.hub.Fleet.ClusterRegistrationTokens(p.namespace).Get, "west")
	require.Equal(t, 2*time.Hour, token.Spec.TTL.Duration)

	_, _, err := p.run("token", "create", "west")
	require.ErrorContains(t, err, "already exists")
	require.Regexp(t, p.namespace+` +west +2h0m0s +in \S+ +0 +west +Ready`, p.mustRun("token", "list"))
	var all items[view.Token]
	require.NoError(t, json.Unmarshal([]byte(p.mustRun("token", "list", "-A", "-o", "json")), &all))
	require.NotEmpty(t, all.Items)
	completed, _, err := muster(t, "__complete", "--namespace", p.namespace, "token", "revoke", "we")
	require.NoError(t, err)
	require.Equal(t, "west\n", completed)
	completed, _, err = muster(t, "__complete", "clusters", "-n", p.namespace[:len(p.namespace)-1])
	require.NoError(t, err)
	require.Contains(t, completed, p.namespace+"\n")

	require.Contains(t, p.mustRun("token", "revoke", "west"), "is revoked")
	_, _, err = p.run("token", "revoke", "west")
	require.ErrorContains(t, err, "there is no ClusterRegistrationToken "+p.namespace+"/west")
}

func TestBearerTokensArePrintedOnRequestOnly(t *testing.T) {
	p := atHub(t)
	values, _, err := p.run("token", "create", "loud", "--timeout", "5m", "-o", "values", "--ttl", "0")
	require.NoError(t, err)
	decoded, err := registration.DecodeValues([]byte(values))
	require.NoError(t, err)
	require.NotEmpty(t, decoded.Token)
	require.Equal(t, p.namespace, decoded.Workspace)
	token := testenv.RequireThere(t, p.hub.Fleet.ClusterRegistrationTokens(p.namespace).Get, "loud")
	require.Nil(t, token.Spec.TTL, "0 means that it does not expire")

	for _, args := range [][]string{
		{"token", "create", "quiet1", "--timeout", "5m"},
		{"token", "create", "quiet2", "--timeout", "5m", "-o", "json"},
		{"token", "create", "quiet3", "--timeout", "5m", "-o", "yaml"},
		{"token", "list", "-o", "json"},
		{"token", "list", "-o", "wide"},
	} {
		out := p.mustRun(args...)
		require.NotContains(t, out, "eyJ", "%v: the first characters of a token", args)
	}
}

func TestTokenForClusternetIsRefused(t *testing.T) {
	p := atHub(t)
	out, _, err := p.run("token", "create", "west", "-o", "clusternet")
	require.EqualError(t, err, "the hub does not serve Clusternet agents: set the value clusternet.enabled=true of its chart, and run the command again")
	require.Empty(t, out)
	_, err = p.hub.Fleet.ClusterRegistrationTokens(p.namespace).Get(t.Context(), "west", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "no token is created")
}

func TestNotAHub(t *testing.T) {
	file := memberConfig(t, testenv.SharedCluster(t, "member"))
	for _, args := range [][]string{{"clusters"}, {"token", "list"}} {
		_, _, err := muster(t, append(args, "--kubeconfig", file)...)
		require.ErrorContains(t, err, "is this a hub?")
	}
}

func TestEmptyLists(t *testing.T) {
	p := atHub(t)
	out, said, err := p.run("clusters")
	require.NoError(t, err)
	require.Empty(t, out)
	require.Equal(t, "No clusters in namespace "+p.namespace+" (-A for all).\n", said)
	require.JSONEq(t, `{"apiVersion": "v1", "kind": "List", "items": []}`, p.mustRun("token", "list", "-o", "json"))
}

// The control plane serves the kinds of a hub, but no hub holds the Lease.
func TestCheck(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	hub.Configure(t, hub.Reachable())
	file := memberConfig(t, hub)
	exitCode := func(err error) int {
		var exit cli.ExitCoder
		require.ErrorAs(t, err, &exit)
		require.Empty(t, err.Error(), "the output says everything")
		return exit.ExitCode()
	}
	out, _, err := muster(t, "check", "--kubeconfig", file)
	require.Equal(t, check.ExitFailed, exitCode(err))
	require.Regexp(t, `^Failed: Hub \(hub-runs\): Lease cattle-fleet-system/fleet-agentmanagement-lock does not exist: no hub has run here\n`, out)

	out, _, err = muster(t, "--kubeconfig", file, "check", "-o", "json")
	require.Equal(t, check.ExitFailed, exitCode(err))
	var d check.Diagnosis
	require.NoError(t, json.Unmarshal([]byte(out), &d))
	require.Equal(t, check.Fail, d.Result)

	out, _, err = muster(t, "check", "--member", "--member-kubeconfig", memberConfig(t, testenv.SharedCluster(t, "member")))
	require.Equal(t, check.ExitFailed, exitCode(err))
	require.Contains(t, out, "Failed: Agent on the member (agent-namespace): Namespace cattle-fleet-system does not exist")
}

// actsAsViewer continues as an account that may read objects of the hub in the namespace of the person, and nothing else.
func (p person) actsAsViewer() {
	p.t.Helper()
	ctx, name := p.t.Context(), metav1.ObjectMeta{Name: "viewer", Namespace: p.namespace}
	_, err := p.hub.Kubernetes.CoreV1().ServiceAccounts(p.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: name}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	_, err = p.hub.Kubernetes.RbacV1().Roles(p.namespace).Create(ctx, &rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"fleet.cattle.io"}, Resources: []string{"*"}},
	}}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	_, err = p.hub.Kubernetes.RbacV1().RoleBindings(p.namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "viewer"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.namespace, Name: "viewer"}},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	token := p.hub.TokenOf(p.t, p.namespace, "viewer")
	testenv.RequireMay(p.t, p.hub, token, testenv.To("list", "clusters.fleet.cattle.io", p.namespace, ""))
	file := filepath.Join(p.t.TempDir(), "viewer.kubeconfig")
	kubeconfig := testenv.EditKubeconfig(p.t, p.hub.Kubeconfig(), func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
		*user = clientcmdapi.AuthInfo{Token: token}
	})
	require.NoError(p.t, os.WriteFile(file, kubeconfig, 0o600))
	p.t.Setenv("KUBECONFIG", file)
}

func TestUI(t *testing.T) {
	file := memberConfig(t, testenv.SharedCluster(t, "hub"))
	ctx, cancel := context.WithCancel(t.Context())
	printed, out := io.Pipe()
	ended := make(chan error, 1)
	app := App(Streams{Out: out, Err: io.Discard, Env: func(string) string { return "" }, Now: time.Now})
	go func() {
		err := app.RunContext(ctx, FlagsFirst(app, []string{"muster", "--kubeconfig", file, "ui", "-n", "ns"}))
		out.CloseWithError(err)
		ended <- err
	}()
	address, err := bufio.NewReader(printed).ReadString('\n')
	require.NoError(t, err)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	response, err := (&http.Client{Jar: jar}).Get(strings.TrimSpace(address))
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), ", namespace ns</span>")
	cancel()
	require.NoError(t, <-ended, "Ctrl-C is how it ends")

	_, _, err = muster(t, "ui", "--kubeconfig", file, "--address", "0.0.0.0:8080")
	require.ErrorContains(t, err, `the address "0.0.0.0:8080" must be 127.0.0.1:PORT`)
}
