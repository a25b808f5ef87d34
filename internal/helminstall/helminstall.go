// Package helminstall installs Muster's charts as helm install does.
package helminstall

import (
	"context"
	"fmt"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/pkg/release"
)

// Install installs one of Muster's charts as a release of the same name and creates the namespace. It does not wait for the
// objects to be ready.
func Install(ctx context.Context, config *rest.Config, namespace, name string, values map[string]any) error {
	chart, err := charts.Load(name)
	if err != nil {
		return err
	}
	quiet := rest.CopyConfig(config)
	// Warnings of the API server would appear in the output of the caller.
	quiet.WarningHandler = rest.NoWarnings{}
	configuration, err := release.Configuration(quiet, namespace)
	if err != nil {
		return err
	}
	install := action.NewInstall(configuration)
	install.ReleaseName, install.Namespace, install.CreateNamespace = name, namespace, true
	install.WaitStrategy = kube.HookOnlyStrategy
	if _, err := install.RunWithContext(ctx, chart, values); err != nil {
		return fmt.Errorf("install chart %s at %s: %w", name, config.Host, err)
	}
	return nil
}
