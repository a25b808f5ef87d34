// Package agenttest has helpers for the tests of the agent's packages: short durations, a log that must not contain a credential, the
// Secrets of an agent, and certificates.
package agenttest

import (
	"crypto/tls"
	"encoding/pem"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/golang-jwt/jwt/v5"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/pki"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// The agent's namespace, an address of a hub that does not exist, and the tokens that no log may contain.
const (
	Namespace         = "cattle-fleet-system"
	HubURL            = "https://hub.example.com"
	RegistrationToken = "the-registration-token"
	NewToken          = "the-new-credential"
	OldToken          = "the-old-credential"
	jwtBeginning      = "eyJ"
)

// Patience limits the waits of a test. It does not measure speed: a machine can be very busy.
const Patience = 2 * time.Minute

// Quick returns durations for tests: short pauses, and long timeouts, so that no attempt fails because a machine is busy for some seconds.
func Quick() *timing.Durations {
	return &timing.Durations{
		Request:         30 * time.Second,
		RetryFirst:      5 * time.Millisecond,
		RetryMax:        50 * time.Millisecond,
		PollFirst:       time.Millisecond,
		PollMax:         20 * time.Millisecond,
		PollFast:        5 * time.Minute,
		PollSlowMax:     20 * time.Millisecond,
		Registration:    10 * time.Minute,
		MaxResponseGap:  10 * time.Minute,
		RightsLag:       300 * time.Millisecond,
		RejectionPause:  5 * time.Millisecond,
		RejectionSpread: 10 * time.Millisecond,
		HelmWait:        300 * time.Millisecond,
		RenewFraction:   2.0 / 3,
		RefusedFirst:    5 * time.Millisecond,
		RefusedMax:      50 * time.Millisecond,
	}
}

// Log returns a logger. At the end of the test, it fails the test if a message contains a credential, and prints the messages of a failed
// test.
func Log(t *testing.T) (*logrus.Logger, *logtest.Hook) {
	t.Helper()
	log, hook := logtest.NewNullLogger()
	log.SetLevel(logrus.DebugLevel)
	t.Cleanup(func() {
		for _, entry := range hook.AllEntries() {
			for _, secret := range []string{RegistrationToken, NewToken, OldToken, jwtBeginning} {
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

// Secret returns a Secret in the agent's namespace.
func Secret(name string, data map[string]string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: "uid-of-it", ResourceVersion: "1"}}
	secret.Data = map[string][]byte{}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret
}

// BootstrapSecret returns a valid bootstrap Secret for a hub at url. edits are pairs of a key and a value that replace values in it.
func BootstrapSecret(url, ca string, edits ...string) *corev1.Secret {
	return Secret(registration.BootstrapSecret, edited(map[string]string{
		registration.BootstrapAPIServerURL:                url,
		registration.BootstrapAPIServerCA:                 ca,
		registration.BootstrapWorkspace:                   "fleet-default",
		registration.BootstrapToken:                       RegistrationToken,
		registration.BootstrapTokenName:                   "import-token-one",
		registration.BootstrapSystemRegistrationNamespace: "cattle-fleet-clusters-system",
	}, edits))
}

// StoredSecret returns a valid credential Secret for a hub at url. edits are pairs of a key and a value that replace values in it.
func StoredSecret(t testing.TB, url, ca, token string, edits ...string) *corev1.Secret {
	t.Helper()
	kubeconfig, err := transport.Kubeconfig(url, []byte(ca), token, "cluster-ns")
	require.NoError(t, err)
	return Secret(registration.CredentialSecret, edited(map[string]string{
		registration.CredentialKubeconfig:          string(kubeconfig),
		registration.CredentialDeploymentNamespace: "cluster-ns",
		registration.CredentialWorkspace:           "fleet-default",
		registration.CredentialClusterName:         "one",
		"agentTLSMode":                             "system-store",
	}, edits))
}

func edited(data map[string]string, edits []string) map[string]string {
	for i := 0; i < len(edits); i += 2 {
		data[edits[i]] = edits[i+1]
	}
	return data
}

// JWT returns a token of ServiceAccount the-agent. serial distinguishes tokens with the same times. A zero time is left out.
func JWT(uid string, issued, expires time.Time, serial int) string {
	claims := jwt.MapClaims{
		"kubernetes.io": map[string]any{"namespace": "cluster-ns", "serviceaccount": map[string]any{"name": "the-agent", "uid": uid}},
		"jti":           strconv.Itoa(serial),
	}
	for key, moment := range map[string]time.Time{"iat": issued, "exp": expires} {
		if !moment.IsZero() {
			claims[key] = moment.Unix()
		}
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("k"))
	if err != nil {
		panic(err)
	}
	return token
}

// AgentHubConfigMap returns ConfigMap fleet-agent-hub.
func AgentHubConfigMap(url, ca, mode string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: registration.AgentHubConfigMap},
		Data: map[string]string{
			registration.BootstrapAPIServerURL: url, registration.BootstrapAPIServerCA: ca, registration.AgentHubTLSMode: mode,
		},
	}
}

// PEM returns the CA with which an agent trusts the server.
func PEM(server *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

// CA returns the certificate of a new authority, which has not signed the certificate of any server.
func CA(t testing.TB) string {
	t.Helper()
	return string(authority(t).Pair.Cert)
}

// ServerCertificate returns a new certificate for 127.0.0.1. A client that has it as its CA trusts it.
func ServerCertificate(t testing.TB) tls.Certificate {
	t.Helper()
	issued, err := authority(t).Server(t.Name(), "127.0.0.1")
	require.NoError(t, err)
	certificate, err := tls.X509KeyPair(issued.Cert, issued.Key)
	require.NoError(t, err)
	return certificate
}

func authority(t testing.TB) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority("test", time.Now())
	require.NoError(t, err)
	return a
}

// Clock is a fake clock whose times have two readings, as those of time.Now: a wall clock reading, which StepWall changes, and a monotonic one,
// from which timers and the difference of two times follow. For a process, an NTP server that sets the clock looks like StepWall, and so does a
// machine that was suspended: the monotonic clock of Linux stops meanwhile.
type Clock struct {
	*clocktesting.FakeClock // the monotonic reading
	began                   time.Time
	stepped                 atomic.Int64 // time.Duration of the wall clock
}

// NewClock returns a clock that shows the time.
func NewClock(now time.Time) *Clock {
	return &Clock{FakeClock: clocktesting.NewFakeClock(now), began: now}
}

// StepWall sets the wall clock forward, or backward if d is negative.
func (c *Clock) StepWall(d time.Duration) { c.stepped.Add(int64(d)) }

// Elapsed returns the time since NewClock by the monotonic clock.
func (c *Clock) Elapsed() time.Duration { return c.FakeClock.Since(c.began) }

// Now implements clock.PassiveClock.
func (c *Clock) Now() (now time.Time) {
	// Package time has no function that sets the two readings apart. This is the layout of a time.Time with both of them.
	const (
		hasMonotonic  = 1 << 63
		secondsShift  = 30
		unixSince1885 = 2682288000
	)
	wall := c.FakeClock.Now().Add(time.Duration(c.stepped.Load()))
	fields := (*struct {
		wall      uint64
		monotonic int64
	})(unsafe.Pointer(&now)) //nolint:gosec // TestClock fails if the layout is another one
	fields.wall = hasMonotonic | uint64(wall.Unix()+unixSince1885)<<secondsShift | uint64(wall.Nanosecond()) //nolint:gosec // from 1885 to 2157
	fields.monotonic = int64(c.Elapsed())
	return now
}

// Since implements clock.PassiveClock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
