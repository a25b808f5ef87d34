package bench

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/controlplane"
)

const (
	uidOfRequest = "11111111-1111-4111-8111-111111111111"
	uidOfObject  = "22222222-2222-4222-8222-222222222222"
	uidOfToken   = "33333333-3333-4333-8333-333333333333"
	uidOfCopy    = "44444444-4444-4444-8444-444444444444"
)

func identityOf(t *testing.T, number, uid string) identity {
	t.Helper()
	i, err := identity{
		clientID: "run-" + number, clientRandom: "random-run-" + number, request: "request-" + number, requestUID: uid,
		cluster: "cluster-" + number, key: "key-" + number,
	}.complete(true)
	require.NoError(t, err)
	return i
}

// objectsOf returns entries that contain each text of the identity once.
func objectsOf(i identity) []controlplane.StoredObject {
	return []controlplane.StoredObject{
		{Key: []byte("/registry/namespaces/" + i.namespace), Value: []byte(i.cluster + " " + strings.Join(i.texts(), " "))},
		{Key: []byte("/registry/roles/" + i.request), Value: []byte(uidOfObject + " " + uidOfToken)},
	}
}

func TestTemplate(t *testing.T) {
	old, other := identityOf(t, "01", uidOfRequest), identityOf(t, "02", uidOfCopy)
	foreign := []controlplane.StoredObject{
		{Key: []byte("/registry/pods/other"), Value: []byte(uidOfToken)},
		{Key: []byte("/registry/events/ns/cluster-01"), Value: []byte(old.cluster)},
	}
	made, err := newTemplate(append(objectsOf(old), foreign...), old, uidOfToken)
	require.NoError(t, err)
	assert.Len(t, made.entries, 2, "objects of others, and events, are not copied")
	copied, err := made.copyFor(other)
	require.NoError(t, err)

	assert.Equal(t, objectsOf(other)[0], copied[1], "the namespace is written last")
	assert.Equal(t, "/registry/roles/request-02", string(copied[0].Key))
	uid, token, _ := strings.Cut(string(copied[0].Value), " ")
	assert.Equal(t, uidOfToken, token, "the token is the same")
	assert.Regexp(t, uidPattern, uid)
	assert.NotEqual(t, uidOfObject, uid)
	assert.Equal(t, made.bytes(), (&template{entries: copied}).bytes())

	t.Run("a text of another length: refused", func(t *testing.T) {
		_, err := made.copyFor(identityOf(t, "003", uidOfCopy))
		require.ErrorContains(t, err, "another length")
	})
	t.Run("a text that does not occur: refused", func(t *testing.T) {
		renamed := old
		renamed.setHash = "unknown"
		_, err := newTemplate(objectsOf(old), renamed)
		require.ErrorContains(t, err, `contains "unknown"`)
	})
}

func TestWriteOrder(t *testing.T) {
	last := -1
	for _, key := range []string{
		"/registry/fleet.cattle.io/clusters/ws/c", "/registry/fleet.cattle.io/clusterregistrations/ws/r", "/registry/configmaps/ns/ca", "/registry/namespaces/ns",
	} {
		order := writeOrder(controlplane.StoredObject{Key: []byte(key)})
		assert.Greater(t, order, last, key)
		last = order
	}
}

func TestCopiedRequest(t *testing.T) {
	assert.Equal(t, "request-a0000", copiedRequest(0))
	assert.Equal(t, "request-azzzz", copiedRequest(36*36*36*36-1))
}
