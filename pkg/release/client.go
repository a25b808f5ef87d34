// Package release manages Helm releases on a member: it installs, upgrades and removes them, and compares them with the
// cluster. The agent deploys with it; the hub removes releases with it when a Cluster is deleted.
//
// It uses Helm as a library. Charts come from resources in memory; no home directory, cache or plugin is needed. The history
// is in Secrets, as with Helm's own storage, so that `helm list` shows what an agent deployed.
//
//	client.go     Client; helmAction is one action of Helm that ends with its context
//	deploy.go     Deploy: install or upgrade, from whatever the last attempt left
//	chart.go      the chart of a request
//	plain.go      plain manifests and their overlays
//	kustomize.go  kustomizations, alone or over the output of a chart
//	values.go     the values of a request
//	copies.go     Secrets and ConfigMaps that are copied from the hub for a release
//	render.go     checks and changes of the rendered manifests
//	place.go      the namespace and the name of a release
//	marks.go      marks of Fleet's own agent on releases and objects
//	tenancy.go    the identity of a deployment, and the namespaces that it may use
//	correct.go    Correct: undo drift
//	uninstall.go  Uninstall and Forget
//	history.go    the revisions of releases and the labels on them
//	ledger.go     which objects belong to a release, also after failed deployments
//	cluster.go    Helm's client of the cluster, with the changes that an agent needs
//	drift.go      Compare: differences between an object and the cluster
//	signature.go  signed revisions: which revisions the agent has stored as they are
//	discovery.go  the kinds of the cluster
//	errors.go     errors and their texts
//
// The following two files only bound the memory that large histories and charts take. Deploy and Uninstall can be understood without them:
//
//	limit.go   limits of histories and of charts, before they are decoded, parsed or unpacked
//	reduce.go  revisions that are reduced to what their removal needs
package release

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Default rate limit towards the member's API server: the default of client-go is meant for one person. The deployment of a Bundle takes some
// 15 requests, so this allows more than ten Bundles a second; the API server limits its clients itself.
const (
	memberQPS   = 200
	memberBurst = 400
)

// Client manages releases on one cluster. Several goroutines may use it, but only one at a time may work on a release.
type Client struct {
	config  *rest.Config
	core    kubernetes.Interface
	dynamic dynamic.Interface
	meta    metadata.Interface
	schema  *schemaCache
	history HistoryLimits
	key     []byte // signs revisions; nil if there is none
}

// New returns a client for a cluster, and sends no request. A timeout of the config also ends the watches that wait for readiness; they then begin again.
func New(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	if config.RateLimiter == nil && config.QPS == 0 {
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(memberQPS, memberBurst)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the member's API server: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Client{config: config, core: core, dynamic: dynamicClient, meta: meta, schema: newSchemaCache(core.Discovery())}, nil
}

// helmAction is one action of Helm on the releases of a namespace.
type helmAction struct {
	client    *Client
	namespace string
	// manager is the field manager of the objects that Helm writes.
	manager string
	// member acts with the identity of the action, as cluster does.
	member  kubernetes.Interface
	cluster *cluster
	config  *action.Configuration
	history *historySecrets
}

// newAction prepares an action. Most of Helm's calls take no context, so the transport of the client applies ctx: when it ends, every
// request of the action fails, and nothing continues in the background. If account is set, the action uses that
// ServiceAccount for the objects of the release; the history is always kept with the client's own identity.
func (c *Client) newAction(ctx context.Context, namespace string, account serviceAccount) (*helmAction, error) {
	op := &helmAction{client: c, namespace: namespace, manager: objectManager}
	if c.schema.lookup != nil {
		c.schema.lookup.Reset()
	}
	config := rest.CopyConfig(c.config)
	config.Wrap(transport.Sender(op.setFieldManager).Wrap)
	config.Wrap(endingWith(ctx).Wrap)
	if c.history.Reduces {
		config.Wrap(transport.Sender(op.waitForGroups).Wrap)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	impersonating := rest.CopyConfig(config)
	if account.name != "" {
		impersonating.Impersonate = rest.ImpersonationConfig{UserName: registration.AccountUser(account.namespace, account.name)}
	}
	if op.member, err = kubernetes.NewForConfig(impersonating); err != nil {
		return nil, err
	}
	getter := &clientGetter{config: impersonating, namespace: namespace, schema: c.schema}
	op.history = &historySecrets{SecretInterface: core.CoreV1().Secrets(namespace), ctx: ctx, limits: c.history, key: c.key}
	op.cluster = &cluster{Client: kube.New(getter), schema: c.schema, history: op.history}
	op.cluster.Namespace = namespace
	op.cluster.SetLogger(slog.DiscardHandler)

	op.config = action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	op.config.RESTClientGetter = getter
	op.config.KubeClient = op.cluster
	var history corev1client.SecretInterface = op.history
	if c.key != nil {
		history = signedSecrets{history, c.key, namespace, map[string]bool{}}
	}
	op.config.Releases = storage.Init(soundReleases{driver.NewSecrets(history), c, ctx, namespace})
	op.config.HookOutputFunc = func(_, _, _ string) io.Writer { return io.Discard }
	return op, nil
}

// setFieldManager replaces the field manager in every write by the one of the action, except those of this package. Helm takes the name
// from a package variable, or from the name of the program; both belong to the whole process, which may be an embedding program.
func (o *helmAction) setFieldManager(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	query := req.URL.Query()
	isOurs := query.Get("fieldManager") == registration.FieldManager || strings.HasPrefix(query.Get("fieldManager"), namespaceManager)
	if query.Has("fieldManager") && !isOurs {
		query.Set("fieldManager", o.manager)
		req = req.Clone(req.Context())
		req.URL.RawQuery = query.Encode()
	}
	return next.RoundTrip(req)
}

// waitForGroups waits for the turn of a large history before the API groups of the cluster are listed: Helm's wait for a hook does that, and has the list in
// memory until the end of the action.
func (o *helmAction) waitForGroups(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	if strings.HasSuffix(req.URL.Path, "/apis") {
		if err := o.client.history.waitForTurn(o.history.ctx); err != nil {
			return nil, err
		}
	}
	return next.RoundTrip(req)
}

// endingWith ends requests when ctx ends, and sends none after that.
func endingWith(ctx context.Context) transport.Sender {
	return func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		either, cancel := context.WithCancelCause(req.Context())
		stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
		response, err := next.RoundTrip(req.WithContext(either))
		if err != nil {
			stop()
			cancel(err)
			return nil, err
		}
		response.Body = &closeFunc{response.Body, func() { stop(); cancel(nil) }}
		return response, nil
	}
}

type closeFunc struct {
	io.ReadCloser
	closed func()
}

// Close closes the body and calls closed.
func (c *closeFunc) Close() error {
	defer c.closed()
	return c.ReadCloser.Close()
}

// clientGetter provides Helm with clients. Unlike the getter of Helm's command line it reads no file and no environment variable.
type clientGetter struct {
	config    *rest.Config
	namespace string
	schema    *schemaCache
}

// ToRESTConfig returns a copy, because callers change it.
func (g *clientGetter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

// ToDiscoveryClient returns the cached discovery of the client.
func (g *clientGetter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return g.schema.discovery, nil
}

// ToRESTMapper returns the cached mapper of the client.
func (g *clientGetter) ToRESTMapper() (meta.RESTMapper, error) { return g.schema.mapper, nil }

// ToRawKubeConfigLoader returns a kubeconfig that has only the namespace.
func (g *clientGetter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{
		Context: clientcmdapi.Context{Namespace: g.namespace},
	})
}

// Configuration returns a configuration for Helm's own actions, with the releases in the Secrets of a namespace.
func Configuration(config *rest.Config, namespace string) (*action.Configuration, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	configuration := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	getter := &clientGetter{config: config, namespace: namespace, schema: newSchemaCache(client)}
	return configuration, configuration.Init(getter, namespace, "secret")
}
