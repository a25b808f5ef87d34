package hubclient

import (
	"bytes"
	"errors"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Access is an endpoint and a bearer token for it. Other ways to authenticate are not supported: a proxy in front of the hub
// passes bearer tokens only.
type Access struct {
	Endpoint
	Token string
	// Namespace is the default namespace of requests.
	Namespace string
}

// Names in the kubeconfig that other components read too.
const (
	kubeconfigCluster = "cluster"
	kubeconfigUser    = "user"
	kubeconfigContext = "default"
)

// Kubeconfig returns the access in the form in which it is stored. It contains the CA in every TLS mode, for other readers of the Secret.
func (a Access) Kubeconfig() ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{
			kubeconfigCluster: {Server: a.Server, CertificateAuthorityData: a.CA},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{kubeconfigUser: {Token: a.Token}},
		Contexts: map[string]*clientcmdapi.Context{
			kubeconfigContext: {Cluster: kubeconfigCluster, AuthInfo: kubeconfigUser, Namespace: a.Namespace},
		},
		CurrentContext: kubeconfigContext,
	})
}

// ParseKubeconfig reads the address, the data of the CA, the token and the namespace of the current context, whatever its name. It ignores
// other ways to authenticate or to verify the server: a kubeconfig that needs one of them does not work, or is an error because it has no
// token. Errors do not quote the content, which includes a token.
func ParseKubeconfig(data []byte) (Access, error) {
	config, err := clientcmd.Load(data)
	if err != nil || len(data) == 0 {
		return Access{}, errors.New("it is not a kubeconfig")
	}
	kubeContext := config.Contexts[config.CurrentContext]
	if kubeContext == nil {
		return Access{}, errors.New("its current context does not exist")
	}
	cluster, user := config.Clusters[kubeContext.Cluster], config.AuthInfos[kubeContext.AuthInfo]
	if cluster == nil || user == nil {
		return Access{}, errors.New("its current context names a cluster or user that does not exist")
	}
	access := Access{
		Endpoint: Endpoint{
			Server: cluster.Server, CA: bytes.TrimSpace(cluster.CertificateAuthorityData),
			Source:   "Secret " + registration.CredentialSecret,
			CASource: "apiServerCA in a new Secret " + registration.BootstrapSecret,
		},
		Token: user.Token, Namespace: kubeContext.Namespace,
	}
	return access, access.validate()
}

func (a Access) validate() error {
	if problem := CheckServer(a.Server); problem != "" {
		return errors.New("its server is unusable: " + problem)
	}
	if a.Token == "" {
		return errors.New("its user has no bearer token")
	}
	if !ValidCA(a.CA) {
		return errors.New("its certificate-authority-data is not a PEM certificate")
	}
	return nil
}

// At returns the access with another endpoint.
func (a Access) At(e Endpoint) Access {
	a.Endpoint = e
	return a
}

// Same reports whether both need the same connection.
func (a Access) Same(b Access) bool {
	return a.Endpoint.Same(b.Endpoint) && a.Token == b.Token && a.Namespace == b.Namespace
}
