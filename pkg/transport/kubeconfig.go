package transport

import (
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Names in the kubeconfigs of Kubeconfig, which other components read too.
const (
	kubeconfigCluster = "cluster"
	KubeconfigUser    = "user"
	kubeconfigContext = "default"
)

// Kubeconfig returns a kubeconfig for a server with this CA. The user has no credential if the token is empty.
func Kubeconfig(server string, ca []byte, token, namespace string) ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{kubeconfigCluster: {Server: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{KubeconfigUser: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{kubeconfigContext: {Cluster: kubeconfigCluster, AuthInfo: KubeconfigUser, Namespace: namespace}},
		CurrentContext: kubeconfigContext,
	})
}
