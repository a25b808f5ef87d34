package clusterimport

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

const fuzzMarker = "MARKER-91ab"

const fuzzKubeconfig = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],` +
	`"clusters":[{"name":"k","cluster":{"server":"https://member"CLUSTER}}],"users":[{"name":"u","user":{"token":"` + fuzzMarker + `"USER}}]}`

func kubeconfigWith(cluster, user string) []byte {
	return []byte(strings.NewReplacer("CLUSTER", cluster, "USER", user).Replace(fuzzKubeconfig))
}

// Any user who may write Secrets in a namespace can write a kubeconfig. No kubeconfig makes the hub run a program, read a file or
// reveal a secret.
func FuzzParseKubeconfig(f *testing.F) {
	for _, seed := range [][2]string{
		{"", ""},
		{"", `,"exec":{"command":"sh","apiVersion":"client.authentication.k8s.io/v1"}`},
		{"", `,"auth-provider":{"name":"gcp"}`},
		{"", `,"tokenFile":"/etc/passwd"`},
		{"", `,"client-certificate":"/a","client-key":"/b"`},
		{`,"certificate-authority":"/a"`, ""},
		{`,"proxy-url":"http://u:` + fuzzMarker + `@proxy"`, ""},
		{`,"proxy-url":"ftp://proxy"`, ""},
		{`,"proxy-url":"%zz"`, `,"as":"admin"`},
		{`,"insecure-skip-tls-verify":true,"certificate-authority-data":"eA=="`, ""},
		{`,"server":"https://u:` + fuzzMarker + `@member:99999"`, `,"password":"` + fuzzMarker + `"`},
		{`,"tls-server-name":"x","extensions":[{}]`, `,"client-key-data":"*"`},
	} {
		f.Add(kubeconfigWith(seed[0], seed[1]))
	}
	f.Add([]byte("current-context: [" + fuzzMarker))
	f.Add([]byte("contexts: [null]\ncurrent-context: ''"))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := parseKubeconfig(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name"}, Data: map[string][]byte{registration.KubeconfigValue: data},
		})
		if err != nil {
			assert.NotContains(t, err.Error(), fuzzMarker)
			return
		}
		if m, err := newMemberClient(parsed, config.TLSModeStrict, config.Members{}, semaphore.NewWeighted(largeResponses)); err == nil {
			m.close()
		}
		rest, err := clientcmd.NewDefaultClientConfig(*parsed, nil).ClientConfig()
		if err != nil {
			return
		}
		assert.Nil(t, rest.ExecProvider)
		assert.Nil(t, rest.AuthProvider)
		assert.Empty(t, rest.BearerTokenFile+rest.CAFile+rest.CertFile+rest.KeyFile)
	})
}

func FuzzDecideHubInfo(f *testing.F) {
	f.Add("https://hub", []byte(nil), "https://other", []byte(nil))
	f.Add("", []byte("x"), "", []byte("x"))
	f.Add("", []byte(nil), "https://other", []byte("-----BEGIN CERTIFICATE-----"))
	f.Fuzz(func(t *testing.T, url string, ca []byte, secretURL string, secretCA []byte) {
		hub := config.Hub{APIServerURL: url, APIServerCA: ca}
		d, refused := decideHubInfo(hub, map[string][]byte{
			registration.KubeconfigAPIServerURL: []byte(secretURL), registration.KubeconfigAPIServerCA: secretCA,
		})
		if refused != nil {
			assert.NotEmpty(t, refused.reason)
			assert.Equal(t, hubInfo{}, d)
			return
		}
		assert.NotEmpty(t, d.apiServerURL)
		assert.True(t, len(d.apiServerCA) == 0 || registration.IsCABundle(d.apiServerCA))
		assert.True(t, sameEndpoint(fleet.ClusterStatus{APIServerURL: d.apiServerURL, APIServerCAHash: registration.CAHash(d.apiServerCA)}, d))
	})
}

// The decision depends on its inputs alone, and a Cluster without an agent requires an import.
func FuzzImportReason(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var cluster fleet.Cluster
		var asked facts
		filler := fuzz.From(seed, "a", "b", "ns/a", "v1/b").MaxDepth(6)
		filler.Fill(&cluster.Spec)
		filler.Fill(&cluster.Status)
		filler.Fill(&asked)
		why := importReason(&cluster, asked)
		assert.Equal(t, why, importReason(cluster.DeepCopy(), asked))
		if cluster.Status.AgentDeployedGeneration == nil {
			assert.NotEmpty(t, why)
		}
	})
}

func FuzzDiagnose(f *testing.F) {
	f.Add("https://member", "reading", 401, "Unauthorized", "no")
	f.Add("https://member", "reading", 503, "", "<html>")
	f.Add("", "", 0, "", "")
	f.Fuzz(func(t *testing.T, server, doing string, code int, reason, message string) {
		for _, err := range []error{
			errors.New(message),
			&apierrors.StatusError{ErrStatus: metav1.Status{Code: int32(code), Reason: metav1.StatusReason(reason), Message: message}},
		} {
			found := diagnose(server, doing, err)
			require.NotNil(t, found)
			assert.NotEmpty(t, found.reason)
			assert.True(t, strings.HasPrefix(found.message, doing+" at "+server))
			assert.Equal(t, found, diagnose(server, doing, err))
		}
	})
}
