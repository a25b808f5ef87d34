package agent

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/registration"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

const (
	agentNamespace = "cattle-fleet-system"
	testToken      = "the-registration-token"
	newToken       = "the-new-credential"
	oldToken       = "the-old-credential"
	jwtBeginning   = "eyJ" // of every token that says something of itself
)

// patience is how long a test waits for what must happen. It is no measure of speed: a machine may be very busy.
const patience = 2 * time.Minute

// quick is DefaultTiming with the pauses that a test would wait for shortened. What ends an attempt is long: on a machine that
// stands still for some seconds no attempt may fail that would not fail on another.
func quick() *Timing {
	return &Timing{
		Request:       30 * time.Second,
		RetryFirst:    5 * time.Millisecond,
		RetryMax:      50 * time.Millisecond,
		PollFirst:     time.Millisecond,
		PollMax:       20 * time.Millisecond,
		PollSoon:      5 * time.Minute,
		PollLate:      20 * time.Millisecond,
		Registration:  10 * time.Minute,
		Unseen:        10 * time.Minute,
		RightsLag:     300 * time.Millisecond,
		RefusalPause:  5 * time.Millisecond,
		RefusalSpread: 10 * time.Millisecond,
		HelmWaits:     300 * time.Millisecond,
		RenewAfter:    2.0 / 3,
		RefusedFirst:  5 * time.Millisecond,
		RefusedMax:    50 * time.Millisecond,
	}
}

// kubeSystem is there in every cluster; its UID is the default clientID.
func kubeSystem() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "the-uid"}}
}

// testLife is a life on a member that has the given objects.
func testLife(t *testing.T, objects ...runtime.Object) *life {
	t.Helper()
	log, _ := testLog(t)
	core := kubefake.NewClientset(append(objects, kubeSystem())...)
	c := Config{Namespace: agentNamespace, Version: "test", CheckinInterval: time.Hour, Log: log, Clock: clock.RealClock{}, Timing: quick(), OnState: func(string) {}}
	return &life{
		config: c, log: log, changed: make(chan struct{}),
		member: &member{namespace: agentNamespace, core: core, watching: core, close: func() {}},
	}
}

// testLog fails the test when a credential gets into it, and is shown when the test failed for another reason.
func testLog(t *testing.T) (*logrus.Logger, *logtest.Hook) {
	t.Helper()
	log, hook := logtest.NewNullLogger()
	log.SetLevel(logrus.DebugLevel)
	t.Cleanup(func() {
		for _, entry := range hook.AllEntries() {
			for _, secret := range []string{testToken, newToken, oldToken, jwtBeginning} {
				assert.NotContains(t, entry.Message, secret, "a credential in the log")
			}
		}
		if t.Failed() {
			for _, entry := range hook.AllEntries() {
				t.Logf("log: %s: %s", entry.Level, entry.Message)
			}
		}
	})
	return log, hook
}

func secretOf(name string, data map[string]string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: name, UID: "uid-of-" + "it", ResourceVersion: "1"}}
	secret.Data = map[string][]byte{}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret
}

// bootstrapSecret is a good one for a hub at url; edits are pairs of key and value.
func bootstrapSecret(url, ca string, edits ...string) *corev1.Secret {
	data := map[string]string{
		registration.BootstrapAPIServerURL:                url,
		registration.BootstrapAPIServerCA:                 ca,
		registration.BootstrapClusterNamespace:            "fleet-default",
		registration.BootstrapToken:                       testToken,
		registration.BootstrapTokenName:                   "import-token-one",
		registration.BootstrapSystemRegistrationNamespace: "cattle-fleet-clusters-system",
	}
	edit(data, edits)
	return secretOf(registration.BootstrapSecret, data)
}

// storedSecret is a good credential for a hub at url.
func storedSecret(t *testing.T, url, ca, token string, edits ...string) *corev1.Secret {
	t.Helper()
	kubeconfig, err := hubAccess{server: url, ca: []byte(ca), token: token, namespace: "cluster-ns"}.kubeconfig()
	require.NoError(t, err)
	data := map[string]string{
		registration.CredentialKubeconfig:          string(kubeconfig),
		registration.CredentialDeploymentNamespace: "cluster-ns",
		registration.CredentialClusterNamespace:    "fleet-default",
		registration.CredentialClusterName:         "one",
		credentialTLSMode:                          "system-store",
	}
	edit(data, edits)
	return secretOf(registration.CredentialSecret, data)
}

func edit(data map[string]string, edits []string) {
	for i := 0; i < len(edits); i += 2 {
		data[edits[i]] = edits[i+1]
	}
}

// noLeak waits until every goroutine has ended that is not among the known ones: closed connections take their time.
func noLeak(t *testing.T, known goleak.Option) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for err := goleak.Find(known); err != nil; err = goleak.Find(known) {
		require.True(t, time.Now().Before(deadline), "%v", err)
	}
}

// golden compares with a file of testdata; run the tests with -update to rewrite it, and read the difference.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}
