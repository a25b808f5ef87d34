package agent

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Limits of an agent towards its hub. They are for a runaway loop; an agent at work stays far below, and ten thousand of
// them share one hub.
const (
	hubQPS   = 20
	hubBurst = 40
)

// hub is a connection to the hub with one credential.
type hub struct {
	namespace string              // of the BundleDeployments, which tell whether the credential works
	fleet     versioned.Interface // requests, bounded in time
	watching  versioned.Interface // watches, which a bound would cut off
	core      kubernetes.Interface
	transport *http.Transport
	skew      *skewMeter
	bearer    *bearer
}

// dial prepares a connection; nothing is sent yet. The caller closes it.
func (l *life) dial(access hubAccess, mode config.TLSMode) (*hub, error) {
	if err := l.checkPlain(access, mode); err != nil {
		return nil, err
	}
	roots, err := trustedRoots(mode, access, x509.SystemCertPool)
	if err != nil {
		return nil, err
	}
	restConfig := l.hubConfig(access)
	connections := newTransport(roots)
	skew := &skewMeter{clock: l.config.Clock, next: &namesDistrust{mode: tlsMode(mode), caSource: access.caSource, next: hasty{connections}}}
	bearer := newBearer(access.token, skew)
	wrapped, err := rest.HTTPWrappersForConfig(restConfig, bearer)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: wrapped, Timeout: restConfig.Timeout, CheckRedirect: transport.RefuseRedirect}
	fleet, err := versioned.NewForConfigAndClient(restConfig, client)
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfigAndClient(restConfig, client)
	if err != nil {
		return nil, err
	}
	unbounded := rest.CopyConfig(restConfig)
	unbounded.Timeout = 0
	watching, err := versioned.NewForConfigAndClient(unbounded, &http.Client{Transport: wrapped, CheckRedirect: transport.RefuseRedirect})
	if err != nil {
		return nil, err
	}
	return &hub{
		namespace: access.namespace, fleet: fleet, watching: watching, core: core, transport: connections, skew: skew, bearer: bearer,
	}, nil
}

func (l *life) hubConfig(access hubAccess) *rest.Config {
	return &rest.Config{
		Host:      access.server,
		UserAgent: "fleetagent/" + l.config.Version,
		Timeout:   l.config.Timing.Request,
		// One bucket for all clients of this connection; a clientset given only QPS makes one of its own.
		RateLimiter: flowcontrol.NewTokenBucketRateLimiter(hubQPS, hubBurst),
		QPS:         hubQPS,
		Burst:       hubBurst,
	}
}

// newTransport has the proxy of the environment.
func newTransport(roots *x509.CertPool) *http.Transport {
	connections := transport.New(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil)
	connections.IdleConnTimeout = idleConnection
	return connections
}

func (h *hub) close() {
	if h != nil && h.transport != nil {
		h.transport.CloseIdleConnections()
	}
}
