package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestServerNow(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	kube, clock := fake.NewClientset(), clocktesting.NewFakeClock(noon.Add(time.Hour))
	c := &Context{Kubernetes: kube, Clock: clock}
	review, failure, asked := &authenticationv1.SelfSubjectReview{}, error(nil), 0
	kube.PrependReactor("create", "selfsubjectreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
		asked++
		return true, review, failure
	})
	now := func() time.Time {
		t.Helper()
		got, err := c.ServerNow(t.Context())
		require.NoError(t, err)
		return got
	}
	assert.Equal(t, clock.Now(), now(), "an API server that does not say it")

	clock.Step(skewMaxAge)
	review.CreationTimestamp = metav1.NewTime(noon)
	assert.Equal(t, noon, now())
	clock.Step(skewMaxAge / 2)
	assert.Equal(t, noon.Add(skewMaxAge/2), now())
	assert.Equal(t, 2, asked, "asked once a minute at most")

	clock.Step(skewMaxAge)
	failure = apierrors.NewInternalError(assert.AnError)
	_, err := c.ServerNow(t.Context())
	require.ErrorIs(t, err, failure)
	failure = apierrors.NewNotFound(schema.GroupResource{}, "")
	assert.Equal(t, clock.Now(), now(), "an API server without the kind")
}
