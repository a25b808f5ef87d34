// Package hubclient connects the agent to its hub: where the hub is (Endpoint), with which token (Access), which certificates
// are trusted, and what follows for the token from an answer of the hub (TokenVerdict).
package hubclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Limits of an agent towards its hub. They stop a runaway loop. An agent at work stays far below them, and ten thousand agents
// share one hub.
const (
	qps   = 20
	burst = 40
)

// Limits of what the hub sends, or a server that the agent takes for the hub, after decompression. A value of JSON takes many times the memory of
// its text: an empty BundleDeployment in a list has three bytes, and takes more than one kilobyte.
var (
	// responseLimits: the largest response is the list of this cluster's BundleDeployments, of which each has some 100 to 300 values, and six for each
	// object of its release, up to 3,000. The agent lists in pages if they are too many. An API server with the feature WatchList sends them as events
	// instead. A Content has at most 1.5 MiB. A list of nothing but empty BundleDeployments, with as many values, takes some 300 MiB.
	responseLimits = transport.ResponseLimits{Bytes: 64 << 20, Values: 500_000}
	// eventLimits: an event of a watch has one BundleDeployment. The API server accepts objects of up to 3 MiB.
	eventLimits = transport.ResponseLimits{Bytes: 8 << 20, Values: 100_000}
)

// idleConnection is how long a connection without requests stays open. The watch of BundleDeployments keeps one open while the agent works; the
// limit is for the others, for example of a registration, or of an endpoint that the agent has tried.
const idleConnection = 90 * time.Second

// Dialer makes connections to the hub.
type Dialer struct {
	UserAgent string
	Timing    timing.Durations
	Clock     clock.WithTicker
	Log       logrus.FieldLogger

	warnInsecure sync.Once
}

// Connection is a connection to the hub with one token.
type Connection struct {
	// Namespace is that of the Access, for the stored credential the cluster namespace.
	Namespace string
	// Fleet and Core send requests with a timeout, Watching sends watches, which a timeout would cut off.
	Fleet, Watching versioned.Interface
	Core            kubernetes.Interface

	transport *hubTransport
	idle      *http.Transport // closes idle connections
}

// Dial prepares a connection; nothing is sent yet. The caller closes it.
func (d *Dialer) Dial(access Access) (*Connection, error) {
	if err := d.checkScheme(access.Endpoint); err != nil {
		return nil, err
	}
	roots, err := tlsRoots(access.Endpoint, x509.SystemCertPool)
	if err != nil {
		return nil, err
	}
	connections := transport.New(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil) // with the proxy of the environment
	connections.IdleConnTimeout = idleConnection
	// Compression stays enabled, unlike in the hub's connections to members: the agent is often far from its hub, an API server compresses lists
	// and Contents of more than 128 KiB, and the limits apply to what is decompressed.
	hub := &hubTransport{endpoint: access.Endpoint, clock: d.Clock}
	hub.token.Store(&access.Token)
	restConfig := d.restConfig(access.Server)
	wrapped, err := rest.HTTPWrappersForConfig(restConfig, transport.Sender(hub.send).Wrap(
		transport.Limited{Next: connections, Body: responseLimits, Event: eventLimits}))
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
	return &Connection{
		Namespace: access.Namespace, Fleet: fleet, Watching: watching, Core: core, transport: hub, idle: connections,
	}, nil
}

// DialAndVerify returns a connection, and the result of Verify. The connection is nil if it could not be prepared; the token is not judged
// then.
func (d *Dialer) DialAndVerify(ctx context.Context, access Access) (*Connection, TokenVerdict, error) {
	c, err := d.Dial(access)
	if err != nil {
		return nil, Unreachable, err
	}
	verdict, err := d.Verify(ctx, c)
	return c, verdict, err
}

// Verify asks the hub whether it accepts the token of the connection. It repeats the request after a rejection until the
// rejection is certain.
func (d *Dialer) Verify(ctx context.Context, c *Connection) (TokenVerdict, error) {
	threshold := NewRejectionThreshold(d.Timing)
	for {
		err := c.Probe(ctx)
		verdict := Classify(err)
		if verdict != Rejected || threshold.Reached(verdict, d.Clock.Now()) {
			return verdict, err
		}
		d.Log.Debugf("The hub rejects the credential (%v): asking again to be certain", err)
		timing.Pause(ctx, d.Clock, d.Timing.RejectionPause, nil)
	}
}

func (d *Dialer) restConfig(server string) *rest.Config {
	return &rest.Config{
		Host:      server,
		UserAgent: d.UserAgent,
		Timeout:   d.Timing.Request,
		// One bucket for all clients of this connection; a clientset that is given only QPS makes its own.
		RateLimiter: flowcontrol.NewTokenBucketRateLimiter(qps, burst),
	}
}

var errNoList = errors.New("the server that answered is not a Kubernetes API server")

// Probe sends a request that the credential must allow: it lists one BundleDeployment. nil means that the credential works.
func (c *Connection) Probe(ctx context.Context) error {
	list, err := c.Fleet.FleetV1alpha1().BundleDeployments(c.Namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err == nil && list.ResourceVersion == "" {
		// Every list of an API server has a resource version. A captive portal that answers 200 to everything must not make the
		// agent delete its bootstrap Secret.
		return errNoList
	}
	return err
}

// PatchAgentStatus sends a merge patch of the Cluster's status.agent. It changes only the given fields: the hub and other
// components own the rest of the status.
func (c *Connection) PatchAgentStatus(ctx context.Context, namespace, name string, agent any) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"agent": agent}})
	if err != nil {
		return err
	}
	// The definition of a hub of Fleet's own lacks most of these fields, and its API server would warn of each of them at each heartbeat.
	options := metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore}
	_, err = c.Fleet.FleetV1alpha1().Clusters(namespace).Patch(ctx, name, types.MergePatchType, patch, options, "status")
	return err
}

// PatchLease sends a merge patch of the agent's Lease and returns the Lease.
func (c *Connection) PatchLease(ctx context.Context, name string, fields any) (*coordinationv1.Lease, error) {
	patch, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	return c.Core.CoordinationV1().Leases(c.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
}

// UseToken sends another token from the next request on. Requests and watches under way continue: an API server checks the
// token when a request begins.
func (c *Connection) UseToken(token string) { c.transport.token.Store(&token) }

// ClockSkew returns by how much the agent's clock is ahead of the hub's, in whole seconds; false if that is less than a second or unknown.
func (c *Connection) ClockSkew() (time.Duration, bool) { return c.transport.clockSkew() }

// Close closes idle connections. A nil Connection has none.
func (c *Connection) Close() {
	if c != nil {
		c.idle.CloseIdleConnections()
	}
}

const (
	// longestRetryAfter limits the Retry-After header of an answer. client-go waits for that time, and a watch has no timeout: a load balancer's
	// error page with an hour in the header would cut the agent off for an hour.
	longestRetryAfter = 30 * time.Second
	// dateGrain is the resolution of an HTTP date.
	dateGrain = time.Second
	// slowAnswer is the duration of a request from which on the date of its answer is too imprecise.
	slowAnswer = 2 * time.Second
)

// hubTransport sends the requests of a Connection.
type hubTransport struct {
	endpoint Endpoint
	clock    clock.PassiveClock
	token    atomic.Pointer[string] // can be replaced while requests are under way

	mutex     sync.Mutex
	skewKnown bool
	skew      time.Duration // how far the agent's clock is ahead of the hub's
}

// send sends a copy of the request, with the token.
func (t *hubTransport) send(next http.RoundTripper, request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+*t.token.Load())
	sent := t.clock.Now()
	response, err := next.RoundTrip(request)
	if err != nil {
		return response, t.explain(err)
	}
	t.measureSkew(sent, t.clock.Now(), response.Header.Get("Date"))
	const header, most = "Retry-After", int(longestRetryAfter / time.Second)
	if seconds, err := strconv.Atoi(response.Header.Get(header)); err == nil && seconds > most {
		response.Header.Set(header, strconv.Itoa(most))
	}
	return response, nil
}

// explain adds to an error about a certificate what must be corrected, and for an unknown CA which CAs are trusted.
func (t *hubTransport) explain(err error) error {
	var unknownCA x509.UnknownAuthorityError
	var badName x509.HostnameError
	var badCert x509.CertificateInvalidError
	switch {
	case errors.As(err, &badName):
		return fmt.Errorf("the certificate of the hub is not for the address %s: %w; correct the address in %s, or the certificate of the hub",
			t.endpoint.Server, err, t.endpoint.Source)
	case errors.As(err, &badCert):
		return fmt.Errorf("the certificate of the hub is not valid: %w; renew it, or correct the clock of this cluster", err)
	case !errors.As(err, &unknownCA):
		return err
	}
	trusted := "only the given CA is trusted"
	if t.endpoint.TLSMode() != config.TLSModeStrict {
		trusted = "the CAs of this image are trusted and the given CA, if any"
	}
	return fmt.Errorf("the certificate of the hub is not trusted: %w; agentTLSMode is %s, so that %s; correct %s",
		err, t.endpoint.TLSMode(), trusted, t.endpoint.CASource)
}

// measureSkew assumes that the hub wrote the date in the middle of the request, and that the date lost half a second by rounding. Round(0) leaves
// the reading of the wall clock: if the machine was suspended or the clock was set during the request, the date does not fit to the times.
func (t *hubTransport) measureSkew(sent, received time.Time, date string) {
	hubTime, err := http.ParseTime(date)
	duration := received.Round(0).Sub(sent.Round(0))
	if err != nil || duration.Abs() > slowAnswer {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.skewKnown, t.skew = true, sent.Add(duration/2).Sub(hubTime.Add(dateGrain/2))
}

func (t *hubTransport) clockSkew() (time.Duration, bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if !t.skewKnown || t.skew.Abs() < dateGrain {
		return 0, false
	}
	return t.skew.Round(dateGrain), true
}
