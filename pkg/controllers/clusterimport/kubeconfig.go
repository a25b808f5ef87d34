package clusterimport

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/pkg/registration"
)

// parseKubeconfig reads the kubeconfig of a Secret. It refuses everything that would make the hub run a program or read a
// file of its own: the kubeconfig comes from whoever may write Secrets in some namespace. Its errors never repeat content.
func parseKubeconfig(secret *corev1.Secret) (*clientcmdapi.Config, error) {
	data := secret.Data[registration.KubeconfigValue]
	if len(data) == 0 {
		return nil, fmt.Errorf("Secret %s/%s has no key %q with a kubeconfig; it has %s",
			secret.Namespace, secret.Name, registration.KubeconfigValue, keysOf(secret))
	}
	parsed, err := clientcmd.Load(data)
	if err != nil {
		return nil, fmt.Errorf("key %q of Secret %s/%s is no kubeconfig", registration.KubeconfigValue, secret.Namespace, secret.Name)
	}
	if err := selfContained(parsed); err != nil {
		return nil, fmt.Errorf("the kubeconfig in Secret %s/%s %w", secret.Namespace, secret.Name, err)
	}
	return parsed, nil
}

func keysOf(secret *corev1.Secret) string {
	keys := make([]string, 0, len(secret.Data))
	for key := range secret.Data {
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return "none"
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}

func selfContained(parsed *clientcmdapi.Config) error {
	context := parsed.Contexts[parsed.CurrentContext]
	if context == nil {
		return errors.New("has no current context")
	}
	cluster, user := parsed.Clusters[context.Cluster], parsed.AuthInfos[context.AuthInfo]
	switch {
	case cluster == nil || cluster.Server == "":
		return errors.New("names no server in its current context")
	case !isServer(cluster.Server):
		return errors.New("names a server that is no URL")
	case hasUser(cluster.Server):
		return errors.New("has a user name in the address of its server, where logs would show the password; put both into its user")
	case !isProxy(cluster.ProxyURL):
		return errors.New("names a proxy that is no http, https or socks5 URL")
	case user == nil:
		return errors.New("names no user in its current context")
	case user.Exec != nil || user.AuthProvider != nil:
		return errors.New("runs a program to get its credential, which the hub does not do; use a token or a client certificate")
	case cluster.CertificateAuthority+user.TokenFile+user.ClientCertificate+user.ClientKey != "":
		return errors.New("names files, which the hub does not have; embed their content")
	}
	return nil
}

// isServer and isProxy are asked first, because the errors of client-go repeat the address with the password in it.
func isServer(address string) bool {
	_, _, err := rest.DefaultServerURL(address, "", schema.GroupVersion{}, true)
	return err == nil
}

func hasUser(address string) bool {
	server, err := url.Parse(address)
	return err == nil && server.User != nil
}

func isProxy(address string) bool {
	proxy, err := url.Parse(address)
	return err == nil && slices.Contains([]string{"", "http", "https", "socks5"}, proxy.Scheme)
}
