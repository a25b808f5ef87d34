package testenv

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Get is the Get of a typed client.
type Get[T any] func(ctx context.Context, name string, options metav1.GetOptions) (T, error)

// RequireGone waits until an object is gone.
func RequireGone[T any](t testing.TB, get Get[T], what, name string) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		_, err := get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprintf("%s %s: want it gone, got error %v", what, name, err)
	})
}

// RequireThere reads an object that must exist now.
func RequireThere[T any](t testing.TB, get Get[T], name string) T {
	t.Helper()
	object, err := get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return object
}

// EventuallyThere waits for an object and returns it.
func EventuallyThere[T any](t testing.TB, get Get[T], name string) (object T) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		var err error
		object, err = get(t.Context(), name, metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	return object
}
