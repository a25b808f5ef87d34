package release

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Limits towards the member's API server, for a client that came with none: client-go's own are for one person.
const (
	memberQPS   = 50
	memberBurst = 100
)

// Client keeps releases on one cluster. It may be used by several goroutines, but only one at a time may work on a release.
type Client struct {
	config  *rest.Config
	core    kubernetes.Interface
	dynamic dynamic.Interface
	meta    metadata.Interface
	schema  *schemaCache
}

// New returns a client for the cluster; nothing is sent yet. Watching for readiness needs a config without a timeout.
func New(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	if config.RateLimiter == nil && config.QPS == 0 {
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(memberQPS, memberBurst)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("the way to the member's API server: %w", err)
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

// operation is one action of Helm: everything it sends ends with its context.
type operation struct {
	client    *Client
	namespace string
	cluster   *cluster
	config    *action.Configuration
}

// identity is who acts on the resources; the history of releases is always kept with the client's own rights.
type identity struct{ namespace, account string }

func (i identity) impersonate(config *rest.Config) {
	if i.account != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + i.namespace + ":" + i.account}
	}
}

// operation prepares an action on the releases of a namespace. Helm takes no context for most of what it sends, so it is
// bound to ctx on the wire: when ctx ends the action fails at once, and nothing of it goes on in the background.
func (c *Client) operation(ctx context.Context, namespace string, as identity) (*operation, error) {
	config := rest.CopyConfig(c.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bound{ctx, next} })
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return fieldManager{next} })
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	acting := rest.CopyConfig(config)
	as.impersonate(acting)
	getter := &getter{config: acting, namespace: namespace, schema: c.schema}
	cluster := &cluster{Client: kube.New(getter), mapper: c.schema.mapper}
	cluster.Namespace = namespace
	cluster.SetLogger(slog.DiscardHandler)

	actions := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	actions.RESTClientGetter = getter
	actions.KubeClient = cluster
	actions.Releases = storage.Init(lean{driver.NewSecrets(core.CoreV1().Secrets(namespace))})
	actions.HookOutputFunc = func(_, _, _ string) io.Writer { return io.Discard }
	return &operation{client: c, namespace: namespace, cluster: cluster, config: actions}, nil
}

// capabilities spares plain manifests the discovery that only templates ask for.
func (o *operation) capabilities(p packaged) {
	if p.plain {
		o.config.Capabilities = common.DefaultCapabilities
	}
}

// fieldManager names registration.FieldManager as the field manager of every write that names one. Helm takes the name from
// a package variable, or from the name of the program; both belong to the whole process, which may be somebody else's.
type fieldManager struct{ next http.RoundTripper }

// RoundTrip sends a copy of the request if it names a field manager.
func (f fieldManager) RoundTrip(req *http.Request) (*http.Response, error) {
	if query := req.URL.Query(); query.Has("fieldManager") {
		query.Set("fieldManager", registration.FieldManager)
		req = req.Clone(req.Context())
		req.URL.RawQuery = query.Encode()
	}
	return f.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go reach the transport, to close its connections.
func (f fieldManager) WrappedRoundTripper() http.RoundTripper { return f.next }

// bound sends nothing after its context has ended, and ends what is on its way then.
type bound struct {
	ctx  context.Context
	next http.RoundTripper
}

// RoundTrip gives the request a context that ends with either of the two.
func (b bound) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.ctx.Err() != nil {
		return nil, context.Cause(b.ctx)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	stop := context.AfterFunc(b.ctx, func() { cancel(context.Cause(b.ctx)) })
	answer, err := b.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		stop()
		cancel(err)
		return nil, err
	}
	answer.Body = &released{ReadCloser: answer.Body, release: func() { stop(); cancel(nil) }}
	return answer, nil
}

// WrappedRoundTripper lets client-go reach the transport, to close its connections.
func (b bound) WrappedRoundTripper() http.RoundTripper { return b.next }

type released struct {
	io.ReadCloser
	release func()
}

// Close frees what watched over the answer.
func (r *released) Close() error {
	defer r.release()
	return r.ReadCloser.Close()
}
