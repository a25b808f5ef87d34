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
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// isForOwn says whether a kubeconfig Secret has no credential because the hub is to issue one for itself.
func isForOwn(secret *corev1.Secret) bool {
	return secret.Labels[fleet.ManagedLabel] == fleet.ManagedValue && secret.Annotations[fleet.CredentialAnnotation] == fleet.CredentialIssued
}

// isOwn says whether the Cluster is the hub's own. The configuration of the hub decides that alone: whoever may write Secrets
// and Clusters in some namespace could otherwise have the hub install an agent of theirs on its own cluster.
func (p *pass) isOwn() bool {
	own := p.hub.Bootstrap
	return own.Enabled() && p.cluster.Namespace == own.Namespace && p.cluster.Name == registration.LocalCluster &&
		p.secret.Namespace == own.Namespace && p.secret.Name == registration.LocalSecret
}

// ownMember is a connection to the hub's own cluster. The address is the one the hub itself uses, whatever the Secret says: a
// credential of the hub is sent nowhere else. Only its digest is of the Secret, so that a new credential is no new member.
func (p *pass) ownMember(kubeconfig *clientcmdapi.Config) (*member, *failure) {
	if !p.isOwn() {
		return nil, failed(fleet.ReasonKubeconfigInvalid,
			"Secret %s/%s has no credential: it is for Cluster %s of the hub's own cluster, in the namespace that the hub's configuration says",
			p.secret.Namespace, p.secret.Name, registration.LocalCluster)
	}
	fingerprint, err := registration.StatusHash([]any{kubeconfig, p.wanted.tlsMode})
	if err != nil {
		return nil, failed(fleet.ReasonError, "%s", err)
	}
	m, err := p.connectAs(credential.Account{Namespace: p.SystemNamespace, Name: registration.BootstrapAccount})
	if err != nil {
		return nil, failed(fleet.ReasonError, "the hub's own configuration cannot be used for its own cluster: %s", rootCause(err))
	}
	m.fingerprint = fingerprint
	m.agent = func(namespace string) (*member, error) {
		return p.connectAs(credential.Account{Namespace: namespace, Name: registration.AgentName})
	}
	return m, nil
}

// connectAs connects to the hub's own cluster as that ServiceAccount.
func (p *pass) connectAs(account credential.Account) (*member, error) {
	cfg := rest.CopyConfig(p.RESTConfig)
	cfg.Timeout, cfg.QPS = requestTimeout, -1
	identity, err := p.identity(cfg, account)
	if err != nil {
		return nil, err
	}
	plain := &rest.Config{Host: cfg.Host, APIPath: cfg.APIPath, ContentConfig: cfg.ContentConfig, UserAgent: "fleetcontroller", QPS: cfg.QPS}
	return connect(plain, &http.Client{Transport: transport.Steady{Next: identity}, Timeout: cfg.Timeout})
}

func (p *pass) identity(cfg *rest.Config, account credential.Account) (http.RoundTripper, error) {
	own, err := rest.TransportFor(cfg)
	if err != nil || cfg.Transport != nil {
		return own, err // a transport of an embedding program is its identity, and its way
	}
	anonymous, err := rest.TransportFor(rest.AnonymousClientConfig(cfg))
	if err != nil {
		return nil, err
	}
	return &issuedIdentity{issuer: p.Issuer, account: account, clock: p.Clock, anonymous: anonymous, own: own}, nil
}

// issuedIdentity sends requests as a ServiceAccount, with a token that is issued for the first of them and kept in memory.
// Where there is no such ServiceAccount, as in a program that embeds the hub, the hub sends them as itself.
type issuedIdentity struct {
	issuer         credential.Issuer
	account        credential.Account
	clock          clock.PassiveClock
	anonymous, own http.RoundTripper

	mu     sync.Mutex
	issued credential.Issued
	absent bool
}

// ownLifetime is how long a token lives with which the hub calls its own cluster. A call takes a minute or two.
const ownLifetime = credential.MinLifetime

// reserve is how much life a token must have left to be used once more.
const reserve = time.Minute

// RoundTrip sends the request.
func (i *issuedIdentity) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := i.token(req.Context())
	switch {
	case err != nil:
		return nil, err
	case token == "":
		return i.own.RoundTrip(req)
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token.Reveal())
	return i.anonymous.RoundTrip(req)
}

// token is empty where there is no such ServiceAccount.
func (i *issuedIdentity) token(ctx context.Context) (credential.Token, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.absent || i.issued.Token != "" && i.clock.Now().Add(reserve).Before(i.issued.Expires) {
		return i.issued.Token, nil
	}
	issued, err := i.issuer.Request(ctx, i.account, ownLifetime)
	if apierrors.IsNotFound(err) {
		i.absent, i.issued = true, credential.Issued{}
		return "", nil
	} else if err != nil {
		return "", err
	}
	i.issued = issued
	return issued.Token, nil
}
