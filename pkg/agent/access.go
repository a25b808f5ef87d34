package agent

import (
	"bytes"
	"crypto/x509"
	"errors"
	"net/url"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// hubAccess is a way to the hub: address, CA and bearer token. Nothing else is supported on purpose: a proxy in front of
// the hub passes bearer tokens only.
type hubAccess struct {
	server    string
	ca        []byte // PEM; empty means none was given
	token     string
	namespace string // of the requests that name none
	caSource  string // where a person would put the CA
}

// Names in the kubeconfig that other components read too.
const (
	kubeconfigCluster = "cluster"
	kubeconfigUser    = "user"
	kubeconfigContext = "default"
)

// kubeconfig is the access in the form in which it is stored; the CA is kept in it whatever the TLS mode, so that others
// who read the Secret can use it.
func (a hubAccess) kubeconfig() ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{
			kubeconfigCluster: {Server: a.server, CertificateAuthorityData: a.ca},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{kubeconfigUser: {Token: a.token}},
		Contexts: map[string]*clientcmdapi.Context{
			kubeconfigContext: {Cluster: kubeconfigCluster, AuthInfo: kubeconfigUser, Namespace: a.namespace},
		},
		CurrentContext: kubeconfigContext,
	})
}

// parseKubeconfig is the reverse. It reads the current context whatever its name, and refuses what hubAccess cannot
// express rather than leave it out. Errors say nothing of the content: it holds a token.
func parseKubeconfig(data []byte) (hubAccess, error) {
	config, err := clientcmd.Load(data)
	if err != nil || len(data) == 0 {
		return hubAccess{}, errors.New("it is no kubeconfig")
	}
	kubeContext := config.Contexts[config.CurrentContext]
	if kubeContext == nil {
		return hubAccess{}, errors.New("its current context does not exist")
	}
	cluster, user := config.Clusters[kubeContext.Cluster], config.AuthInfos[kubeContext.AuthInfo]
	if cluster == nil || user == nil {
		return hubAccess{}, errors.New("its current context names a cluster or user that does not exist")
	}
	access := hubAccess{
		server: cluster.Server, ca: bytes.TrimSpace(cluster.CertificateAuthorityData), token: user.Token, namespace: kubeContext.Namespace,
		caSource: "certificate-authority-data in the stored kubeconfig, as apiServerCA of a new bootstrap Secret",
	}
	return access, access.validate()
}

// same says that nothing of it has changed.
func (a hubAccess) same(b hubAccess) bool {
	return strings.TrimRight(a.server, "/") == strings.TrimRight(b.server, "/") && bytes.Equal(a.ca, b.ca) &&
		a.token == b.token && a.namespace == b.namespace
}

func (a hubAccess) validate() error {
	if why := checkServerURL(a.server); why != "" {
		return errors.New("its server is unusable: " + why)
	}
	if a.token == "" {
		return errors.New("its user has no bearer token")
	}
	if !validCA(a.ca) {
		return errors.New("its certificate-authority-data is not a PEM certificate")
	}
	return nil
}

// checkServerURL says what is wrong with the URL of an API server, "" when nothing is.
func checkServerURL(server string) string {
	parsed, err := url.Parse(server)
	switch {
	case server == "":
		return "it is empty"
	case err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http":
		return "it is not a URL like https://hub.example.com"
	case parsed.User != nil:
		return "it has a user name in it; the agent has its token"
	}
	return ""
}

// validCA accepts no CA at all: whether one is needed is a matter of the TLS mode.
func validCA(pem []byte) bool {
	return len(pem) == 0 || x509.NewCertPool().AppendCertsFromPEM(pem)
}
