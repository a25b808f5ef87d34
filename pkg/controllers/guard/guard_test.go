package guard

import (
	"bytes"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func TestRecover(t *testing.T) {
	var log bytes.Buffer
	logrus.SetOutput(&log)
	t.Cleanup(func() { logrus.SetOutput(os.Stderr) })
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, StringData: map[string]string{"token": "hidden"}}
	handle := func(object any, cause any) (err error) {
		defer Recover(Event, object, &err)
		if cause != nil {
			panic(cause)
		}
		return nil
	}
	before := testutil.ToFloat64(Panics.WithLabelValues(Event))
	require.NoError(t, handle(secret, nil))
	assert.Empty(t, log.String())
	for _, object := range []any{secret, cache.DeletedFinalStateUnknown{Key: "ns/s", Obj: secret}, nil} {
		log.Reset()
		require.ErrorContains(t, handle(object, "no map"), "no map")
		assert.Contains(t, log.String(), "no map")
		assert.Contains(t, log.String(), "guard_test.go", "the stack")
		assert.NotContains(t, log.String(), "hidden")
		if object != nil {
			assert.Contains(t, log.String(), "ns/s")
		}
	}
	assert.InDelta(t, before+3, testutil.ToFloat64(Panics.WithLabelValues(Event)), 0)
	assert.NotPanics(t, func() {
		defer Recover(Event, nil, nil)
		panic("no error to set")
	})
}
