package controllers

import (
	"context"

	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/clusternet"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
)

// EnsureNamespacesAndRoles creates what every registration needs: the hub's two namespaces, and the rights that agents share.
func EnsureNamespacesAndRoles(ctx context.Context, c *app.Context) error {
	for _, name := range []string{c.SystemNamespace, c.RegistrationNamespace()} {
		if err := writes.EnsureNamespace(ctx, c.Kubernetes, name); err != nil {
			return err
		}
	}
	if c.Clusternet != nil {
		if err := clusternet.EnsureRole(ctx, c.Kubernetes); err != nil {
			return err
		}
	}
	return agentrole.Ensure(ctx, c.Kubernetes, c.DisableBundles)
}
