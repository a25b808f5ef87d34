package controlplane

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStoredObjects(t *testing.T) {
	c := Clean(t, "member")
	configMaps := clientFor(t, c.RESTConfig()).CoreV1().ConfigMaps("default")
	_, err := configMaps.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "original-0"}, Data: map[string]string{"k": "v"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	all, err := c.StoredObjects(t.Context())
	require.NoError(t, err)
	var original StoredObject
	for _, entry := range all {
		if string(entry.Key) == "/registry/configmaps/default/original-0" {
			original = entry
		}
	}
	require.NotEmpty(t, original.Value)

	watching, err := configMaps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=original-2"})
	require.NoError(t, err)
	defer watching.Stop()
	renamed := func(data []byte, n int) []byte {
		return bytes.ReplaceAll(data, []byte("original-0"), fmt.Append(nil, "original-", n+1))
	}
	err = c.WriteStoredObjects(t.Context(), 2, func(n int) ([]StoredObject, error) {
		return []StoredObject{{Key: renamed(original.Key, n), Value: renamed(original.Value, n)}}, nil
	})
	require.NoError(t, err)
	event := <-watching.ResultChan()
	written, ok := event.Object.(*corev1.ConfigMap)
	require.True(t, ok, "%v", event)
	assert.Equal(t, map[string]string{"k": "v"}, written.Data, "the API server sends what was written to etcd")
	err = c.WriteStoredObjects(t.Context(), 1, func(int) ([]StoredObject, error) { return nil, assert.AnError })
	require.ErrorIs(t, err, assert.AnError)

	metrics, err := c.EtcdMetrics(t.Context())
	require.NoError(t, err)
	assert.Contains(t, metrics, "etcd_debugging_mvcc_total_put_size_in_bytes ")
}
