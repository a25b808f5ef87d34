package agent

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
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
}

// dial prepares a connection; nothing is sent yet. The caller closes it.
func (l *life) dial(access hubAccess, mode config.TLSMode) (*hub, error) {
	roots, err := trustedRoots(mode, access, x509.SystemCertPool)
	if err != nil {
		return nil, err
	}
	restConfig := l.hubConfig(access)
	transport := newTransport(roots)
	skew := &skewMeter{clock: l.config.Clock, next: transport}
	wrapped, err := rest.HTTPWrappersForConfig(restConfig, skew)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: wrapped, Timeout: restConfig.Timeout, CheckRedirect: refuseRedirect}
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
	watching, err := versioned.NewForConfigAndClient(unbounded, &http.Client{Transport: wrapped, CheckRedirect: refuseRedirect})
	if err != nil {
		return nil, err
	}
	return &hub{namespace: access.namespace, fleet: fleet, watching: watching, core: core, transport: transport, skew: skew}, nil
}

func (l *life) hubConfig(access hubAccess) *rest.Config {
	return &rest.Config{
		Host:        access.server,
		BearerToken: access.token,
		UserAgent:   "fleetagent/" + l.config.Version,
		Timeout:     l.config.Timing.Request,
		// One bucket for all clients of this connection; a clientset given only QPS makes one of its own.
		RateLimiter: flowcontrol.NewTokenBucketRateLimiter(hubQPS, hubBurst),
		QPS:         hubQPS,
		Burst:       hubBurst,
	}
}

// refuseRedirect keeps the token at the address it was given for: it would be sent along to wherever a redirect points.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// newTransport has client-go's defaults: the proxy of the environment, HTTP/2 with pings, so that a dead connection is
// noticed. It is not client-go's shared one, which lives as long as the process.
func newTransport(roots *x509.CertPool) *http.Transport {
	return utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		IdleConnTimeout: idleConnection,
	})
}

func (h *hub) close() {
	if h != nil && h.transport != nil {
		h.transport.CloseIdleConnections()
	}
}
