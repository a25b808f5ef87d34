// Package helminstall installs Muster's charts the way a person does with helm install.
package helminstall

import (
	"context"
	"fmt"
	"log/slog"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/charts"
)

// Install installs one of Muster's charts under its own name into the namespace, which it makes, so that a release is there
// as a person would have it. It does not wait for what it installs.
func Install(ctx context.Context, config *rest.Config, namespace, name string, values map[string]any) error {
	chart, err := charts.Load(name)
	if err != nil {
		return err
	}
	access, err := newAccess(rest.CopyConfig(config), namespace)
	if err != nil {
		return err
	}
	configuration := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	if err := configuration.Init(access, namespace, "secret"); err != nil {
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

// access is what Helm wants to know about a cluster. In contrast to the one of kubectl it keeps nothing on the disk.
type access struct {
	config    *rest.Config
	discovery discovery.CachedDiscoveryInterface
	raw       clientcmd.ClientConfig
}

func newAccess(config *rest.Config, namespace string) (*access, error) {
	// What the API server warns of would be printed between the lines of whoever installs.
	config.WarningHandler = rest.NoWarnings{}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	overrides := &clientcmd.ConfigOverrides{}
	overrides.Context.Namespace = namespace
	return &access{
		config:    config,
		discovery: memory.NewMemCacheClient(client),
		raw:       clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), overrides),
	}, nil
}

func (a *access) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(a.config), nil }

func (a *access) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return a.discovery, nil
}

func (a *access) ToRESTMapper() (meta.RESTMapper, error) {
	return restmapper.NewDeferredDiscoveryRESTMapper(a.discovery), nil
}

func (a *access) ToRawKubeConfigLoader() clientcmd.ClientConfig { return a.raw }
