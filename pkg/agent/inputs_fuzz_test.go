package agent

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// marker is what no error may repeat.
const marker = "MARKER-5d1c"

func secretHolding(data map[string]string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name"}, Data: map[string][]byte{}}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret
}

func FuzzABootstrapSecretIsUnderstoodOrNamed(f *testing.F) {
	f.Add("https://hub", "", "fleet-default", "token", "import", "sys", "")
	f.Add("", "x", "", "", "", "", "apiServerURL: https://hub\ntoken: a\nclusterNamespace: b\nsystemRegistrationNamespace: c")
	f.Add("ftp://hub", testCA(f), " ", "\n", "", "", "[]")
	f.Add("https://u:"+marker+"@hub", "", "n", "t", "", "s", "token: [")
	f.Add("https://[::1", "-----BEGIN CERTIFICATE-----", "n", "t", "", "s", "token: {a: b}")
	f.Fuzz(func(t *testing.T, url, ca, namespace, token, name, system, document string) {
		secret := secretHolding(map[string]string{
			registration.BootstrapAPIServerURL: url, registration.BootstrapAPIServerCA: ca,
			registration.BootstrapClusterNamespace: namespace, registration.BootstrapToken: token + marker, registration.BootstrapTokenName: name,
			registration.BootstrapSystemRegistrationNamespace: system, registration.BootstrapValues: document,
		})
		b, err := parseBootstrap(secret)
		if err != nil {
			assert.NotContains(t, err.Error(), marker)
			return
		}
		assert.NotEmpty(t, b.clusterNamespace)
		assert.NotEmpty(t, b.systemRegistrationNamespace)
		assert.Equal(t, strings.TrimSpace(token+marker), b.token)
		require.NoError(t, b.hubAccess().validate(), "the agent can go there")
		again, err := parseBootstrap(secret)
		require.NoError(t, err)
		assert.Equal(t, b.fingerprint("id"), again.fingerprint("id"))
		assert.NotEqual(t, b.fingerprint("id"), b.fingerprint("id2"))
		assert.NotContains(t, b.fingerprint("id"), marker)
	})
}

// isText: JSON and YAML replace what is none.
func isText(text string) bool {
	return strings.ToValidUTF8(text, "") == text
}

func FuzzAnAccessComesBackAsItWas(f *testing.F) {
	f.Add("https://hub.example.com", "", "eyJ.a.b", "cluster-ns")
	f.Add("http://127.0.0.1:6443/k8s/clusters/c-1", testCA(f), "x", "")
	f.Add("https://[::1]:1", "\n", "a: b\n#", "\x00")
	f.Fuzz(func(t *testing.T, server, ca, token, namespace string) {
		access := hubAccess{server: server, ca: bytes.TrimSpace([]byte(ca)), token: token, namespace: namespace}
		if access.validate() != nil || !isText(server+token+namespace) {
			return
		}
		written, err := access.kubeconfig()
		require.NoError(t, err)
		back, err := parseKubeconfig(written)
		if err != nil && strings.ContainsFunc(server+token+namespace, func(r rune) bool { return r < ' ' || r > '~' }) {
			return // YAML has no word for some of these, which neither tokens nor names have
		}
		require.NoError(t, err)
		assert.True(t, access.same(back), "%+v %+v", access, back)
	})
}

func FuzzAStoredCredentialIsUnderstoodOrNamed(f *testing.F) {
	good, err := hubAccess{server: "https://hub", token: marker, namespace: "ns"}.kubeconfig()
	require.NoError(f, err)
	for _, kubeconfig := range []string{
		string(good), "", "a", "{}", "apiVersion: v1\nkind: Config\ncurrent-context: x", strings.Replace(string(good), "https", "ftp", 1),
		strings.Replace(string(good), "user: user", "user: none", 1), string(good) + "\n---\n" + string(good), "\x00", strings.ToUpper(string(good)),
		strings.Replace(string(good), "token:", "tokenFile:", 1),
	} {
		f.Add([]byte(kubeconfig), "ns", "cluster-ns", "cluster", "strict")
		f.Add([]byte(kubeconfig), "", "", "", "")
	}
	f.Fuzz(func(t *testing.T, kubeconfig []byte, deployment, namespace, name, mode string) {
		secret := secretHolding(map[string]string{
			registration.CredentialKubeconfig: string(kubeconfig), registration.CredentialDeploymentNamespace: deployment,
			registration.CredentialClusterNamespace: namespace, registration.CredentialClusterName: name, credentialTLSMode: mode,
		})
		s, err := parseStored(secret)
		if err != nil {
			assert.NotContains(t, err.Error(), marker)
			return
		}
		assert.NotEmpty(t, s.access.token)
		assert.NotEmpty(t, s.access.namespace)
		assert.True(t, usableMode(provedMode(s, config.TLSMode(mode)), s.access))
	})
}

func FuzzAnAnswerIsWholeOrAwaited(f *testing.F) {
	f.Add("token", "a", "b", "c")
	f.Add("", "a", "b", "c")
	f.Add("token", "", "", "")
	f.Fuzz(func(t *testing.T, token, deployment, namespace, name string) {
		_, whole := parseGranted(secretHolding(map[string]string{
			registration.CredentialToken: token, registration.CredentialDeploymentNamespace: deployment,
			registration.CredentialClusterNamespace: namespace, registration.CredentialClusterName: name,
		}))
		assert.Equal(t, token != "" && deployment != "" && namespace != "" && name != "", whole)
	})
}

func FuzzAPendingRequestIsOfItsBootstrap(f *testing.F) {
	f.Add("request-x", "random", "print", "print")
	f.Add("", "random", "print", "print")
	f.Add("request-x", "random", "print", "other")
	f.Fuzz(func(t *testing.T, name, clientRandom, bootstrap, other string) {
		p := pending{name: name, clientRandom: clientRandom, bootstrap: bootstrap}
		assert.Equal(t, p, parsePending(p.secret("ns")))
		assert.Equal(t, name != "" && clientRandom != "" && bootstrap == other, p.belongsTo(other))
	})
}

func FuzzALocationOfTheHubIsUsableOrSaysWhyNot(f *testing.F) {
	f.Add("https://hub", "", "strict", "https://other")
	f.Add(" https://hub\n", testCA(f), "", "https://hub/")
	f.Add("https://u:p@hub", "x", "loose", "")
	f.Fuzz(func(t *testing.T, url, ca, mode, at string) {
		location := parseHubLocation(hubConfigMap(url, ca, mode))
		assert.Equal(t, location.digest, parseHubLocation(hubConfigMap(url+" ", "\n"+ca, mode+"\n")).digest, "what is around it means nothing")
		if location.err == nil {
			assert.NoError(t, hubAccess{server: location.server, ca: location.ca, token: "t"}.validate())
		}
		present := &stored{access: hubAccess{server: at}}
		from := sources{location: location}
		if w := from.wanted(present); w != nil {
			assert.Nil(t, from.wanted(present.moved(*w, from.settled())), "the agent would go round")
		}
	})
}

// Rules that hold whatever else changes in the switch.
func FuzzTheAgentGivesNothingUpTooEarly(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed[0]%3, seed[1]%3, seed[2]%5, seed[3]%5, seed[4]&1 > 0, seed[5]&1 > 0)
	}
	f.Fuzz(func(t *testing.T, stored, boot, hub, there byte, anew, leaving bool) {
		facts := Facts{
			Stored: Presence(stored % 3), Bootstrap: Presence(boot % 3), Hub: Answer(hub % 5), There: Answer(there % 5),
			RegisterAnew: anew, Leaving: leaving,
		}
		action := Decide(facts)
		require.NotEmpty(t, action.String())
		assert.Equal(t, action, Decide(facts))
		switch action {
		case Register, ReplaceStored:
			assert.Equal(t, Present, facts.Bootstrap, "nothing to register with")
		case Leave:
			assert.True(t, facts.Leaving)
		case MoveStored:
			assert.Equal(t, Accepts, facts.There, "a way that does not work")
		case ReportRefused:
			assert.Equal(t, Refuses, facts.Hub, "nobody refused it")
		case WaitForBootstrap, UseStored, StayPut, WaitForHub:
		}
		if action == Register && facts.Stored == Present && !facts.Leaving && !facts.RegisterAnew && facts.There != Refuses {
			assert.Equal(t, Refuses, facts.Hub, "a credential that was not refused is given up")
		}
		if action.works() {
			assert.Equal(t, Present, facts.Stored)
			assert.Equal(t, Accepts, facts.Hub)
		}
	})
}

// Whatever is on the way, only the API server itself refuses a credential.
func FuzzAProxyRefusesNothing(f *testing.F) {
	f.Add(401, "Unauthorized", "x", true)
	f.Add(401, "Unauthorized", "x", false)
	f.Add(403, "", "", false)
	f.Add(0, "", "", true)
	f.Fuzz(func(t *testing.T, code int, reason, message string, byProxy bool) {
		status := &apierrors.StatusError{ErrStatus: metav1.Status{Code: int32(code % 1000), Reason: metav1.StatusReason(reason), Message: message}}
		if byProxy {
			status.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeUnexpectedServerResponse}}}
		}
		assert.Equal(t, code%1000 == 401 && !byProxy, Classify(status) == Refuses)
	})
}

func FuzzOneRefusalIsNone(f *testing.F) {
	f.Add([]byte{2, 2, 2, 2, 2})
	f.Add([]byte{2, 1, 2, 3, 2, 2})
	f.Fuzz(func(t *testing.T, answers []byte) {
		s, now := suspicion{needed: 3, spread: 2 * time.Second}, time.Unix(0, 0)
		row := 0
		for _, b := range answers {
			answer := Answer(b % 5)
			now = now.Add(time.Second)
			row++
			if answer != Refuses {
				row = 0
			}
			assert.Equal(t, row >= 3, s.observe(answer, now))
		}
	})
}

// What the agent sends, the hub's API server accepts: an odd label or token name must not cost the registration.
func FuzzARequestIsAccepted(f *testing.F) {
	f.Add("import", "k", "v", "fleet-agent-0")
	f.Add(strings.Repeat("t", 253), "a b", "", strings.Repeat("p", 64))
	f.Add("", "", "\x00", "é")
	f.Fuzz(func(t *testing.T, token, key, value, pod string) {
		p, err := newPending("print")
		require.NoError(t, err)
		sent := newRequest(p, &bootstrap{tokenName: token, clusterNamespace: "ns"}, "id", map[string]string{key: value}, pod)
		assert.Empty(t, validation.IsDNS1123Subdomain(sent.Name))
		for name, value := range sent.Labels {
			assert.Empty(t, validation.IsValidLabelValue(value), name)
		}
		assert.NotContains(t, sent.Name, p.clientRandom)
		if key == fleet.CreatedByAgentPodLabel {
			return
		}
		assert.Equal(t, value, sent.Spec.ClusterLabels[key])
		assert.Empty(t, validation.IsValidLabelValue(sent.Spec.ClusterLabels[fleet.CreatedByAgentPodLabel]))
	})
}
