//go:build e2e

package e2e

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// gone deletes an object and waits until it does not exist any more.
func gone(ctx context.Context, what string, get, remove func(ctx context.Context) error) error {
	if err := remove(ctx); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", what, err)
	}
	return waitFor(ctx, what+" to be gone", func(ctx context.Context) (bool, string) {
		err := get(ctx)
		if apierrors.IsNotFound(err) {
			return true, ""
		}
		return seen(err, false, "it still exists")
	})
}
