package clusterimport

import (
	"context"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// isHubKubeconfig reports whether a kubeconfig Secret contains no credential because the hub issues one for its own cluster.
func isHubKubeconfig(secret *corev1.Secret) bool {
	return secret.Labels[fleet.ManagedLabel] == fleet.ManagedValue && secret.Annotations[fleet.CredentialAnnotation] == fleet.CredentialIssued
}

// clientForHub returns the client for the hub's own cluster. It uses the address in the hub's own configuration, never the address in the Secret:
// a credential of the hub must not be sent to another server. The fingerprint covers the Secret but not the issued credential,
// so a new credential does not repeat the import.
func (i *Importer) clientForHub(
	hub config.Hub, cluster *fleet.Cluster, secret *corev1.Secret, kubeconfig *clientcmdapi.Config, mode config.TLSMode,
) (*memberClient, *failure) {
	if !isHubCluster(hub, cluster, secret) {
		return nil, failuref(fleet.ReasonKubeconfigInvalid,
			"Secret %s/%s has no credential: it is only valid for Cluster %s of the hub's own cluster, in the namespace bootstrap.namespace of the hub's configuration",
			secret.Namespace, secret.Name, registration.LocalCluster)
	}
	fingerprint, err := registration.StatusHash([]any{kubeconfig, mode})
	if err != nil {
		return nil, failuref(fleet.ReasonError, "%s", err)
	}
	m, err := i.clientAs(credential.Account{Namespace: i.SystemNamespace, Name: registration.BootstrapAccount})
	if err != nil {
		return nil, failuref(fleet.ReasonError, "the hub's own client configuration cannot be used for its own cluster: %s", innermost(err))
	}
	m.fingerprint = fingerprint
	m.clientForAgent = func(namespace string) (*memberClient, error) {
		return i.clientAs(credential.Account{Namespace: namespace, Name: registration.AgentName})
	}
	return m, nil
}

// isHubCluster reports whether the Cluster is the hub's own, which only the hub's configuration decides: otherwise any user who may
// write Secrets and Clusters in a namespace could have the hub install an agent of theirs on the hub's cluster.
func isHubCluster(hub config.Hub, cluster *fleet.Cluster, secret *corev1.Secret) bool {
	return isLocal(hub, cluster) && secret.Namespace == cluster.Namespace && secret.Name == registration.LocalSecret
}

func isLocal(hub config.Hub, cluster *fleet.Cluster) bool {
	return hub.Bootstrap.Enabled() && cluster.Namespace == hub.Bootstrap.Namespace && cluster.Name == registration.LocalCluster
}

// isBesideHub reports whether the agent of the hub's own cluster runs in the namespace of the hub. There it uses the image pull Secrets of the hub
// themselves: a copy would be the Secret that a person has created for the hub, and would be deleted with the agent.
func (i *Importer) isBesideHub(hub config.Hub, cluster *fleet.Cluster) bool {
	return isLocal(hub, cluster) && agentspec.Namespace(i.Context, cluster) == i.SystemNamespace
}

// clientAs returns a client for the hub's own cluster with the identity of a ServiceAccount.
func (i *Importer) clientAs(account credential.Account) (*memberClient, error) {
	cfg := rest.CopyConfig(i.RESTConfig)
	cfg.Timeout, cfg.QPS = requestTimeout, -1
	identity, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Transport == nil { // a transport that an embedding program passes authenticates the requests itself
		anonymous, err := rest.TransportFor(rest.AnonymousClientConfig(cfg))
		if err != nil {
			return nil, err
		}
		identity = &serviceAccountTransport{issuer: i.Issuer, account: account, clock: i.Clock, anonymous: anonymous, asHub: identity}
	}
	plain := &rest.Config{Host: cfg.Host, APIPath: cfg.APIPath, ContentConfig: cfg.ContentConfig, UserAgent: userAgent, QPS: cfg.QPS}
	return newClients(plain, &http.Client{Transport: transport.NoRedirects(identity), Timeout: cfg.Timeout})
}

const (
	// issuedLifetime is the lifetime of the tokens with which the hub calls its own cluster. A call takes a minute at most.
	issuedLifetime = credential.MinLifetime
	// minRemaining is the remaining lifetime below which a new token is issued.
	minRemaining = time.Minute
)

// serviceAccountTransport sends requests as a ServiceAccount. It requests a token before the first request and keeps it in
// memory. If the ServiceAccount does not exist, as in a program that embeds the hub, it uses the hub's identity.
type serviceAccountTransport struct {
	issuer           credential.Issuer
	account          credential.Account
	clock            clock.PassiveClock
	anonymous, asHub http.RoundTripper

	mu     sync.Mutex
	issued credential.Issued
	absent bool // the ServiceAccount does not exist
}

// RoundTrip sends the request with a token of the ServiceAccount, or with the hub's identity if the ServiceAccount does not exist.
func (t *serviceAccountTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := t.token(req.Context())
	switch {
	case err != nil:
		return nil, err
	case token == "":
		return t.asHub.RoundTrip(req)
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token.Reveal())
	return t.anonymous.RoundTrip(req)
}

// token returns a valid token, or "" if the ServiceAccount does not exist.
func (t *serviceAccountTransport) token(ctx context.Context) (credential.Token, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.absent || t.issued.Token != "" && t.clock.Now().Add(minRemaining).Before(t.issued.Expires) {
		return t.issued.Token, nil
	}
	issued, err := t.issuer.Request(ctx, t.account, issuedLifetime)
	if apierrors.IsNotFound(err) {
		t.absent, t.issued = true, credential.Issued{}
		return "", nil
	} else if err != nil {
		return "", err
	}
	t.issued = issued
	return issued.Token, nil
}
