package clusterregistrationtoken

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/controllers/app"
)

// The clock of the hub is 13 hours ahead.
func TestIsExpired(t *testing.T) {
	client := fake.NewClientset()
	asked, fails := 0, error(nil)
	client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		return true, &authenticationv1.SelfSubjectReview{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon)}}, fails
	})
	newHandler := func() *handler {
		return &handler{Context: &app.Context{Clock: clocktesting.NewFakeClock(noon.Add(13 * time.Hour)), Kubernetes: client}}
	}
	for name, row := range map[string]struct {
		created time.Duration // before noon
		ttl     time.Duration
		asked   int
		expired bool
	}{
		"created just now":     {0, 12 * time.Hour, 1, false},
		"expired":              {12 * time.Hour, 12 * time.Hour, 1, true},
		"expires in two hours": {10 * time.Hour, 12 * time.Hour, 1, false},
		"expires tomorrow":     {0, 24 * time.Hour, 0, false},
		"never expires":        {100 * time.Hour, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked = 0
			token := someToken(0)
			token.CreationTimestamp = metav1.NewTime(noon.Add(-row.created))
			if row.ttl > 0 {
				token.Spec.TTL = &metav1.Duration{Duration: row.ttl}
			}
			expired, now, err := newHandler().isExpired(t.Context(), token)
			require.NoError(t, err)
			assert.Equal(t, row.expired, expired)
			assert.Equal(t, row.asked, asked)
			if row.asked > 0 {
				assert.Equal(t, noon, now)
			}
		})
	}
	t.Run("the API server does not answer: not expired", func(t *testing.T) {
		token := someToken(0)
		token.CreationTimestamp, token.Spec.TTL = metav1.NewTime(noon.Add(-time.Hour)), &metav1.Duration{Duration: time.Minute}
		fails = errors.New("away")
		expired, _, err := newHandler().isExpired(t.Context(), token)
		require.ErrorIs(t, err, fails)
		assert.False(t, expired)
	})
}
