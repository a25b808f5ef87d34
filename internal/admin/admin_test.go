package admin

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

func TestErrorsSayWhatToDo(t *testing.T) {
	noKind := apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Group: "fleet.cattle.io", Resource: "clusters"}, "", "", 0, true)
	tests := map[string]struct {
		err  error
		want string
	}{
		"no namespace":    {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"), "create it with `kubectl create namespace ns`"},
		"no such kind":    {noKind, "is this a hub?"},
		"no such object":  {apierrors.NewNotFound(schema.GroupResource{Resource: "clusters"}, "c"), `clusters "c" not found`},
		"something else":  {errors.New("connection refused"), "connection refused"},
		"another refusal": {apierrors.NewForbidden(schema.GroupResource{Resource: "clusters"}, "c", errors.New("no")), "forbidden"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := Explain(test.err, "ns")
			assert.ErrorContains(t, err, test.want)
			assert.ErrorIs(t, err, test.err)
		})
	}
	assert.Equal(t, apierrors.NewNotFound(schema.GroupResource{Resource: "clusters"}, "c"),
		Explain(apierrors.NewNotFound(schema.GroupResource{Resource: "clusters"}, "c"), "ns"), "nothing is added where nothing is known")
}

func TestTheEndOfAWaitSaysHowItStood(t *testing.T) {
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	stopped, stop := context.WithCancel(t.Context())
	stop()
	assert.EqualError(t, waitError(late, "Cluster a/b", "ImportFailed", errors.New("x")), "Cluster a/b was not ready in time: ImportFailed")
	assert.EqualError(t, waitError(stopped, "Cluster a/b", "", errors.New("x")), "stopped waiting for Cluster a/b: context canceled")
	assert.EqualError(t, waitError(t.Context(), "Cluster a/b", "", errDeleted), "Cluster a/b: it was deleted")
}

func TestASecretWithoutValuesIsNamed(t *testing.T) {
	_, err := valuesOf(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tok"}})
	require.EqualError(t, err, `Secret ns/tok has no key "values": delete it, and the hub makes it again`)
}

func TestABrokenConfigurationIsNoHub(t *testing.T) {
	_, err := Connect(&rest.Config{Host: "://"})
	require.Error(t, err)
}
