package check

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// wayAddress chooses the address of the hub that the agent uses: the address in its credential, or else in its bootstrap Secret. Without both,
// it chooses the address in the hub's configuration, which a new agent would get.
func wayAddress(_ context.Context, k *knowledge) Finding {
	var access hubclient.Access
	switch {
	case k.Probe: // the Job has printed no results, and a connection from this machine does not show whether a pod can connect
		return doesNotApply()
	case k.credential != nil:
		access = k.credential.Access
		access.Mode = access.WorkingMode(k.agentConfig.AgentTLSMode)
	case k.identity != nil:
		access = k.identity.At(k.identity.EndpointIn(k.agentConfig.AgentTLSMode))
	case k.hubConfig != nil:
		source := "the hub's configuration"
		access = hubclient.Access{Endpoint: hubclient.Endpoint{
			Server: k.hubConfig.APIServerURL, CA: bytes.TrimSpace(k.hubConfig.APIServerCA), Mode: k.hubConfig.TLSMode(),
			Source: source, CASource: "apiServerCA of " + source,
		}}
	default:
		return doesNotApply()
	}
	if problem := config.CheckServerURL(access.Server); problem != "" {
		return fail("the apiServerURL of %s is unusable: %s", access.Source, problem)
	}
	if !hubclient.ValidCA(access.CA) {
		return fail("the apiServerCA of %s is not a PEM certificate", access.Source)
	}
	k.access = &access
	if problem := k.checkLoopback(access.Server); problem.Verdict != "" {
		return problem
	}
	if k.hubConfig != nil && k.hubConfig.APIServerURL != "" && strings.TrimRight(k.hubConfig.APIServerURL, "/") != strings.TrimRight(access.Server, "/") {
		return warn("%s, which differs from apiServerURL %s of the hub's configuration", access.Endpoint, k.hubConfig.APIServerURL)
	}
	return pass("%s", access.Endpoint)
}

// checkLoopback returns a finding if the address is a loopback or unspecified address, which in a pod is the pod itself. It returns none if the
// configuration of the hub allows loopback addresses of members, because the members are then on the hub's machine. The finding is a failure if the
// configuration does not allow them, or if the agent's pod has a network of its own; otherwise it is a warning.
func (k *knowledge) checkLoopback(server string) Finding {
	if !isLoopback(server) {
		return doesNotApply()
	}
	address := netip.MustParseAddr("127.0.0.1")
	switch {
	case k.hubConfig != nil && k.memberRules().Check(address) == nil:
		return doesNotApply()
	case k.hubConfig != nil || k.pod != nil && k.pod.Status.PodIP != "" && !k.pod.Spec.HostNetwork:
		return fail("%s is a loopback or unspecified address: in a pod it is the pod itself, so no agent can reach the hub there", server)
	}
	return warn("%s is a loopback or unspecified address: in a pod it is the pod itself, so an agent in a pod cannot reach the hub there", server)
}

func (k *knowledge) memberRules() transport.AddressRules {
	if k.hubConfig == nil {
		return transport.AddressRules{}
	}
	return transport.AddressRules{Allowed: k.hubConfig.Members.AllowedCIDRs, Denied: k.hubConfig.Members.DeniedCIDRs}
}

func isLoopback(server string) bool {
	parsed, err := url.Parse(server)
	if err != nil {
		return false
	}
	host := parsed.Hostname()
	address, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && (address.Unmap().IsLoopback() || address.Unmap().IsUnspecified())
}

// proxyOf returns the proxy that the environment variables of this program set for a server; nil means none.
func proxyOf(server string) (*url.URL, error) {
	parsed, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	return transport.New(nil, nil).Proxy(&http.Request{URL: parsed})
}

// fromHere returns the finding for a failed connection from the machine of the user, who has a kubeconfig of the hub: what the hub knows about the
// agents counts more. It is a warning if the agent is connected, or if other agents are connected that report sameAddress; then it also clears access
// and connection, so that the checks that need them do not apply. It is unknown, and so explains no other failure, if the agent has been registered:
// then the conditions of the Cluster name the cause. Otherwise it is the failure.
func (k *knowledge) fromHere(ctx context.Context, problem Finding, sameAddress func(surveyed) bool) Finding {
	if k.hub == nil {
		return problem
	}
	text := "from this machine: " + problem.Detail
	if k.cluster != nil && fleetstatus.Condition(k.cluster.Status.Conditions, fleet.ConditionConnected).Status == corev1.ConditionTrue {
		k.access, k.connection = nil, nil
		return warn("%s; the agent is connected, so only this machine cannot reach the hub there", text)
	}
	all, err := k.survey(ctx)
	connected := 0
	for _, s := range all {
		if s.connected.Status == corev1.ConditionTrue && sameAddress(s) {
			connected++
		}
	}
	switch {
	case err == nil && connected > 0:
		k.access, k.connection = nil, nil
		return warn("%s; the agents of %d Clusters are connected at this address, so it works", text, connected)
	case k.cluster != nil && !k.cluster.Status.Agent.LastSeen.IsZero():
		return unknown("%s; whether the member can connect is only known on the member: pass --member-kubeconfig and --probe", text)
	}
	return fail("%s", text)
}

// atAddress reports whether an agent uses the address of this check.
func (k *knowledge) atAddress() func(surveyed) bool {
	server := k.access.Server
	return func(s surveyed) bool { return strings.TrimRight(s.address, "/") == strings.TrimRight(server, "/") }
}

// withCA reports whether an agent uses the address and the CA of this check.
func (k *knowledge) withCA() func(surveyed) bool {
	at, hash := k.atAddress(), registration.CAHash(k.access.CA)
	return func(s surveyed) bool { return at(s) && s.caHash == hash }
}

func wayDNS(ctx context.Context, k *knowledge) Finding {
	host := hostOf(k.access.Server)
	proxy, err := proxyOf(k.access.Server)
	if _, isAddress := netip.ParseAddr(host); isAddress == nil || proxy != nil || err != nil {
		return doesNotApply() // a proxy resolves the name itself
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return k.fromHere(ctx, fail("the name %s cannot be resolved: %s", host, err), k.atAddress())
	}
	return pass("%s is %s", host, strings.Join(addresses, ", "))
}

func wayTCP(ctx context.Context, k *knowledge) Finding {
	if proxy, err := proxyOf(k.access.Server); proxy != nil || err != nil {
		return doesNotApply()
	}
	dialer := &net.Dialer{Timeout: requestTimeout}
	connection, err := dialer.DialContext(ctx, "tcp", hostPort(k.access.Server))
	if err != nil {
		return k.fromHere(ctx, fail("no connection to %s: %s", hostPort(k.access.Server), err), k.atAddress())
	}
	_ = connection.Close()
	return pass("%s", hostPort(k.access.Server))
}

func wayProxy(ctx context.Context, k *knowledge) Finding {
	proxy, err := proxyOf(k.access.Server)
	switch {
	case err != nil:
		return fail("the proxy in the environment is unusable: %s", err)
	case proxy == nil:
		return doesNotApply()
	}
	k.connect(ctx)
	var refused *transport.ProxyError
	if errors.As(k.dialErr, &refused) || transport.IsProxyUnreachable(k.dialErr) {
		return k.fromHere(ctx, fail("through proxy %s://%s: %s", proxy.Scheme, proxy.Host, k.dialErr), k.atAddress())
	}
	return pass("%s://%s", proxy.Scheme, proxy.Host)
}

// connect connects to the hub like an agent and reads its version. Only the first call does so.
func (k *knowledge) connect(ctx context.Context) {
	if k.connection != nil || k.dialErr != nil {
		return
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	durations := timing.Default()
	durations.Request = requestTimeout
	dialer := &hubclient.Dialer{UserAgent: "muster-check/" + k.Version, Timing: durations, Clock: clock.RealClock{}, Log: log}
	if k.connection, k.dialErr = dialer.Dial(*k.access); k.dialErr != nil {
		return
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
		if err == nil {
			k.handshakeDone.Store(true)
		}
	}})
	answer := k.connection.Core.Discovery().RESTClient().Get().AbsPath("/version").SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx)
	if k.dialErr = answer.Error(); k.dialErr == nil {
		k.versionAnswer, k.dialErr = answer.Raw()
	}
}

func wayTLS(ctx context.Context, k *knowledge) Finding {
	k.connect(ctx)
	switch {
	case k.connection == nil:
		return fail("%s", k.dialErr)
	case isTLS(k.dialErr):
		return k.fromHere(ctx, fail("%s: %s", k.access.Server, k.dialErr), k.withCA())
	case k.dialErr != nil && !k.handshakeDone.Load() && !strings.HasPrefix(k.access.Server, "http://"):
		return k.fromHere(ctx, fail("the TLS handshake with %s did not complete: %s", k.access.Server, k.dialErr), k.atAddress())
	case strings.HasPrefix(k.access.Server, "http://"):
		return warn("the connection to %s is not encrypted: everybody on the network can read and use the agent's token", k.access.Server)
	}
	return pass("%s", k.access.TLSMode())
}

func isTLS(err error) bool {
	var untrusted *tls.CertificateVerificationError
	var unknownCA x509.UnknownAuthorityError
	var noTLS tls.RecordHeaderError
	var alert tls.AlertError
	return errors.As(err, &untrusted) || errors.As(err, &unknownCA) || errors.As(err, &noTLS) || errors.As(err, &alert) ||
		err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

func wayServer(ctx context.Context, k *knowledge) Finding {
	if k.connection == nil {
		return doesNotApply()
	}
	var status apierrors.APIStatus
	var version apiversion.Info
	switch {
	case errors.As(k.dialErr, &status) && hubclient.FromAPIServer(k.dialErr) && (apierrors.IsUnauthorized(k.dialErr) || apierrors.IsForbidden(k.dialErr)):
		return pass("the API server answers %d", status.Status().Code)
	case k.dialErr != nil:
		return k.fromHere(ctx, fail("%s: %s", k.access.Server, k.dialErr), k.atAddress())
	case json.Unmarshal(k.versionAnswer, &version) != nil || version.GitVersion == "":
		return k.fromHere(ctx, fail("the server at %s is not a Kubernetes API server: it may be a proxy, a login page or another service",
			k.access.Server), k.atAddress())
	}
	return pass("Kubernetes %s", version.GitVersion)
}

const (
	warnSkew = 10 * time.Second
	failSkew = 5 * time.Minute
)

// wayClock compares the clocks of the member's and the hub's API servers, each measured against the clock of this program.
func wayClock(_ context.Context, k *knowledge) Finding {
	if k.connection == nil || k.dialErr != nil || !k.member.clock.known {
		return doesNotApply()
	}
	skew, _ := k.connection.ClockSkew() // this program's clock compared with the hub's; 0 if they differ by less than a second
	ahead := k.member.clock.ahead + skew
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	text := fmt.Sprintf("the member's clock is %s %s the hub's", short(ahead.Abs()), direction)
	switch {
	case ahead.Abs() >= failSkew:
		return fail("%s: one side considers certificates and tokens of the other as expired or not yet valid", text)
	case ahead.Abs() >= warnSkew:
		return warn("%s", text)
	}
	return pass("")
}

func wayAuthenticated(ctx context.Context, k *knowledge) Finding {
	review, err := k.connection.Core.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsUnauthorized(err) && k.credential != nil:
		return fail("the hub rejects the credential in Secret fleet-agent: its ServiceAccount was deleted, it expired, or this is another hub")
	case apierrors.IsUnauthorized(err):
		return fail("the hub rejects the registration token in Secret fleet-agent-bootstrap: it expired or was revoked, or this is another hub")
	case err != nil:
		return failed("asking the hub who the agent is", err)
	}
	return pass("%s", review.Status.UserInfo.Username)
}

// wayAuthorised checks the right that the agent needs first: to list its BundleDeployments if it has a credential, and otherwise to create its
// request.
func wayAuthorised(ctx context.Context, k *knowledge) Finding {
	needed := &authorizationv1.ResourceAttributes{
		Group: fleet.SchemeGroupVersion.Group, Namespace: k.access.Namespace, Verb: "create", Resource: "clusterregistrations",
	}
	if k.credential != nil {
		needed.Verb, needed.Resource = "list", "bundledeployments"
	}
	text := fmt.Sprintf("%s %s in namespace %s of the hub", needed.Verb, needed.Resource, needed.Namespace)
	review, err := k.connection.Core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: needed}}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return failed("asking the hub for the rights of the agent", err)
	case !review.Status.Allowed:
		return fail("the agent may not %s: its Role or RoleBinding there was changed or deleted, or the Cluster is quarantined", text)
	}
	return pass("%s", text)
}

func hostOf(server string) string {
	parsed, err := url.Parse(server)
	if err != nil {
		return ""
	}
	return parsed.Hostname()
}

func hostPort(server string) string {
	parsed, err := url.Parse(server)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(parsed.Hostname(), cmp.Or(parsed.Port(), map[string]string{"http": "80"}[parsed.Scheme], "443"))
}
