package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/describe"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// requireGolden compares a transcript with a file. It replaces the parts that differ between runs, and each run of spaces with one space.
func requireGolden(t *testing.T, name, text string) {
	t.Helper()
	for _, r := range [][2]string{
		{`127\.0\.0\.1:\d+`, "HUB:6443"},
		{`cluster-ws-\w+-(\w+)-[0-9a-f]{12}`, "cluster-WORKSPACE-$1"},
		{`cluster-[0-9a-f]{12}`, "cluster-DIGEST"},
		{`ws-\w+`, "WORKSPACE"},
		{`request-[a-z0-9]+(-[0-9a-f-]{36})?`, "request-NAME"},
		{`Kubernetes v[\d.]+`, "Kubernetes VERSION"},
		{`\d{4}-\d\d-\d\dT[\d:.]+Z`, "TIME"},
		{`\+\d+\w*`, "+DURATION"},
		{`\b\d+[smh]\w* ago`, "AGE ago"},
		{`in \d+\w*`, "in DURATION"},
		{`/\S+\.kubeconfig`, "FILE"},
		{`(BundleDeployment \S+): \w+.*`, "$1: STATE"},       // no pods run in tests
		{`(Cluster \S+: Registered), NotReady \(.*\)`, "$1"}, // the Bundle of the agent
		{`(?m)^ *[\d.]+ s  .*\n`, ""},                        // which progress is seen depends on the time
		{`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`, "UID"},
		{` {2,}`, " "},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	golden.Equal(t, "testdata/"+name, text)
}

// importsEast imports Cluster east, whose agent runs, and waits until it is connected.
func (p person) importsEast(change ...func(*agent.Config)) (member *testenv.Cluster, running *testenv.Running) {
	p.t.Helper()
	member = testenv.SharedCluster(p.t, "member")
	_, err := member.Kubernetes.CoreV1().Namespaces().Create(p.t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: registration.DefaultSystemNamespace},
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) { // another test may have created it
		require.NoError(p.t, err)
	}
	running = member.Agent(p.t, registration.DefaultSystemNamespace, change...)
	p.mustRun("import", "east", "--member-kubeconfig", memberConfig(p.t, member), "--wait", "--timeout", "5m")
	p.hub.ClusterCondition(p.t, p.namespace, "east", fleet.ConditionConnected, "True")
	return member, running
}

func TestDescribe(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	// The agent is stopped below, and counts as connected for three intervals after that: long enough for the descriptions on a busy machine.
	_, running := p.importsEast(func(c *agent.Config) { c.CheckinInterval = 5 * time.Second })
	var d describe.Description
	testenv.Eventually(t, func() (bool, string) {
		out := p.mustRun("describe", "east", "-o", "json")
		d = describe.Description{}
		require.NoError(t, json.Unmarshal([]byte(out), &d))
		return d.Cluster != nil && d.Cluster.Bundles != "", out
	})
	running.Stop(t)

	// The tree has everything that belongs together.
	kinds := map[string]int{}
	var count func([]*describe.Related)
	count = func(objects []*describe.Related) {
		for _, o := range objects {
			kinds[o.Kind]++
			count(o.Objects)
		}
	}
	count(d.Objects)
	require.Equal(t, map[string]int{
		"Secret": 1, "ClusterRegistrationToken": 1, "ClusterRegistration": 1, "Namespace": 1, "ServiceAccount": 1, "BundleDeployment": 1, "Agent": 1,
	}, kinds)
	require.NotNil(t, d.CredentialExpires)
	require.Equal(t, int(time.Until(d.CredentialExpires.Time).Hours()/24), *d.CredentialDaysLeft)
	for i, h := range d.Timeline[1:] {
		require.False(t, h.Time.Before(&d.Timeline[i].Time), "the timeline is in order")
	}
	require.Empty(t, d.Incomplete)

	out := p.mustRun("describe", "east")
	require.Regexp(t, `(?m)^Cluster `+p.namespace+`/east: Registered(, NotReady \(.* \[Bundle fleet-agent-east.*\))? \[manager\]$`, out)
	require.NotContains(t, out, "Next: muster")
	tree := out[:regexp.MustCompile(`\n\n`).FindStringIndex(out)[0]+1]
	requireGolden(t, "describe.txt", tree)
	for _, line := range []string{
		`Credential of the agent: expires in \S+ \(\d+ days left\)`,
		`Registered +True +Registered`,
		`Cluster east +created`,
		`ClusterRegistration request-\S+ +Granted True Granted`,
	} {
		require.Regexp(t, line, out)
	}

	// An agent that is gone leads to a check.
	p.hub.ClusterCondition(t, p.namespace, "east", fleet.ConditionConnected, "False")
	require.Contains(t, p.mustRun("describe", "east"), "\nNext: muster -n "+p.namespace+" check east\n")
	p.mustRun("quarantine", "east", "-m", "laptop stolen", "--timeout", "5m")
	file := os.Getenv("KUBECONFIG")
	quarantined := p.mustRun("--kubeconfig", file, "describe", "east")
	flags := "muster --kubeconfig=" + file + " -n " + p.namespace
	require.Contains(t, quarantined, "\nNext: "+flags+" revoke east # if the credential may be stolen; then release\n  or: "+flags+" release east\n")
	require.Regexp(t, `^Cluster \S+ Quarantined \(the agent is quarantined \(\S+: laptop stolen\) and has no access`, quarantined)
}

// The commands in results and errors work as printed, even if the hub was selected with flags.
func TestNextSteps(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	flags := []string{"--kubeconfig", os.Getenv("KUBECONFIG"), "--context", "again"}
	config, err := clientcmd.LoadFromFile(flags[1])
	require.NoError(t, err)
	config.Contexts["again"], config.CurrentContext = config.Contexts[config.CurrentContext], ""
	require.NoError(t, clientcmd.WriteToFile(*config, flags[1]))
	t.Setenv("KUBECONFIG", "/nowhere")
	p.hub.Token(t, p.namespace, "careful", fleet.ClusterRegistrationTokenSpec{Approval: fleet.ApprovalManual})
	p.asks("careful", "west")
	printed := regexp.MustCompile("`(muster [^`]+)`|(?m)^(?:Next:|  or:|The hub now .* state:|    ) (muster .*)$")

	for _, test := range []struct {
		command string
		steps   int
	}{
		{"describe " + registration.ClusterName("west"), 2},
		{"describe nobody", 2},
		{"check nobody", 2},
		{"quarantine nobody", 1},
		{"revoke nobody", 1},
		{"remove nobody", 1},
		{"rotate nobody", 1},
		{"approve nobody", 1},
		{"token revoke nobody", 1},
		{"token create fresh --timeout 5m", 1},
		{"import east --member-kubeconfig " + memberConfig(t, testenv.SharedCluster(t, "member")), 1},
	} {
		args := append(slices.Concat(flags, []string{"-n", p.namespace}), strings.Fields(test.command)...)
		out, _, err := muster(t, args...)
		if err != nil {
			out += err.Error()
		}
		steps := printed.FindAllStringSubmatch(out, -1)
		require.Len(t, steps, test.steps, "%s: %s", test.command, out)
		for _, step := range slices.Backward(steps) { // a denial before the approval
			words := strings.Fields(step[1] + step[2])
			_, _, err := muster(t, words[1:]...)
			require.NoError(t, err, "%s: %s", test.command, words)
		}
	}
	t.Run("the values of a token in a shell", func(t *testing.T) {
		if _, err := exec.LookPath("kubectl"); err != nil {
			t.Skip("there is no kubectl on this machine")
		}
		out, _, err := muster(t, append(flags, "-n", p.namespace, "token", "create", "pasted", "--timeout", "5m")...)
		require.NoError(t, err)
		line := regexp.MustCompile(`(?m)^ +(kubectl .*)$`).FindStringSubmatch(out)
		require.Len(t, line, 2, out)
		shell := exec.CommandContext(t.Context(), "sh", "-c", line[1])
		shell.Dir = t.TempDir()
		shell.Env = append(os.Environ(), "HOME="+shell.Dir) // for the cache of kubectl
		said, err := shell.CombinedOutput()
		require.NoError(t, err, "%s: %s", line[1], said)
		values, err := os.ReadFile(filepath.Join(shell.Dir, "values.yaml"))
		require.NoError(t, err)
		secret := testenv.RequireThere(t, p.hub.Kubernetes.CoreV1().Secrets(p.namespace).Get, "pasted")
		require.Equal(t, string(secret.Data[registration.ValuesKey]), string(values))
	})
	_, _, err = muster(t, append(flags, "-n", "nowhere", "token", "create", "t")...)
	require.ErrorContains(t, err, "create it with `kubectl --context=again --kubeconfig="+flags[1]+" create namespace nowhere`")
}

// A waiting agent has a request and no Cluster.
func TestDescribeARequest(t *testing.T) {
	p := atHub(t)
	p.hub.Token(t, p.namespace, "careful", fleet.ClusterRegistrationTokenSpec{Approval: fleet.ApprovalManual, UsageLimit: ptr.To[int32](1)})
	_, request := p.asks("careful", "west")
	out := p.mustRun("describe", registration.ClusterName("west"))
	require.Regexp(t, `(?m)^no Cluster `+p.namespace+`/\S+ yet$`, out)
	require.Contains(t, out, "\nNext: muster -n "+p.namespace+" approve "+request.Name+"\n  or: muster -n "+p.namespace+" deny "+request.Name+"\n")
	requireGolden(t, "describe-request.txt", out[:regexp.MustCompile(`\n\n`).FindStringIndex(out)[0]+1])

	_, _, err := p.run("describe", "nobody")
	require.EqualError(t, err, "there is no Cluster "+p.namespace+"/nobody, and no request about one: `muster clusters -A` and `muster requests -A` list all")
}

// A user who may read only the workspace sees its objects, and the errors of the other requests.
func TestDescribeWithFewRights(t *testing.T) {
	p := atHub(t)
	values := p.hub.Token(t, p.namespace, "first", fleet.ClusterRegistrationTokenSpec{})
	request := p.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: p.namespace})
	granted, _ := p.hub.Granted(t, values, request)
	p.actsAsViewer()
	out := p.mustRun("describe", granted.Status.ClusterName)
	require.Contains(t, out, "ClusterRegistration "+p.namespace+"/"+request.Name+": Granted")
	require.Regexp(t, `Not everything could be read:\n(  .*\n)*  namespaces "cluster-\S+" is forbidden`, out)
}
