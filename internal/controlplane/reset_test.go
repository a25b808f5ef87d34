package controlplane

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestReset(t *testing.T) {
	c := own(t, Options{Name: "reset"})
	client := clientFor(t, c.RESTConfig())
	require.ErrorContains(t, c.Reset(t.Context()), "no checkpoint")
	_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"k": "as it was"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "restored"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, c.Checkpoint(t.Context()))
	require.True(t, c.hasCheckpoint())

	for round := range 3 {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			for i := range 120 { // more than one transaction
				_, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("role-", i)}}, metav1.CreateOptions{})
				require.NoError(t, err)
			}
			_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
			require.NoError(t, err)
			requireServiceAccount(t, c, "new")
			_, err = client.CoreV1().ConfigMaps("new").Create(t.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/forever"}},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			_, err = client.CoreV1().ConfigMaps("default").Update(t.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"k": "changed"},
			}, metav1.UpdateOptions{})
			require.NoError(t, err)
			require.NoError(t, client.CoreV1().ConfigMaps("default").Delete(t.Context(), "restored", metav1.DeleteOptions{}))
			watching, err := client.CoreV1().ConfigMaps("new").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=held"})
			require.NoError(t, err)
			defer watching.Stop()

			require.NoError(t, c.Reset(t.Context()))
			requireDeleted(t, watching)
			_, err = client.CoreV1().Namespaces().Get(t.Context(), "new", metav1.GetOptions{})
			require.True(t, apierrors.IsNotFound(err), "%v", err)
			left, err := client.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			for _, role := range left.Items {
				require.False(t, strings.HasPrefix(role.Name, "role-"), role.Name)
			}
			kept, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, "as it was", kept.Data["k"])
			_, err = client.CoreV1().ConfigMaps("default").Get(t.Context(), "restored", metav1.GetOptions{})
			require.NoError(t, err)
		})
	}

	t.Run("by another process", func(t *testing.T) {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		other := &ControlPlane{options: c.options, dir: c.dir, port: c.port, lent: true, identities: c.identities}
		require.NoError(t, other.Reset(t.Context()))
		_, err = client.CoreV1().ConfigMaps("default").Get(t.Context(), "new", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	})

	t.Run("the controller manager still writes", func(t *testing.T) {
		var writer sync.WaitGroup
		defer writer.Wait()
		writer.Go(func() {
			for i := range 200 { // takes a second
				createConfigMap(t, client, fmt.Sprint("late-", i))
			}
		})
		require.EventuallyWithT(t, func(check *assert.CollectT) {
			names, err := configMaps(t.Context(), client)
			assert.NoError(check, err)
			assert.Contains(check, names, "late-0")
		}, time.Minute, time.Millisecond)
		require.NoError(t, c.Reset(t.Context()))
	})

	t.Run("etcd is gone", func(t *testing.T) {
		c.etcd.Kill()
		require.ErrorContains(t, c.Reset(t.Context()), `control plane "reset": reset`)
	})
}

func requireDeleted(t *testing.T, watching watch.Interface) {
	t.Helper()
	for event := range watching.ResultChan() {
		if event.Type == watch.Deleted {
			return
		}
	}
	t.Fatal("the watch ended without a deletion")
}
