package guard_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/controllers/guard"
)

func TestAPanicBecomesAnErrorThatNamesTheHandler(t *testing.T) {
	secret := &corev1.Secret{}
	handle := guard.Handler("broken", func(string, *corev1.Secret) (*corev1.Secret, error) { panic("no map") })
	result, err := handle("ns/name", secret)
	require.ErrorContains(t, err, "handler broken panicked: no map")
	assert.Same(t, secret, result)
}

func TestWhatAHandlerReturnsIsLeftAlone(t *testing.T) {
	want, problem := &corev1.Secret{}, errors.New("later")
	handle := guard.Handler("fine", func(string, *corev1.Secret) (*corev1.Secret, error) { return want, problem })
	result, err := handle("ns/name", nil)
	assert.Same(t, want, result)
	assert.Equal(t, problem, err)
}
