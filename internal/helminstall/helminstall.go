// Package helminstall installs Muster's charts the way a person does with helm install.
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

// Install installs one of Muster's charts under its own name into the namespace, which it makes, so that a release is there
// as a person would have it. It does not wait for what it installs.
func Install(ctx context.Context, config *rest.Config, namespace, name string, values map[string]any) error {
	chart, err := charts.Load(name)
	if err != nil {
		return err
	}
	quiet := rest.CopyConfig(config)
	// What the API server warns of would be printed between the lines of whoever installs.
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
