package leaks

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/helminstall"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	system = registration.DefaultSystemNamespace
	local  = "fleet-local"
)

// marker returns the secret that the test plants in a place.
func marker(place string) string {
	sum := sha256.Sum256([]byte(place))
	return "MARKER-" + strings.Repeat(hex.EncodeToString(sum[:]), 2)[:80]
}

// scene is a hub and a member whose programs log as much as possible.
type scene struct {
	vault               *vault
	hub, member         *testenv.Cluster
	hubLogs, memberLogs string
	ns                  string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{vault: &vault{secrets: map[string]string{}}}
	s.hub, s.member = testenv.BorrowedCluster(t, "member"), testenv.BorrowedCluster(t, "member")
	s.vault.watch(t, "hub", s.hub)
	s.vault.watch(t, "member", s.member)
	s.installHub(t)
	s.hubLogs, s.memberLogs = s.hub.Node(t, programs), s.member.Node(t, programs)
	s.ns = s.hub.Namespace(t)
	return s
}

func (s *scene) installHub(t *testing.T) {
	t.Helper()
	s.hub.InstallKinds(t)
	testenv.Create(t, s.hub.Kubernetes.CoreV1().Secrets(system).Create, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"registry.example":{"password":"` + marker("pull Secret") + `"}}}`)},
	})
	require.NoError(t, helminstall.Install(t.Context(), s.hub.RESTConfig(), system, charts.Hub, map[string]any{
		"apiServerURL": s.hub.URL(), "apiServerCA": string(s.hub.CA()), "agentTLSMode": "strict", "agentCheckinInterval": "1s",
		"members": testenv.MembersOnLoopback(),
		"debug":   true, "debugLevel": 10,
		"global": map[string]any{"cattle": map[string]any{"imagePullSecrets": []any{map[string]any{"name": "pull"}}}},
	}))
}

func TestSecretsDoNotLeak(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.hub.Import(t, s.ns, "edge", s.member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = "edge-agent" })
	s.importWrong(t)
	values := s.hub.Token(t, s.ns, "tok", fleet.ClusterRegistrationTokenSpec{})
	s.installAgent(t, system, values)
	s.registered(t, s.ns, "edge")
	s.registered(t, s.ns, registration.ClusterName(system))
	s.registered(t, local, "local")
	s.refuse(t, values)
	s.revoke(t)
	s.misleadAgent(t, values)

	assert.Greater(t, s.vault.size(), 20)
	s.vault.requireNoneInLogs(t, "hub", s.hubLogs)
	s.vault.requireNoneInLogs(t, "member", s.memberLogs)
	for _, folder := range []string{s.hubLogs, s.memberLogs} {
		said := testenv.PodLogs(t, folder)
		assert.Contains(t, said, "--debug-level 10 is reduced to 7")
		assert.NotContains(t, said, "Body", "requests and answers, Secrets among them")
	}
	s.vault.requireNoneInObjects(t, "hub", s.hub)
	s.vault.requireNoneInObjects(t, "member", s.member)
	s.vault.requireNoneServed(t, s.hubLogs)
	s.vault.requireNoneServed(t, s.memberLogs)
}

func (s *scene) registered(t *testing.T, namespace, cluster string) {
	t.Helper()
	s.hub.WaitCondition(t, testenv.KindCluster, namespace, cluster, fleet.ConditionRegistered, "True")
}

// importWrong imports clusters with kubeconfigs that are wrong in different ways, each with a secret.
func (s *scene) importWrong(t *testing.T) {
	t.Helper()
	edit := func(change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
		return testenv.EditKubeconfig(t, s.member.Kubeconfig(), change)
	}
	for name, wrong := range map[string]struct {
		kubeconfig []byte
		want       string
	}{
		"garbage": {[]byte("users: [{user: {token: " + marker("garbage") + "}}"), fleet.ReasonKubeconfigInvalid},
		"token": {edit(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			*u = clientcmdapi.AuthInfo{Token: marker("token")}
		}), fleet.ReasonUnauthorized},
		"password": {edit(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			*u = clientcmdapi.AuthInfo{Username: "admin", Password: marker("password")}
		}), ""},
		"program": {edit(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			*u = clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
				Command: "/bin/sh", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
				Args: []string{marker("program")}, Env: []clientcmdapi.ExecEnvVar{{Name: "X", Value: marker("program's environment")}},
			}}
		}), fleet.ReasonKubeconfigInvalid},
		"address": {edit(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.Server = strings.Replace(c.Server, "https://", "https://user:"+marker("address")+"@", 1)
		}), fleet.ReasonKubeconfigInvalid},
		"no-address": {edit(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.Server = "https://user:" + marker("no address") + "@member:99999/"
		}), fleet.ReasonKubeconfigInvalid},
		"proxy": {edit(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.ProxyURL = "http://user:" + marker("proxy") + "@127.0.0.1:9"
		}), ""},
		"certificate": {edit(func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			c.CertificateAuthorityData = s.hub.CA()
			*u = clientcmdapi.AuthInfo{Token: marker("certificate")}
		}), fleet.ReasonCertificateUntrusted},
		"nobody": {edit(func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			c.Server = testenv.ClosedPort(t)
			u.ImpersonateUserExtra = map[string][]string{"x": {marker("nobody")}}
		}), ""},
	} {
		s.hub.WriteSecret(t, s.ns, name, map[string][]byte{registration.KubeconfigValue: wrong.kubeconfig})
		testenv.Create(t, s.hub.Fleet.Clusters(s.ns).Create, &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.ClusterSpec{KubeConfigSecret: name, AgentNamespace: "agent-" + name},
		})
		defer func() {
			testenv.Eventually(t, func() (bool, string) {
				got := s.hub.ConditionOf(testenv.KindCluster, s.ns, name, fleet.ConditionImported)
				settled := !strings.HasPrefix(got, "Unknown") && got != "absent"
				return settled && strings.Contains(got, wrong.want), name + " is " + got
			})
		}()
	}
}

// installAgent installs the chart fleet-agent, with as much logging as possible.
func (s *scene) installAgent(t *testing.T, namespace string, v registration.Values) {
	t.Helper()
	s.member.InstallAgentChart(t, namespace, v, map[string]any{"agentTLSMode": "strict", "clientID": namespace, "debug": true, "debugLevel": 10})
}

// refuse sends requests that the hub refuses.
func (s *scene) refuse(t *testing.T, values registration.Values) {
	t.Helper()
	for _, clientID := range []string{" ", system} { // no identity, and one that is in use
		request := s.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: "random"})
		s.hub.WaitCondition(t, testenv.KindRequest, s.ns, request.Name, fleet.ConditionGranted, "False")
	}
}

// misleadAgent gives the agent without a valid credential an unknown token, and then an address with a password.
func (s *scene) misleadAgent(t *testing.T, v registration.Values) {
	t.Helper()
	v.Token = marker("bootstrap token")
	s.bootstrap(t, v)
	testenv.AwaitPodLog(t, s.memberLogs, "expired or was revoked")
	v.APIServerURL = "https://user:" + marker("bootstrap address") + "@hub"
	s.bootstrap(t, v)
	testenv.AwaitPodLog(t, s.memberLogs, "it contains a user name")
}

func (s *scene) bootstrap(t *testing.T, v registration.Values) {
	t.Helper()
	document, err := registration.EncodeValues(v)
	require.NoError(t, err)
	s.member.WriteSecret(t, system, registration.BootstrapSecret, map[string][]byte{registration.ValuesKey: document})
}

// revoke revokes the credentials of all agents, and the token.
func (s *scene) revoke(t *testing.T) {
	t.Helper()
	require.NoError(t, s.hub.Fleet.ClusterRegistrationTokens(s.ns).Delete(t.Context(), "tok", metav1.DeleteOptions{}))
	require.NoError(t, s.hub.Fleet.ClusterRegistrations(s.ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	testenv.AwaitPodLog(t, s.memberLogs, "rejects the stored credential")
}
