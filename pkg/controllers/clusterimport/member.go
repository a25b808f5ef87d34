package clusterimport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"golang.org/x/sync/semaphore"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

const (
	// requestTimeout limits one request to a member.
	requestTimeout = 15 * time.Second
	userAgent      = "fleetcontroller"
	// largeResponses is the number of large responses, and of large histories, that the members of one workspace may have in the hub's memory at
	// the same time.
	largeResponses = 1
	// streamBuffer limits what a member sends in a response of HTTP/2 before it is read.
	streamBuffer = 64 << 10
	// maxConnections limits the connections of one call. Most API servers use one, with HTTP/2. With HTTP/1.1 each watch of a hook of Helm takes one.
	maxConnections = 8
)

// Limits of the responses of members. A tenant chooses the servers of its members and has up to 128 calls at the same time (calls.go). A decoded
// value takes at most some 200 bytes beside its text.
var (
	// responseLimits: the largest objects are Secrets of Helm releases, of up to 1.5 MiB, and the list of the member's resources, of which
	// each has some 25 values.
	responseLimits = transport.ResponseLimits{Bytes: 4 << 20, Values: 100_000}
	// agentLimits are those of the objects of an agent, which have some 10 kB, but for the kubeconfig of an agent: it contains the CAs of the hub. Without
	// them, each answer to an import could be as large as a Helm history, and the hub would read all of it before it refuses it.
	agentLimits = transport.ResponseLimits{Bytes: 512 << 10, Values: 50_000}
	// historyLimits are those of all revisions of a release, reduced to what a removal needs, which is some 200 bytes and 12 nodes for each object. So
	// they have room for five revisions with more than a thousand objects each, and with charts of any size up to Scanned.
	historyLimits = release.HistoryLimits{
		Reduces: true, Scanned: 160 << 20, ResponseLimits: transport.ResponseLimits{Bytes: 2 << 20, Values: 10_000}, Nodes: 20_000,
	}
	// smallHistory is larger than five revisions with fifty objects. All calls of a workspace may read such a history at the same time.
	smallHistory = transport.ResponseLimits{Bytes: 128 << 10, Values: 1000}
	// smallLimits are larger than each response of an import: the largest one is the agent's Deployment, of some 8 kB and 500 values.
	smallLimits = transport.ResponseLimits{Bytes: 16 << 10, Values: 1000}
	// watchLimits: the only watches are those of Helm, of the objects of one hook until it has ended.
	watchLimits = transport.ResponseLimits{Bytes: 128 << 10, Values: 5000}
)

// memberClient is a client for one member cluster with the rights of its kubeconfig.
type memberClient struct {
	server      string // the URL without credentials
	fingerprint string // of the kubeconfig and the settings of the connection
	rest        rest.Interface
	objects     dynamic.Interface
	transport   *http.Transport
	large       *transport.Turn
	config      *rest.Config // of the same connection, for Helm
	// clientForAgent returns a client with the rights of the agent in a namespace. It is nil except for the hub's own cluster.
	clientForAgent func(namespace string) (*memberClient, error)
}

// newMemberClient prepares a connection. It sends nothing. Members with the same semaphore large share its turns for large responses.
func newMemberClient(kubeconfig *clientcmdapi.Config, mode config.TLSMode, limits config.Members, large *semaphore.Weighted) (*memberClient, error) {
	cfg, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	fingerprint, err := registration.StatusHash([]any{kubeconfig, mode, limits})
	if err != nil {
		return nil, err
	}
	cfg.Timeout = requestTimeout
	cfg.QPS = -1 // no client-side limit: a call sends most of its requests one after another, and uses maxConnections at most
	cfg.UserAgent = userAgent
	turn := &transport.Turn{Of: large}
	client, connections, err := newHTTPClient(cfg, mode, limits, turn)
	if err != nil {
		return nil, err
	}
	m, err := newClients(cfg, client)
	if err == nil {
		m.fingerprint, m.transport, m.large = fingerprint, connections, turn
	}
	return m, err
}

func newClients(cfg *rest.Config, client *http.Client) (*memberClient, error) {
	plain, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, client)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, err
	}
	return &memberClient{
		server: withoutCredentials(cfg.Host), rest: plain.RESTClient(), objects: objects,
		config: &rest.Config{Host: cfg.Host, Transport: client.Transport, Timeout: cfg.Timeout, QPS: cfg.QPS},
	}, nil
}

// withoutCredentials removes user, password and query from a URL.
func withoutCredentials(server string) string {
	address, err := url.Parse(server)
	if err != nil {
		return "the server of the kubeconfig"
	}
	return (&url.URL{Scheme: address.Scheme, Host: address.Host, Path: address.Path}).String()
}

var errInsecure = fmt.Errorf("it sets insecure-skip-tls-verify, and agentTLSMode is %s: embed the member's CA instead, or set agentTLSMode to %s",
	config.TLSModeStrict, config.TLSModeSystemStore)

// newHTTPClient creates a transport of its own, which can be closed; client-go's cache would keep one for each kubeconfig. In mode
// system-store the CAs of the operating system are trusted in addition to the CA of the kubeconfig. In mode strict only the CA of the kubeconfig
// is trusted, or the CAs of the operating system if the kubeconfig has none; disabling verification is an error.
func newHTTPClient(cfg *rest.Config, mode config.TLSMode, limits config.Members, large *transport.Turn) (*http.Client, *http.Transport, error) {
	if cfg.Insecure && mode == config.TLSModeStrict {
		return nil, nil, errInsecure
	}
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, nil, err
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if mode == config.TLSModeSystemStore && tlsConfig.RootCAs != nil && !cfg.Insecure {
		if tlsConfig.RootCAs, err = withSystemRoots(cfg.CAData); err != nil {
			return nil, nil, err
		}
	}
	server, _, err := rest.DefaultServerURL(cfg.Host, "", schema.GroupVersion{}, true)
	if err != nil {
		return nil, nil, err
	}
	connections := transport.New(tlsConfig, cfg.Proxy)
	rules := transport.AddressRules{Allowed: limits.AllowedCIDRs, Denied: limits.DeniedCIDRs}
	if err := rules.Restrict(connections, server, cfg.Proxy == nil); err != nil {
		return nil, nil, err
	}
	connections.MaxConnsPerHost, connections.MaxIdleConnsPerHost = maxConnections, maxConnections
	connections.DisableCompression = true // responses are small, and decompression would be work that a member can cause
	connections.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: 4 * streamBuffer}
	wrapped, err := rest.HTTPWrappersForConfig(cfg, transport.NoRedirects(transport.Limited{
		Next: connections, Body: responseLimits, Watch: watchLimits, Small: smallLimits, Large: large,
	}))
	if err != nil {
		return nil, nil, err
	}
	return &http.Client{Transport: wrapped, Timeout: cfg.Timeout}, connections, nil
}

func withSystemRoots(ca []byte) (*x509.CertPool, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	roots.AppendCertsFromPEM(ca)
	return roots, nil
}

var errNotKubernetes = errors.New("the server that answers is not a Kubernetes API server")

// uidPattern matches the UIDs of an API server.
var uidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// uid returns the UID of the member's Namespace kube-system, which identifies a cluster, and checks thereby that a Kubernetes API
// server answers. The UID is "" if the user of the kubeconfig may not read it.
func (m *memberClient) uid(ctx context.Context) (types.UID, error) {
	ctx = transport.WithLimits(ctx, agentLimits)
	// The hub's configuration for its own cluster may prefer protobuf.
	namespace, err := metadataOf(
		m.rest.Get().AbsPath("/api/v1/namespaces/"+metav1.NamespaceSystem).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx))
	switch {
	case apierrors.IsForbidden(err):
		return "", m.ping(ctx)
	case err != nil:
		return "", err
	case !uidPattern.MatchString(string(namespace.UID)):
		return "", errNotKubernetes
	}
	return namespace.UID, nil
}

// metadataOf decodes only the metadata of the object in a response.
func metadataOf(response rest.Result) (object metav1.PartialObjectMetadata, err error) {
	body, err := bodyOf(response)
	if err != nil {
		return object, err
	}
	if json.Unmarshal(body, &object) != nil {
		return object, errNotKubernetes
	}
	return object, nil
}

// bodyOf returns the body of a response, or its error, which unlike the error of Raw contains the server's message.
func bodyOf(response rest.Result) ([]byte, error) {
	if err := response.Error(); err != nil {
		return nil, err
	}
	return response.Raw()
}

// ping checks that a Kubernetes API server answers. The discovery client's ServerVersion takes no context and would delay the
// stop of the hub.
func (m *memberClient) ping(ctx context.Context) error {
	body, err := bodyOf(m.rest.Get().AbsPath("/version").Do(ctx))
	if err != nil {
		return err
	}
	var info apiversion.Info
	if err := json.Unmarshal(body, &info); err != nil || info.GitVersion == "" {
		return errNotKubernetes
	}
	return nil
}

func (m *memberClient) close() {
	if m.transport != nil { // the transport of the hub's own client is shared
		m.endHistory()
		m.transport.CloseIdleConnections()
	}
}

// asAgent returns a client for the same member with the rights of the agent in that namespace. On the hub's own cluster the hub
// may install an agent, but only the agent may remove what it deployed. On other members the kubeconfig has the rights for both.
func (m *memberClient) asAgent(namespace string) (*memberClient, error) {
	if m.clientForAgent == nil {
		return m, nil
	}
	return m.clientForAgent(namespace)
}

func (m *memberClient) resource(kind, namespace string) (dynamic.ResourceInterface, error) {
	gvr, known := agentmanifest.Resources[kind]
	if !known {
		return nil, fmt.Errorf("no resource is known for kind %s", kind)
	}
	if namespace == "" {
		return m.objects.Resource(gvr), nil
	}
	return m.objects.Resource(gvr).Namespace(namespace), nil
}

// apply creates or changes an object, and reports whether this call has created it. It forces the ownership of fields: on a member an earlier
// import, Fleet's hub or the chart may have created the object.
func (m *memberClient) apply(ctx context.Context, object runtime.Object) (created bool, err error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return false, err
	}
	kind, namespace := object.GetObjectKind().GroupVersionKind().Kind, accessor.GetNamespace()
	client, err := m.resource(kind, namespace)
	if err != nil {
		return false, err
	}
	gvr, root := agentmanifest.Resources[kind], "/apis"
	if gvr.Group == "" {
		root = "/api"
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return false, err
	}
	unstructured.RemoveNestedField(content, "status")
	body, err := json.Marshal(content)
	if err != nil {
		return false, err
	}
	limits := agentLimits
	limits.Bytes += int64(len(body)) // the answer repeats it; a copy of a pull Secret may have a megabyte
	ctx = transport.WithLimits(ctx, limits)
	// The dynamic client does not return the status code, which says whether the object existed.
	apply := func() (created bool, err error) {
		code := 0
		response := m.rest.Patch(types.ApplyPatchType).
			AbsPath(root, gvr.Group, gvr.Version).NamespaceIfScoped(namespace, namespace != "").Resource(gvr.Resource).Name(accessor.GetName()).
			Param("fieldManager", registration.FieldManager).Param("force", "true").
			SetHeader("Accept", runtime.ContentTypeJSON).
			Body(body).Do(ctx).StatusCode(&code)
		answer, err := metadataOf(response)
		if err == nil && answer.Name != accessor.GetName() {
			err = errNotKubernetes
		}
		return code == http.StatusCreated, err
	}
	strategy, _, _ := unstructured.NestedString(content, "spec", "strategy", "type")
	switch created, err = apply(); {
	case !apierrors.IsInvalid(err):
		return created, err
	case kind == "Deployment" && strategy == string(appsv1.RecreateDeploymentStrategyType):
		// The API server set defaults for rolling updates, which have no owner and contradict strategy Recreate.
		recreate := []byte(`{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`)
		_, err = client.Patch(ctx, accessor.GetName(), types.MergePatchType, recreate, metav1.PatchOptions{FieldManager: registration.FieldManager})
	default:
		return false, err
	}
	if err != nil {
		return false, err
	}
	return apply()
}

// remove deletes an object. It is no error if the object does not exist.
func (m *memberClient) remove(ctx context.Context, kind, namespace, name string) error {
	client, err := m.resource(kind, namespace)
	if err != nil {
		return err
	}
	err = client.Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
