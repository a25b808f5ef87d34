package controlplane

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestAnOutageOfTheAPIServer(t *testing.T) {
	c := own(t, Options{Name: "outage", ControllerManager: true})
	client := clientFor(t, c.RESTConfig())
	address := c.URL()
	token := tokenOf(t, c, time.Hour).Status.Token
	createConfigMap(t, client, "before")

	require.NoError(t, c.StopAPIServer())
	// The client may have to notice first that its connection is gone.
	require.Eventually(t, func() bool {
		_, err := listConfigMaps(t.Context(), client)
		return errors.Is(err, syscall.ECONNREFUSED)
	}, soon, pollInterval)
	require.ErrorContains(t, c.StopAPIServer(), "not running", "it is down already")
	require.ErrorContains(t, c.PauseAPIServer(), "not running")
	require.True(t, c.controllerManager.Alive(), "only the API server is down")

	require.NoError(t, c.StartAPIServer(t.Context()))
	require.ErrorContains(t, c.StartAPIServer(t.Context()), "running already")
	require.Equal(t, address, c.URL())
	names, err := listConfigMaps(t.Context(), client)
	require.NoError(t, err)
	require.Contains(t, names, "before", "data survives")
	_, err = clientFromKubeconfig(t, c.UserKubeconfig(token)).Discovery().ServerVersion()
	require.NoError(t, err, "tokens survive")

	t.Run("the controller manager works again", func(t *testing.T) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "after"}}
		_, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err := client.CoreV1().ServiceAccounts("after").Get(t.Context(), "default", metav1.GetOptions{})
			return err == nil
		}, soon, pollInterval)
	})
}

func TestAPausedAPIServerAcceptsAndNeverAnswers(t *testing.T) {
	c := own(t, Options{Name: "pause"})
	client := clientFor(t, c.RESTConfig())
	require.NoError(t, c.PauseAPIServer())

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := listConfigMaps(ctx, client)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	require.NoError(t, c.ResumeAPIServer())
	_, err = listConfigMaps(t.Context(), client)
	require.NoError(t, err)

	require.NoError(t, c.PauseAPIServer())
	pids := pidsOf(c)
	require.NoError(t, c.Stop(), "a paused server can be stopped")
	requireGone(t, pids...)
}

func TestAnAPIServerThatCannotComeBackCanBeTriedAgain(t *testing.T) {
	c := own(t, Options{Name: "comeback"})
	require.NoError(t, c.StopAPIServer())

	c.options.APIServerArgs = []string{"--no-such-flag"}
	require.ErrorContains(t, c.StartAPIServer(t.Context()), "unknown flag: --no-such-flag")

	c.options.APIServerArgs = nil
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.StartAPIServer(ended), context.Canceled)
	require.False(t, c.apiServer.Alive(), "not left half started")

	require.NoError(t, c.StartAPIServer(t.Context()))
}

func createConfigMap(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	_, err := client.CoreV1().ConfigMaps("default").
		Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func listConfigMaps(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	list, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	return names, nil
}
