// Package withkinds has control planes with the kinds of a hub, for tests of packages that testenv imports.
package withkinds

import (
	"context"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/crds"
)

// Shared is a control plane with the kinds, and nothing else of a hub, that the tests of a package share.
func Shared(t testing.TB) *controlplane.ControlPlane {
	t.Helper()
	return controlplane.Shared(t, "kinds", Install)
}

// Install installs the kinds. It is a controlplane.Prepare.
func Install(ctx context.Context, plane *controlplane.ControlPlane) error {
	client, err := clientset.NewForConfig(plane.RESTConfig())
	if err != nil {
		return err
	}
	_, err = crds.Ensure(ctx, client)
	return err
}
