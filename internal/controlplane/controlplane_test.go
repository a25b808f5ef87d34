package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/process"
	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func TestMain(m *testing.M) { os.Exit(RunTests(m)) }

// soon limits waits for events that usually take milliseconds. It does not measure speed: a machine can be very busy.
const soon = 2 * time.Minute

func TestCredentials(t *testing.T) {
	c := Shared(t, "member")
	token := tokenOf(t, c, time.Hour).Status.Token
	for name, test := range map[string]struct {
		config *rest.Config
		user   string // empty: 401
	}{
		"RESTConfig: administrator":      {c.RESTConfig(), "muster-admin"},
		"Kubeconfig: administrator":      {parse(t, c.Kubeconfig()), "muster-admin"},
		"UserKubeconfig: ServiceAccount": {parse(t, c.UserKubeconfig(token)), "system:serviceaccount:default:default"},
		"UserKubeconfig: invalid token":  {parse(t, c.UserKubeconfig("made-up")), ""},
		"no credential":                  {rest.AnonymousClientConfig(c.RESTConfig()), ""},
	} {
		t.Run(name, func(t *testing.T) {
			review, err := clientFor(t, test.config).AuthenticationV1().SelfSubjectReviews().
				Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			if test.user == "" {
				require.True(t, apierrors.IsUnauthorized(err), "%v", err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.user, review.Status.UserInfo.Username)
		})
	}

	changed := c.RESTConfig()
	changed.CAData[0] = 0
	require.Equal(t, c.CA(), c.RESTConfig().CAData, "each caller has its own configuration")
	version, err := clientFor(t, c.RESTConfig()).Discovery().ServerVersion()
	require.NoError(t, err)
	require.Regexp(t, `^v1\.\d+\.\d+$`, version.GitVersion)
}

func TestStartAndStop(t *testing.T) {
	sample.Long(t)
	name := fmt.Sprintf("stop%d", os.Getpid()) // no other process has this name
	c := own(t, Options{
		Name: name, APIServerArgs: []string{"--service-account-max-token-expiration=2h"},
		BeforeControllerManager: func(_ context.Context, c *ControlPlane) error {
			createConfigMap(t, clientFor(t, c.RESTConfig()), "first")
			require.Nil(t, c.controllerManager)
			return nil
		},
	})
	client := clientFor(t, c.RESTConfig())
	names, err := configMaps(t.Context(), client)
	require.NoError(t, err)
	require.Contains(t, names, "first")
	require.Len(t, temporaryDirs(t, name), 1)
	for _, file := range []string{fileServerKey, fileServiceAccount, "etcd.log", "kube-apiserver.log", "kube-controller-manager.log"} {
		info, err := os.Stat(filepath.Join(c.dir, file))
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "other users can read %s", file)
	}
	expires := tokenOf(t, c, 24*time.Hour).Status.ExpirationTimestamp.Time
	require.WithinDuration(t, time.Now().Add(2*time.Hour), expires, 5*time.Minute, "a flag from Options")

	t.Run("outage of the API server: nothing is lost", func(t *testing.T) {
		url, token := c.URL(), tokenOf(t, c, time.Hour).Status.Token
		createConfigMap(t, client, "before")
		require.NoError(t, c.StopAPIServer())
		// The client may first have to notice that its connection is closed.
		require.Eventually(t, func() bool {
			_, err := configMaps(t.Context(), client)
			return errors.Is(err, syscall.ECONNREFUSED)
		}, soon, pace.First)
		require.ErrorContains(t, c.StopAPIServer(), "not running")
		require.True(t, c.controllerManager.Alive())

		c.options.APIServerArgs = []string{"--no-such-flag"}
		require.ErrorContains(t, c.StartAPIServer(t.Context()), "unknown flag: --no-such-flag")
		c.options.APIServerArgs = nil
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorContains(t, c.StartAPIServer(ended), "waiting for the API server to be ready")
		require.False(t, c.apiServer.Alive())

		require.NoError(t, c.StartAPIServer(t.Context()))
		require.ErrorContains(t, c.StartAPIServer(t.Context()), "already running")
		require.Equal(t, url, c.URL())
		names, err := configMaps(t.Context(), client)
		require.NoError(t, err)
		require.Contains(t, names, "before")
		_, err = clientFor(t, parse(t, c.UserKubeconfig(token))).Discovery().ServerVersion()
		require.NoError(t, err, "the token is still valid")
		_, err = client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "after"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		requireServiceAccount(t, c, "after")
	})

	t.Run("restore: what was written after the snapshot is gone", func(t *testing.T) {
		snapshot := filepath.Join(t.TempDir(), "snapshot.db")
		require.NoError(t, c.Snapshot(t.Context(), snapshot))
		require.ErrorContains(t, c.Snapshot(t.Context(), snapshot), "exists", "a backup is not overwritten")
		createConfigMap(t, client, "later")
		revision := revisionOf(t, client)
		require.NoError(t, c.Restore(t.Context(), snapshot))
		names, err := configMaps(t.Context(), client)
		require.NoError(t, err)
		require.Contains(t, names, "before")
		require.NotContains(t, names, "later")
		require.NoError(t, c.Restore(t.Context(), snapshot, RestoreFlags...))
		require.Greater(t, revisionOf(t, client), revision+999_999_999, "RestoreFlags raise it by a billion")
	})

	pids := pidsOf(c)
	require.Len(t, pids, 3)
	require.Equal(t, pids[0], c.EtcdPid())
	require.Equal(t, pids[2], c.ControllerManagerPid())
	require.NoError(t, c.Stop())
	for _, pid := range pids {
		require.False(t, running(pid))
	}
	require.NoError(t, portIsFree(c.port))
	require.Empty(t, temporaryDirs(t, name))
	require.NoError(t, c.Stop(), "for the second time")
	require.ErrorContains(t, c.StartAPIServer(t.Context()), "it was stopped")
	require.ErrorContains(t, c.StopAPIServer(), "not running")
}

func TestStartFails(t *testing.T) {
	used := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(used, etcdDataDir), 0o700))
	for name, test := range map[string]struct {
		options Options
		problem string
	}{
		"no name":                {Options{}, "Options.Name is not usable"},
		"path as name":           {Options{Name: "a/b"}, `control plane "a/b": Options.Name is not usable`},
		"programs missing":       {Options{Name: "x", Binaries: "/nowhere"}, "/nowhere/etcd"},
		"directory cannot exist": {Options{Name: "x", Dir: "/dev/null/x"}, "/dev/null"},
		"directory of another":   {Options{Name: "x", Dir: used}, used + " has the data of another control plane: remove it or choose another directory"},
		"etcd exits":             {Options{Name: "x", Binaries: fakes(t, map[string]string{"etcd": "exit 1"})}, "etcd ended by itself (exit status 1)"},
		"API server exits": {
			Options{Name: "x", Binaries: fakes(t, map[string]string{"kube-apiserver": "echo no such flag; exit 2"})},
			"kube-apiserver ended by itself (exit status 2); the end of its log:\nno such flag",
		},
		"API server never answers": {Options{Name: "x", Binaries: fakes(t, nil)}, "waiting for the API server to be ready"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.options.Binaries == "" {
				test.options.Binaries = fakes(t, nil)
			}
			if test.options.Name == "x" {
				test.options.Name = fmt.Sprintf("failed%d", os.Getpid())
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			c, err := Start(ctx, test.options)
			require.ErrorContains(t, err, test.problem)
			require.Nil(t, c)
			require.Empty(t, temporaryDirs(t, test.options.Name))
		})
	}

	t.Run("port taken: another port is tried", func(t *testing.T) {
		ports := filepath.Join(t.TempDir(), "ports")
		_, err := Start(t.Context(), Options{Name: "taken", Binaries: fakes(t, map[string]string{"kube-apiserver": `
			for flag; do case $flag in --secure-port=*) echo "$flag" >>` + ports + ` ;; esac; done
			echo "listen tcp 127.0.0.1: bind: address already in use"; exit 1`})})
		require.ErrorContains(t, err, portTaken)
		data, err := os.ReadFile(ports)
		require.NoError(t, err)
		tried := strings.Fields(string(data))
		require.Len(t, tried, portAttempts)
		require.Greater(t, len(slices.Compact(slices.Sorted(slices.Values(tried)))), 1, "always the same port: %v", tried)
	})
}

func TestFreePort(t *testing.T) {
	port, err := FreePort()
	require.NoError(t, err)
	require.True(t, port >= firstPort && port <= lastPort && lastPort < 32768, "%d", port)
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	require.NoError(t, err)
	defer listener.Close()
	require.ErrorContains(t, portIsFree(port), portTaken)
}

// own starts a control plane that the test may stop.
func own(t *testing.T, o Options) *ControlPlane {
	t.Helper()
	SkipShort(t)
	c, err := Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	return c
}

// fakes is a directory with shell scripts instead of the programs. Those without a script wait.
func fakes(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		body := scripts[name]
		if body == "" {
			body = "exec sleep 300"
		}
		script(t, dir, name, body)
	}
	return dir
}

func script(t *testing.T, dir, name, body string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o700))
}

func temporaryDirs(t *testing.T, name string) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "muster-"+name+"-*"))
	require.NoError(t, err)
	return dirs
}

func pidsOf(c *ControlPlane) (pids []int) {
	for _, p := range []*process.Process{c.etcd, c.apiServer, c.controllerManager} {
		pids = append(pids, p.Pid())
	}
	return pids
}

func running(pid int) bool { return syscall.Kill(pid, 0) == nil }

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

func parse(t *testing.T, kubeconfig []byte) *rest.Config {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	require.NoError(t, err)
	return config
}

func tokenOf(t *testing.T, c *ControlPlane, life time.Duration) *authenticationv1.TokenRequest {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life.Seconds()))}}
	request, err := clientFor(t, c.RESTConfig()).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", request, metav1.CreateOptions{})
	require.NoError(t, err)
	return request
}

func createConfigMap(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func configMaps(ctx context.Context, client kubernetes.Interface) (names []string, err error) {
	list, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	return names, nil
}

// revisionOf returns the resourceVersion of the API server.
func revisionOf(t *testing.T, client kubernetes.Interface) int {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{Limit: 1})
	require.NoError(t, err)
	version, err := strconv.Atoi(list.ResourceVersion)
	require.NoError(t, err)
	return version
}

func requireServiceAccount(t *testing.T, c *ControlPlane, namespace string) {
	t.Helper()
	client := clientFor(t, c.RESTConfig())
	require.Eventually(t, func() bool {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	}, soon, pace.First)
}
