package release

import (
	"log/slog"

	"helm.sh/helm/v4/pkg/action"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// schemaCache is what the cluster says about its kinds, asked for once and again when a kind is not known.
type schemaCache struct {
	discovery discovery.CachedDiscoveryInterface
	mapper    meta.ResettableRESTMapper
}

func newSchemaCache(d discovery.DiscoveryInterface) *schemaCache {
	cached := memory.NewMemCacheClient(d)
	return &schemaCache{discovery: cached, mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached)}
}

// getter is how Helm gets at its clients. Unlike the one of its command line it reads no file and no variable.
type getter struct {
	config    *rest.Config
	namespace string
	schema    *schemaCache
}

// ToRESTConfig returns a copy: who asks changes it.
func (g *getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

// ToDiscoveryClient returns the cached discovery of the client.
func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return g.schema.discovery, nil
}

// ToRESTMapper returns the cached mapper of the client.
func (g *getter) ToRESTMapper() (meta.RESTMapper, error) { return g.schema.mapper, nil }

// ToRawKubeConfigLoader knows the namespace and nothing else.
func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{
		Context: clientcmdapi.Context{Namespace: g.namespace},
	})
}

// Configuration is that of Helm's own actions, with the releases in the Secrets of a namespace, from a rest.Config alone.
func Configuration(config *rest.Config, namespace string) (*action.Configuration, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	configuration := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	access := &getter{config: config, namespace: namespace, schema: newSchemaCache(client)}
	return configuration, configuration.Init(access, namespace, "secret")
}
