package controlplane

import (
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/process"
)

func TestAControlPlaneServesItsAdministrator(t *testing.T) {
	c := Shared(t, "plane")
	clients := map[string]kubernetes.Interface{
		"by rest.Config": clientFor(t, c.RESTConfig()),
		"by kubeconfig":  clientFromKubeconfig(t, c.Kubeconfig()),
	}
	for name, client := range clients {
		t.Run(name, func(t *testing.T) {
			review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.Equal(t, "muster-admin", review.Status.UserInfo.Username)
			require.Contains(t, review.Status.UserInfo.Groups, "system:masters")
		})
	}
}

func TestTheAPIServerKnowsItsVersion(t *testing.T) {
	version, err := clientFor(t, Shared(t, "plane").RESTConfig()).Discovery().ServerVersion()
	require.NoError(t, err)
	require.Regexp(t, `^v1\.\d+\.\d+$`, version.GitVersion)
	require.NotEmpty(t, version.Minor)
}

func TestEachCallerHasAConfigurationOfItsOwn(t *testing.T) {
	c := Shared(t, "plane")
	first := c.RESTConfig()
	first.Host = "https://elsewhere"
	first.CAData[0] = 0
	require.Equal(t, c.URL(), c.RESTConfig().Host)
	require.Equal(t, c.CA(), c.RESTConfig().CAData)
	require.Negative(t, first.QPS, "tests are not rate limited")
}

func TestAServiceAccountTokenAuthenticates(t *testing.T) {
	c := Shared(t, "plane")
	token := tokenOf(t, c, time.Hour).Status.Token
	review, err := clientFromKubeconfig(t, c.UserKubeconfig(token)).AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "system:serviceaccount:default:default", review.Status.UserInfo.Username)
}

func TestWhoHasNoCredentialIsUnauthorized(t *testing.T) {
	c := Shared(t, "plane")
	tests := map[string]string{"no token": "", "a made-up token": "made-up"}
	for name, token := range tests {
		t.Run(name, func(t *testing.T) {
			config := &rest.Config{Host: c.URL(), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: c.CA()}}
			_, err := clientFor(t, config).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
			require.True(t, apierrors.IsUnauthorized(err), "%v", err)
		})
	}
}

func TestTheControllerManagerFinishesTheDeletionOfANamespace(t *testing.T) {
	client := clientFor(t, Shared(t, "plane").RESTConfig())
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "gone-"}}
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, client.CoreV1().Namespaces().Delete(t.Context(), namespace.Name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), namespace.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, soon, pollInterval)
}

func TestArgumentsOverrideTheDefaultsAndNoControllerManagerRunsUnasked(t *testing.T) {
	c := own(t, Options{Name: "args", APIServerArgs: []string{
		"--service-account-max-token-expiration=2h", "--anonymous-auth=true",
	}})
	client := clientFor(t, c.RESTConfig())
	_, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err, "nothing else makes it")

	request := tokenOf(t, c, 24*time.Hour)
	require.WithinDuration(t, time.Now().Add(2*time.Hour), request.Status.ExpirationTimestamp.Time, 5*time.Minute)

	anonymous := &rest.Config{Host: c.URL(), TLSClientConfig: rest.TLSClientConfig{CAData: c.CA()}}
	_, err = clientFor(t, anonymous).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}

func TestStopLeavesNoProcessNoPortAndNoFolder(t *testing.T) {
	name := unique("stop")
	c := own(t, Options{Name: name, ControllerManager: true})
	pids := pidsOf(c)
	require.Len(t, pids, 3)
	require.Len(t, foldersOf(t, name), 1)

	require.NoError(t, c.Stop())
	for _, pid := range pids {
		require.False(t, running(pid))
	}
	require.NoError(t, portIsFree(c.port))
	require.Empty(t, foldersOf(t, name))

	require.NoError(t, c.Stop(), "a second time does nothing")
	require.ErrorContains(t, c.StartAPIServer(t.Context()), "stopped for good")
	require.ErrorContains(t, c.StopAPIServer(), "not running")
	require.ErrorContains(t, c.PauseAPIServer(), "not running")
}

func TestAGivenFolderKeepsItsLogs(t *testing.T) {
	dir := t.TempDir()
	c := own(t, Options{Name: "kept", Dir: dir})
	require.Equal(t, dir, c.Dir())
	require.Equal(t, "kept", c.Name())
	require.NoError(t, c.Stop())
	require.FileExists(t, filepath.Join(dir, "kube-apiserver.log"))
	require.FileExists(t, filepath.Join(dir, "etcd.log"))
}

func TestAFolderWithALongNameWorks(t *testing.T) {
	// Names of Unix sockets end after about a hundred bytes on every system.
	dir := filepath.Join(t.TempDir(), "a-folder-whose-name-alone-is-nearly-as-long-as-the-name-of-a-unix-socket-may-be-on-linux")
	c := own(t, Options{Name: "long", Dir: dir})
	_, err := clientFor(t, c.RESTConfig()).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
}

func TestOnlyLoopbackIsServed(t *testing.T) {
	address, err := url.Parse(Shared(t, "plane").URL())
	require.NoError(t, err)
	require.Equal(t, "https", address.Scheme)
	require.True(t, net.ParseIP(address.Hostname()).IsLoopback())
}

func tokenOf(t *testing.T, c *ControlPlane, life time.Duration) *authenticationv1.TokenRequest {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(life.Seconds())),
	}}
	request, err := clientFor(t, c.RESTConfig()).CoreV1().ServiceAccounts("default").
		CreateToken(t.Context(), "default", request, metav1.CreateOptions{})
	require.NoError(t, err)
	return request
}

func pidsOf(c *ControlPlane) []int {
	var pids []int
	for _, p := range []*process.Process{c.etcd, c.apiServer, c.controllerManager} {
		if p != nil {
			pids = append(pids, p.Pid())
		}
	}
	return pids
}
