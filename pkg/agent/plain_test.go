package agent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/pkg/registration"
)

// plainHub counts what it is asked, and grants nothing.
func plainHub(t *testing.T) (url string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

func strictly() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentConfigMap},
		Data:       map[string]string{registration.ConfigKey: `{"agentTLSMode":"strict"}`},
	}
}

// Whatever says where the hub is: no request goes out, for each has the token in it.
func TestStrictModeSendsNoTokenInClear(t *testing.T) {
	stub := newStubHub(t)
	for name, objects := range map[string]func(url string) []runtime.Object{
		"bootstrap Secret": func(url string) []runtime.Object {
			return []runtime.Object{bootstrapSecret(url, testCA(t)), strictly()}
		},
		"stored credential": func(url string) []runtime.Object {
			return []runtime.Object{storedSecret(t, url, testCA(t), newToken, credentialTLSMode, "strict"), strictly()}
		},
		"ConfigMap": func(url string) []runtime.Object {
			location := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentHubConfigMap}}
			location.Data = map[string]string{registration.BootstrapAPIServerURL: url, registration.BootstrapAPIServerCA: testCA(t)}
			return []runtime.Object{storedSecret(t, stub.server.URL, stub.ca(), newToken, credentialTLSMode, "strict"), strictly(), location}
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, asked := plainHub(t)
			l := testLife(t, objects(url)...)
			s, err := l.look(t.Context())
			require.NoError(t, err)
			defer s.hub.close()
			switch name {
			case "bootstrap Secret":
				err = l.register(t.Context(), s)
			case "stored credential":
				err = s.hubErr
			case "ConfigMap":
				err = s.thereErr
			}
			require.ErrorContains(t, err, "agentTLSMode is strict, but the address of the hub is "+url+", where the token would go out in clear")
			assert.Zero(t, asked.Load())
		})
	}
}

func TestATokenInClearIsWarnedOfOnce(t *testing.T) {
	log, hook := testLog(t)
	l := testLife(t)
	l.log = log
	for _, url := range []string{"https://hub.example.com", "http://hub.example.com", "http://hub.example.com", "http://other.example.com"} {
		h, err := l.dial(hubAccess{server: url, token: newToken, namespace: "ns"}, "system-store")
		require.NoError(t, err)
		h.close()
	}
	require.Len(t, hook.AllEntries(), 1)
	assert.Equal(t, logrus.WarnLevel, hook.LastEntry().Level)
	assert.True(t, strings.HasPrefix(hook.LastEntry().Message, "The address of the hub is http://hub.example.com: the token goes out in clear"))
}
