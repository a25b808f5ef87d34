package cli

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/crds"
	"github.com/muster-fleet/muster/pkg/registration"
)

// muster runs the program with the arguments that a shell would pass.
func muster(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	app := App(Streams{Out: &out, Err: &errs, Env: func(string) string { return "" }, Now: time.Now})
	err = app.RunContext(t.Context(), FlagsFirst(app, append([]string{"muster"}, args...)))
	return out.String(), errs.String(), err
}

func TestFlagsFirst(t *testing.T) {
	tests := map[string]string{
		"muster":                "muster",
		"muster clusters -A":    "muster clusters -A",
		"muster -n ns clusters": "muster -n ns clusters",
		"muster import east --kubeconfig f --wait":        "muster import --kubeconfig f --wait east",
		"muster --kubeconfig h import a --wait --label x": "muster --kubeconfig h import --wait --label x a",
		"muster import east --kubeconfig=f x":             "muster import --kubeconfig=f east x",
		"muster token create t --ttl 1h -o values":        "muster token create --ttl 1h -o values t",
		"muster token --help":                             "muster token --help",
		"muster import -- -odd --wait":                    "muster import -- -odd --wait",
		"muster import --wait east -- more":               "muster import --wait -- east more",
		"muster import east --kubeconfig":                 "muster import --kubeconfig east",
		"muster bogus --flag x":                           "muster --flag bogus x",
		"muster clusters - -A":                            "muster clusters -A -",
	}
	app := App(Streams{})
	for line, want := range tests {
		assert.Equal(t, strings.Fields(want), FlagsFirst(app, strings.Fields(line)), line)
	}
	assert.Empty(t, FlagsFirst(app, nil))
}

func TestInvalidCommandLines(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "none")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	t.Setenv("KUBECONFIG", empty)
	tests := map[string]string{
		"bogus":                                  `there is no command "bogus"; see --help`,
		"token bogus":                            `there is no command "bogus"; see --help`,
		"clusters --bogus":                       "flag provided but not defined: -bogus; see --help",
		"clusters --state Lost":                  `--state is "Lost": it must be one of Registered, ManagedElsewhere,`,
		"clusters --sort size":                   `--sort is "size": it must be one of last-seen, name, state`,
		"clusters -l a=b=c":                      "--selector: ",
		"clusters -o xml":                        `--output is "xml": it must be one of wide, name, json, yaml, jsonpath=TEMPLATE`,
		"clusters -o jsonpath={":                 "error parsing jsonpath {",
		"clusters --request-timeout soon":        "Invalid timeout value",
		"clutsers":                               `there is no command "clutsers"; see --help. Did you mean "clusters"?`,
		"zzz":                                    `there is no command "zzz"; see --help`,
		"crds --z":                               "flag provided but not defined: -z; see --help",
		"helo":                                   `there is no command "helo"; see --help`,
		"token lsit":                             `Did you mean "list"?`,
		"clusters --selecter x":                  `flag provided but not defined: -selecter; see --help. Did you mean "--selector"?`,
		"clusters --request-timeot 1s":           `Did you mean "--request-timeout"?`,
		"clusters -o values":                     `--output is "values"`,
		"clusters":                               "cannot connect to the hub: pass --kubeconfig, or set KUBECONFIG",
		"--kubeconfig /nowhere clusters":         "/nowhere",
		"clusters --context nobody":              `context "nobody" does not exist`,
		"import":                                 "import needs exactly one argument, the NAME of the cluster, and got 0",
		"import a b --member-kubeconfig x":       "and got 2",
		"import a":                               "no cluster to import: pass its kubeconfig: muster import NAME --member-kubeconfig FILE",
		"import UP --member-kubeconfig /nowhere": `"UP" is not a valid object name`,
		"import a --member-kubeconfig /nowhere":  "kubeconfig of the cluster to import: open /nowhere",

		"import a --from-dir /nowhere":                                         "--from-dir cannot be combined with NAME, --member-kubeconfig or --member-context",
		"import --from-dir /nowhere":                                           "--from-dir: open /nowhere",
		"import a --member-kubeconfig x --member-context b --member-context c": `several clusters are named after their contexts: omit "a"`,

		"import a --member-kubeconfig /x --label novalue": `--label "novalue": write it as KEY=VALUE`,
		"import a --member-kubeconfig /x --label a/b/c=1": `--label "a/b/c=1" is not a valid label`,

		"token create --cluster c": "cannot connect to the hub",
		"token create":             "token create needs exactly one argument, the NAME of the token",
		"token create t --ttl -1h": "--ttl is -1h0m0s: it must not be negative",
		"token create t --ttl 1d":  "ttl",
		"token create UP":          `"UP" is not a valid object name`,

		"token create t --usage-limit 0":                   "--usage-limit is 0: it must be between 1 and 2147483647",
		"token create t --usage-limit 2147483648":          "--usage-limit is 2147483648",
		"token create t --usage-limit x":                   "usage-limit",
		"token create t --approval Maybe":                  `--approval is "Maybe": it must be Auto or Manual`,
		"token create t --long-lived-credentials No":       `--long-lived-credentials is "No": it must be Allow or Refuse`,
		"token create t --client-id-pattern a[":            `--client-id-pattern "a[": syntax error in pattern`,
		"token create t --cluster c --client-id x":         "--cluster determines which ID the token can register",
		"token create t --cluster c --client-id-pattern x": "--cluster determines which ID the token can register",
		"token create t --label novalue":                   `--label "novalue": write it as KEY=VALUE`,

		"requests x":                             `requests takes no argument "x"`,
		"approve":                                "approve needs exactly one argument, the name of the REQUEST, or of the CLUSTER it is about, and got 0",
		"approve a b":                            "and got 2",
		"deny":                                   "deny needs exactly one argument",
		"quarantine":                             "quarantine needs exactly one argument, the name of the CLUSTER",
		"release a b":                            "release needs exactly one argument",
		"describe":                               "describe needs exactly one argument, the name of the CLUSTER, or of a request, and got 0",
		"describe a -o wide":                     `--output is "wide": it must be one of name, json, yaml`,
		"join":                                   "join needs exactly one argument, the VALUES-FILE, or - for the standard input, and got 0",
		"join /nowhere":                          "reading the values: open /nowhere",
		"remove":                                 "remove needs exactly one argument, the name of the CLUSTER, and got 0",
		"report a b":                             "report needs at most one argument, the name of the CLUSTER, and got 2",
		"rotate a b":                             "rotate needs exactly one argument, the name of the CLUSTER, and got 2",
		"rotate a --member-kubeconfig /nowhere":  "--member-kubeconfig: ",
		"revoke":                                 "revoke needs exactly one argument, the name of the CLUSTER",
		"revoke a":                               "cannot connect to the hub",
		"deny a -m " + strings.Repeat("x", 1025): "--message has more than 1024 characters",
		"token revoke":                           "token revoke needs exactly one argument",
		"token list x":                           `takes no argument "x"`,
		"crds x":                                 `crds takes no argument "x"`,
		"demo x":                                 `demo takes no argument "x"`,
		"ui x":                                   `ui takes no argument "x"`,
		"ui":                                     "cannot connect to the hub",
	}
	for line, want := range tests {
		t.Run(line, func(t *testing.T) {
			out, _, err := muster(t, strings.Fields(line)...)
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), `Did you mean ""`)
			require.Empty(t, out, "an error is one line, not the help")
		})
	}
}

// In a pipe, the command before has printed its error, and no values.
func TestJoin_withoutValues(t *testing.T) {
	app := App(Streams{In: strings.NewReader("\n"), Out: io.Discard, Err: io.Discard, Env: func(string) string { return "" }, Now: time.Now})
	err := app.RunContext(t.Context(), FlagsFirst(app, []string{"muster", "join", "-"}))
	require.EqualError(t, err, "the standard input is empty: the command before the pipe has printed no values, and its error is above")

	empty := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	_, _, err = muster(t, "join", empty)
	require.EqualError(t, err, empty+" is empty: store the output of `muster token create NAME -o values` in it")
}

func TestHelp(t *testing.T) {
	for _, line := range []string{"", "--help", "token", "import --help"} {
		out, _, err := muster(t, strings.Fields(line)...)
		require.NoError(t, err)
		require.Contains(t, out, "USAGE:", line)
	}
}

func TestCRDs(t *testing.T) {
	out, _, err := muster(t, "crds")
	require.NoError(t, err)
	require.Equal(t, string(crds.YAML()), out)

	out, _, err = muster(t, "crds", "--clusternet")
	require.NoError(t, err)
	require.Equal(t, string(crds.ClusternetYAML()), out)
}

// printed returns the output of a command for summaries, without the spaces that align the columns.
func printed[T any](t *testing.T, table columns[T], items []T, format string, now time.Time) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, table.in(format, false, Streams{Out: &out, Now: func() time.Time { return now }}).list(items))
	return regexp.MustCompile(" +").ReplaceAllString(out.String(), " ")
}

func TestClusterTable(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clusters := []view.Cluster{
		{Namespace: "fleet-local", Name: "local", WayIn: "local", State: "Registered", Bundles: "2/2", Agent: "v1", Kubernetes: "v1.36.3", LastSeen: &metav1.Time{Time: now.Add(-5 * time.Second)}},
		{Namespace: "ns", Name: "east", WayIn: "manager", State: "ImportFailed", Reason: "Unreachable", Message: "no\nroute"},
	}
	narrow, wide := printed(t, clusterColumns, clusters, "", now), printed(t, clusterColumns, clusters, "wide", now)
	require.Equal(t, `NAMESPACE NAME WAY-IN STATE REASON BUNDLES LAST-SEEN
fleet-local local local Registered - 2/2 5s ago
ns east manager ImportFailed Unreachable - -
`, narrow)
	require.Contains(t, wide, "LAST-SEEN SETTINGS UNAPPLIED KUBERNETES AGENT MESSAGE\n")
	require.Contains(t, wide, "5s ago - 0 v1.36.3 v1 -\n")
	require.Contains(t, wide, "Unreachable - - - 0 - - no route\n")
}

// With --watch, an object is printed as soon as it changes, in each format.
func TestListingInParts(t *testing.T) {
	east, west := view.Cluster{Namespace: "ns", Name: "east", State: "Registered"}, view.Cluster{Namespace: "ns", Name: "west", State: "Offline"}
	for format, want := range map[string]string{
		"":                   "NAMESPACE   NAME   WAY-IN   STATE        REASON   BUNDLES   LAST-SEEN\nns          east   -        Registered   -        -         -\nns          west   -        Offline      -        -         -\n",
		"name":               "cluster.fleet.cattle.io/east\ncluster.fleet.cattle.io/west\n",
		"jsonpath={.state},": "Registered,Offline,",
		"json": `{
    "apiVersion": "fleet.cattle.io/v1alpha1",
    "kind": "Cluster",
    "metadata": {
        "name": "east",
        "namespace": "ns"
    },
    "name": "east",
    "namespace": "ns",
    "state": "Registered",
    "wayIn": ""
}
{
    "apiVersion": "fleet.cattle.io/v1alpha1",
    "kind": "Cluster",
    "metadata": {
        "name": "west",
        "namespace": "ns"
    },
    "name": "west",
    "namespace": "ns",
    "state": "Offline",
    "wayIn": ""
}
`,
	} {
		var out bytes.Buffer
		l := clusterColumns.in(format, false, Streams{Out: &out, Now: time.Now})
		require.NoError(t, l.each(east))
		require.NoError(t, l.each(west))
		require.Equal(t, want, out.String(), format)
	}
	require.NotContains(t, printed(t, clusterColumns, []view.Cluster{east}, "wide", time.Now()), "...")
	var out bytes.Buffer
	require.NoError(t, clusterColumns.in("", true, Streams{Out: &out, Now: time.Now}).list([]view.Cluster{east}))
	require.NotContains(t, out.String(), "NAMESPACE")
}

// If a connection flag is given before and after the command, the one after it counts, even if the help of the command does not list it.
func TestConnectionFlags(t *testing.T) {
	app := App(Streams{})
	var got kubeConnection
	app.Commands = []*cli.Command{{Name: "try", Flags: hubFlags(), Action: func(c *cli.Context) (err error) {
		got, err = given(c.Lineage())
		return err
	}}}
	line := strings.Fields("muster --context a --as me --as-group g1 -n x try --context b --as-group g2 --as-group g3 --insecure-skip-tls-verify -n y")
	require.NoError(t, app.RunContext(t.Context(), FlagsFirst(app, line)))
	require.Equal(t, []any{"b", "me", []string{"g2", "g3"}, true, "y", "0"},
		[]any{*got.Context, *got.Impersonate, *got.ImpersonateGroup, *got.Insecure, *got.Namespace, *got.Timeout})
	require.Equal(t, "muster --as=me --as-group=g2 --as-group=g3 --context=b --insecure-skip-tls-verify=true -n 'a b' check", got.command("a b", "check"))

	config, namespace, err := load(got)
	require.ErrorContains(t, err, `context "b" does not exist`)
	require.Nil(t, config)
	require.Empty(t, namespace)
	*got.KubeConfig, *got.Context, *got.Timeout = writeConfig(t, nil), "ctx", "7s"
	config, namespace, err = load(got)
	require.NoError(t, err)
	require.Equal(t, "y", namespace)
	require.Equal(t, "me", config.Impersonate.UserName)
	require.Equal(t, 7*time.Second, config.Timeout)
}

func TestTotals(t *testing.T) {
	require.Equal(t, "0 clusters", totals(nil))
	require.Equal(t, "3 clusters: 2 Registered, 1 Offline; 1 with pending settings, 2 with unapplied Bundles", totals([]view.Cluster{
		{State: "Offline", Unapplied: 3}, {State: "Registered", Settings: "Pending", Unapplied: 1}, {State: "Registered", Settings: "Applied"},
	}))
	require.Equal(t, "2 clusters: 2 Registered; 1 with Bundles that are not ready", totals([]view.Cluster{{State: "Registered", NotReady: true}, {State: "Registered"}}))
}

func TestTokenTable(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	out := printed(t, tokenColumns, []view.Token{
		{Namespace: "ns", Name: "a", TTL: "24h0m0s", Expires: &metav1.Time{Time: now.Add(24 * time.Hour)}, Secret: "a", State: "Ready"},
		{Namespace: "ns", Name: "b", State: "Failed", Reason: "TTLRequired"},
	}, "", now)
	require.Equal(t, `NAMESPACE NAME TTL EXPIRES USES SECRET STATE REASON
ns a 24h0m0s in 24h 0 a Ready -
ns b - never 0 - Failed TTLRequired
`, out)
}

func TestWideTokenTable(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	out := printed(t, tokenColumns, []view.Token{
		{Namespace: "ns", Name: "a", State: "UsedUp", Uses: 2, UsageLimit: ptr.To(int32(2)), LastUsed: &metav1.Time{Time: now.Add(-time.Hour)}, LastCluster: "east", ClientIDs: []string{"x", "y"}, ClientIDPattern: "z-*"},
		{Namespace: "ns", Name: "b", State: "Ready", ClientIDs: []string{strings.Repeat("long", 20)}},
		{Namespace: "ns", Name: "c", State: "Ready", Uses: 7},
	}, "wide", now)
	require.Equal(t, `NAMESPACE NAME TTL EXPIRES USES SECRET STATE REASON LAST-USED LAST-CLUSTER FOR MESSAGE
ns a - never 2/2 - UsedUp - 60m ago east x,y,z-* -
ns b - never 0 - Ready - - - longlonglonglonglonglonglonglonglonglon… -
ns c - never 7 - Ready - - - any -
`, out)
}

func TestRequestTable(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	requests := []view.Request{
		{Namespace: "ns", Name: "request-a", Cluster: "cluster-1", ClientID: "id", Token: "tok", Creator: "system:serviceaccount:ns:tok-1", State: "Waiting", Reason: "WaitingForApproval", Message: "waits", Created: &metav1.Time{Time: now.Add(-3 * time.Minute)}},
		{Namespace: "ns", Name: "request-b", Cluster: "east", ClientID: strings.Repeat("é", 50), State: "Refused", Reason: "ClientIDInUse"},
	}
	narrow, wide := printed(t, requestColumns, requests, "", now), printed(t, requestColumns, requests, "wide", now)
	require.Equal(t, `NAMESPACE NAME CLUSTER TOKEN STATE REASON CREATED
ns request-a cluster-1 tok Waiting WaitingForApproval 3m ago
ns request-b east - Refused ClientIDInUse -
`, narrow)
	require.Contains(t, wide, "id system:serviceaccount:ns:tok-1 - waits\n")
	require.Contains(t, wide, strings.Repeat("é", 39)+"…")
}

func TestInstructions(t *testing.T) {
	to := newConnection()
	require.NoError(t, to.flags.Parse([]string{"--context=hub 1", "--as=me", "-n=other"}))
	var out bytes.Buffer
	printInstructions(&out, to, view.Token{Namespace: "ns", Name: "tok", Secret: "tok"}, "oci://example.com/fleet-agent", "v1.2.3", time.Now())
	for _, line := range []string{
		"     kubectl --as=me '--context=hub 1' -n ns get secret tok -o 'jsonpath={.data.values}' | base64 -d > values.yaml\n",
		"     helm -n cattle-fleet-system install --create-namespace --wait --values values.yaml fleet-agent oci://example.com/fleet-agent --version 1.2.3\n",
		"     muster --as=me '--context=hub 1' -n ns clusters\n",
		"expires never",
	} {
		require.Contains(t, out.String(), line)
	}

	// A chart in a directory has only one version.
	out.Reset()
	printInstructions(&out, to, view.Token{}, "charts/fleet-agent", "v1.2.3", time.Now())
	require.NotContains(t, out.String(), "--version")
}

func TestClusternetSecret(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	token := view.Token{Namespace: "ns", Name: "tok", Secret: "tok", Expires: &metav1.Time{Time: now.Add(24 * time.Hour)}}
	values, err := registration.EncodeValues(registration.Values{APIServerURL: "https://hub.example.com:6443", Token: "the.bearer.token"})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, printClusternetSecret(&out, token, values, now))
	require.Equal(t, `# Token ns/tok; it expires in 24h. This is a secret with which clusters can be registered.
# Apply it on the cluster to register, in the namespace of its Clusternet agent, and restart the agent, which reads it only then:
#
#     kubectl apply -f FILE
#     kubectl -n clusternet-system rollout restart deployment
#
# For an agent without this Secret, they are the arguments --cluster-reg-parent-url and --cluster-reg-token.
apiVersion: v1
kind: Secret
metadata:
  name: clusternet-agent-cluster-registration
  namespace: clusternet-system
type: Opaque
stringData:
  parentURL: "https://hub.example.com:6443"
  regToken: "the.bearer.token"
`, out.String())

	require.EqualError(t, printClusternetSecret(&out, token, []byte("{"), now), "Secret ns/tok of the token: the values are not valid YAML, or contain an alias")
}

func TestProgressLine(t *testing.T) {
	v := view.Cluster{State: "WaitingForAgent", Reason: "WaitingForAgent", Message: "no agent yet"}
	assert.Equal(t, "   1.5 s  WaitingForAgent: no agent yet", progressLine(v, 1500*time.Millisecond))
	v.Reason = "Unreachable"
	assert.Equal(t, "   0.0 s  WaitingForAgent (Unreachable): no agent yet", progressLine(v, 0))
	assert.Equal(t, "   0.0 s  Registered", progressLine(view.Cluster{State: "Registered"}, 0))
	v.Message = "\x1b]52;c;eA==\a\u202enone"
	assert.Equal(t, "   0.0 s  WaitingForAgent (Unreachable):  ]52;c;eA==  none", progressLine(v, 0))
}

func TestPlainLog(t *testing.T) {
	line, err := PlainLog{}.Format(&logrus.Entry{Message: "no way\n"})
	require.NoError(t, err)
	require.Equal(t, "muster: no way\n", string(line))

	line, err = PlainLog{}.Format(&logrus.Entry{Message: "it names \x1b[2J\u200bx:\n  a\r\n\n- b"})
	require.NoError(t, err)
	require.Equal(t, "muster: it names  [2J x:\n  a\n\n- b\n", string(line))
}

// writeConfig writes a kubeconfig with one context "ctx" and changes to it.
func writeConfig(t *testing.T, change func(dir string, c *clientcmdapi.Config)) string {
	t.Helper()
	dir := t.TempDir()
	c := clientcmdapi.NewConfig()
	c.Clusters["cl"] = &clientcmdapi.Cluster{Server: "https://x"}
	c.AuthInfos["me"] = &clientcmdapi.AuthInfo{Token: "secret"}
	c.Contexts["ctx"] = &clientcmdapi.Context{Cluster: "cl", AuthInfo: "me"}
	c.CurrentContext = "ctx"
	if change != nil {
		change(dir, c)
	}
	file := filepath.Join(dir, "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*c, file))
	return file
}

func TestSelfContainedKubeconfig(t *testing.T) {
	file := writeConfig(t, func(dir string, c *clientcmdapi.Config) {
		for name, content := range map[string]string{"ca.crt": "CA", "me.crt": "CERT", "me.key": "KEY", "token": "TOKEN\n"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
		c.Clusters["cl"].CertificateAuthority = "ca.crt"
		c.AuthInfos["me"] = &clientcmdapi.AuthInfo{ClientCertificate: "me.crt", ClientKey: "me.key", TokenFile: "token"}
		c.Clusters["other"] = &clientcmdapi.Cluster{Server: "https://other"}
		c.AuthInfos["other"] = &clientcmdapi.AuthInfo{Token: "another token"}
		c.Contexts["other"] = &clientcmdapi.Context{Cluster: "other", AuthInfo: "other"}
	})
	data, err := selfContained(file, "", nil)
	require.NoError(t, err)
	require.NotContains(t, string(data), "another token", "only one context is sent to the hub")
	config, err := clientcmd.Load(data)
	require.NoError(t, err)
	require.Len(t, config.Clusters, 1)
	require.Equal(t, "CA", string(config.Clusters["cl"].CertificateAuthorityData))
	me := config.AuthInfos["me"]
	require.Equal(t, []string{"CERT", "KEY", "TOKEN", ""}, []string{string(me.ClientCertificateData), string(me.ClientKeyData), me.Token, me.TokenFile})
	other, err := selfContained(file, "other", nil)
	require.NoError(t, err)
	require.Contains(t, string(other), "https://other")
}

func TestUnusableKubeconfig(t *testing.T) {
	type config = clientcmdapi.Config
	tests := map[string]struct {
		change func(string, *config)
		want   string
	}{
		"no current context": {func(_ string, c *config) { c.CurrentContext = "" }, "has no current context: name one with --member-context (its contexts: ctx)"},
		"no context at all":  {func(_ string, c *config) { c.CurrentContext, c.Contexts = "", nil }, "(its contexts: none)"},
		"a missing context":  {func(_ string, c *config) { c.CurrentContext = "x" }, `has no context "x" (its contexts: ctx)`},
		"a missing cluster":  {func(_ string, c *config) { c.Clusters = nil }, `context "ctx" names cluster "cl", which it does not contain`},
		"a missing user":     {func(_ string, c *config) { c.AuthInfos = nil }, `context "ctx" names user "me", which it does not contain`},
		"a missing file":     {func(_ string, c *config) { c.Clusters["cl"].CertificateAuthority = "ca.crt" }, "a file that it refers to"},
		"a missing token":    {func(_ string, c *config) { c.AuthInfos["me"] = &clientcmdapi.AuthInfo{TokenFile: "t"} }, "its token file"},
		"a login program": {func(_ string, c *config) {
			c.AuthInfos["me"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{Command: "aws", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: "Never"}}
		}, `user "me" authenticates with a program or plugin, which the hub does not have`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := selfContained(writeConfig(t, test.change), "", nil)
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), "secret")
		})
	}
}

func TestImportOfAFileThatIsNotAKubeconfig(t *testing.T) {
	for content, reason := range map[string]string{
		"{token: secret":                 "it contains no YAML or JSON object",
		"secret":                         "it contains no YAML or JSON object",
		"- secret":                       "it contains no YAML or JSON object",
		"{apiVersion: v1, kind: Secret}": `its kind is "Secret", not "Config"`,
		"{users: secret}":                "its fields are not those of a kubeconfig",
		"{kind: Config, contexts: 7}":    "its fields are not those of a kubeconfig",
	} {
		t.Run(content, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "east.yaml")
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			_, err := selfContained(file, "", nil)
			require.EqualError(t, err, file+" is not a kubeconfig: "+reason+". Pass the kubeconfig of the cluster to import; "+
				"`kubectl config view --raw --minify --flatten` prints the kubeconfig of the current context")
		})
	}
}

// muster check exits with another code for an invalid command line than for a failed check.
func TestCheckUsage(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "none")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	t.Setenv("KUBECONFIG", empty)
	for line, want := range map[string]string{
		"check":                         "cannot connect to the hub: pass --kubeconfig, or set KUBECONFIG",
		"check a b":                     "check needs at most one argument, the name of the CLUSTER, and got 2",
		"check UP":                      `"UP" is not a valid object name`,
		"check -o yaml":                 `--output is "yaml": it must be wide or json`,
		"check --bogus":                 "flag provided but not defined: -bogus; see --help",
		"check --probe":                 "--probe needs a member: give --member, or the name of the CLUSTER",
		"check --member":                "--member needs --member-kubeconfig",
		"check east --member":           "--member checks only a member",
		"check --member --token t":      "--member checks only a member",
		"check --kubeconfig /nowhere a": "/nowhere",
		"check --member --member-kubeconfig /nowhere": "--member-kubeconfig: ",
	} {
		out, _, err := muster(t, strings.Fields(line)...)
		require.ErrorContains(t, err, want, line)
		var exit cli.ExitCoder
		require.ErrorAs(t, err, &exit, line)
		require.Equal(t, 2, exit.ExitCode(), line)
		require.Empty(t, out, line)
	}
}

func TestCreateFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report.zip")
	full := errors.New("no space left on device")
	require.ErrorIs(t, createFile(name, func(file io.Writer) error {
		_, err := io.WriteString(file, "a part")
		return errors.Join(err, full)
	}), full)
	require.NoFileExists(t, name, "the command can be repeated with the same name")

	require.NoError(t, createFile(name, func(file io.Writer) error {
		_, err := io.WriteString(file, "all")
		return err
	}))
	require.ErrorIs(t, createFile(name, func(io.Writer) error { return nil }), fs.ErrExist)
	written, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "all", string(written), "an existing file stays")
}
