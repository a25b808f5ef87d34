package controlplane

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func TestReset(t *testing.T) {
	sample.Long(t)
	c := own(t, Options{Name: "reset"})
	client := clientFor(t, c.RESTConfig())
	require.ErrorContains(t, c.Reset(t.Context()), "no checkpoint")
	require.NoError(t, os.Remove(filepath.Join(c.dir, fileBroken)))
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
				_, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("role-", i), Labels: map[string]string{"reset": "deletes"}},
				}, metav1.CreateOptions{})
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
			roles, err := client.RbacV1().ClusterRoles().Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0", LabelSelector: "reset=deletes"})
			require.NoError(t, err)
			defer roles.Stop()

			require.NoError(t, c.Reset(t.Context()))
			requireDeleted(t, watching)
			requireDistinctDeletions(t, roles, 120)
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

	t.Run("another client still writes", func(t *testing.T) {
		var writer sync.WaitGroup
		defer writer.Wait()
		var created atomic.Int64
		writer.Go(func() {
			for i := range 200 { // takes a second
				late := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("late-", i)}}
				if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), late, metav1.CreateOptions{}); !assert.NoError(t, err) {
					return
				}
				created.Add(1)
			}
		})
		require.Eventually(t, func() bool { return created.Load() > 0 }, time.Minute, time.Millisecond)
		before := created.Load()
		require.NoError(t, c.Reset(t.Context()))
		names, err := configMaps(t.Context(), client)
		require.NoError(t, err)
		for i := range before {
			assert.NotContains(t, names, fmt.Sprint("late-", i), "created before the Reset")
		}
		writer.Wait()
		assert.EqualValues(t, 200, created.Load())
		require.NoError(t, c.Reset(t.Context()))
		names, err = configMaps(t.Context(), client)
		require.NoError(t, err)
		assert.NotContains(t, strings.Join(names, " "), "late-")
	})

	t.Run("the checkpoint was taken before the servers had written all their objects", func(t *testing.T) {
		const authentication = "/registry/configmaps/kube-system/extension-apiserver-authentication"
		etcd := newEtcdClient(c.dir)
		values := maps.Clone(c.checkpoint.values)
		require.Contains(t, values, authentication)
		delete(values, authentication)
		for _, key := range []string{"/registry/clusterroles/admin", "/registry/clusterroles/edit", "/registry/servicecidrs/kubernetes"} {
			if _, ok := values[key]; !ok {
				continue // Kubernetes 1.30 has no ServiceCIDRs
			}
			values[key] = firstValue(t, etcd, key)
			require.NotEqual(t, c.checkpoint.values[key], values[key])
		}
		c.checkpoint = &checkpoint{values: values, revisions: map[string]int64{}}
		require.NoError(t, c.checkpoint.save(c.dir))

		rounds := map[string]int{}
		require.EventuallyWithT(t, func(check *assert.CollectT) {
			_, err := c.checkpoint.restore(t.Context(), etcd, rounds)
			require.NoError(check, err)
			assert.Contains(check, c.checkpoint.values, authentication)
		}, soon, resetPace.First)
		require.NoError(t, c.Reset(t.Context()))
	})

	t.Run("a client that a test has left behind", func(t *testing.T) {
		etcd, rounds := newEtcdClient(c.dir), map[string]int{}
		for range adoptAfter + 2 {
			createConfigMap(t, client, "left-behind")
			_, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "left-behind"}}, metav1.CreateOptions{})
			require.NoError(t, err)
			written, err := c.checkpoint.restore(t.Context(), etcd, rounds)
			require.NoError(t, err)
			require.Subset(t, written, []string{"/registry/configmaps/default/left-behind", "/registry/clusterroles/left-behind"})
		}
		require.False(t, c.isBroken())
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorContains(t, c.Reset(ended), "all clients of the control plane must have ended")
		require.True(t, c.isBroken())
	})

	t.Run("etcd is gone", func(t *testing.T) {
		c.etcd.Kill()
		require.ErrorContains(t, c.Reset(t.Context()), `control plane "reset": reset`)
	})
}

// firstValue returns the value with which a key was created.
func firstValue(t *testing.T, etcd *etcdClient, key string) []byte {
	t.Helper()
	var answer struct {
		Keys []struct {
			Value   []byte `json:"value"`
			Created int64  `json:"create_revision,string"`
		} `json:"kvs"`
	}
	require.NoError(t, etcd.call(t.Context(), "range", map[string]any{"key": []byte(key)}, &answer))
	require.Len(t, answer.Keys, 1)
	created := answer.Keys[0].Created
	require.NoError(t, etcd.call(t.Context(), "range", map[string]any{"key": []byte(key), "revision": fmt.Sprint(created)}, &answer))
	return answer.Keys[0].Value
}

func TestSomeOf(t *testing.T) {
	assert.Equal(t, "a, b", someOf([]string{"a", "b"}))
	many := strings.Split(strings.Repeat("k", maxNamedKeys+2), "")
	assert.True(t, strings.HasSuffix(someOf(many), ", k and 2 more"))
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

// requireDistinctDeletions requires that each deletion has a resourceVersion of its own. A client that resumes its watch with the
// resourceVersion of one deletion otherwise never learns of the others: the controller manager then goes on to create the ServiceAccounts of
// namespaces that are deleted.
func requireDistinctDeletions(t *testing.T, watching watch.Interface, n int) {
	t.Helper()
	versions := map[string]bool{}
	for event := range watching.ResultChan() {
		if event.Type != watch.Deleted {
			continue
		}
		object, err := meta.Accessor(event.Object)
		require.NoError(t, err)
		require.False(t, versions[object.GetResourceVersion()], "two deletions at %s", object.GetResourceVersion())
		if versions[object.GetResourceVersion()] = true; len(versions) == n {
			return
		}
	}
	t.Fatalf("the watch ended after %d of %d deletions", len(versions), n)
}
