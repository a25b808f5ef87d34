package clusterimport

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// secretVersions is a cache of the versions of the hub's Secrets. It does not hold their content; a kubeconfig is read when it is
// needed.
type secretVersions struct {
	informer cache.SharedIndexInformer
}

// Informer returns the informer of the Secrets' metadata.
func (s *secretVersions) Informer() cache.SharedIndexInformer { return s.informer }

// of returns the version of a Secret, or "" if it does not exist.
func (s *secretVersions) of(namespace, name string) string {
	object, exists, err := s.informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !exists {
		return ""
	}
	return version(object.(*metav1.PartialObjectMetadata))
}

// version is "<uid>/<resourceVersion>".
func version(secret metav1.Object) string {
	return string(secret.GetUID()) + "/" + secret.GetResourceVersion()
}

// kubeconfigs keeps the kubeconfig Secret of each import that is under way, and the connection made from it: a Cluster is
// reconciled several times during its import, and each would read the Secret again. The zero kubeconfigs are ready to use.
type kubeconfigs struct{ byCluster sync.Map }

type keptKubeconfig struct {
	secret *corev1.Secret
	mode   config.TLSMode
	limits config.Members
	member *memberClient // nil until connected
}

// get returns what is kept for the Cluster if it comes from this version of the Secret, otherwise the zero kubeconfig.
func (k *kubeconfigs) get(cluster types.NamespacedName, secretVersion string) keptKubeconfig {
	if known, found := k.byCluster.Load(cluster); found && version(known.(keptKubeconfig).secret) == secretVersion {
		return known.(keptKubeconfig)
	}
	return keptKubeconfig{}
}

func (k *kubeconfigs) keep(cluster types.NamespacedName, now keptKubeconfig) {
	k.byCluster.Store(cluster, now)
}

func (k *kubeconfigs) drop(cluster types.NamespacedName) { k.byCluster.Delete(cluster) }

// parseKubeconfig parses the kubeconfig in a Secret. It rejects everything that would make the hub run a program or read a local
// file: any user who may write Secrets in a namespace can write a kubeconfig. The errors never contain parts of the kubeconfig.
func parseKubeconfig(secret *corev1.Secret) (*clientcmdapi.Config, error) {
	data := secret.Data[registration.KubeconfigValue]
	if len(data) == 0 {
		return nil, fmt.Errorf("Secret %s/%s has no key %q with a kubeconfig; its keys: %s; store the kubeconfig under this key",
			secret.Namespace, secret.Name, registration.KubeconfigValue, keysOf(secret))
	}
	parsed, err := clientcmd.Load(data)
	if err != nil {
		return nil, fmt.Errorf("key %q of Secret %s/%s is not a kubeconfig; store the kubeconfig file of the member there",
			registration.KubeconfigValue, secret.Namespace, secret.Name)
	}
	if err := checkSelfContained(parsed); err != nil {
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

func checkSelfContained(parsed *clientcmdapi.Config) error {
	context := parsed.Contexts[parsed.CurrentContext]
	if context == nil {
		return errors.New("has no current context; set current-context")
	}
	cluster, user := parsed.Clusters[context.Cluster], parsed.AuthInfos[context.AuthInfo]
	switch {
	case cluster == nil || cluster.Server == "":
		return errors.New("names no server in its current context; set clusters[].cluster.server")
	case !isServer(cluster.Server):
		return errors.New("names a server that is not a URL; correct clusters[].cluster.server")
	case hasUser(cluster.Server):
		return errors.New("has a user name in the URL of its server, which would expose the password in logs; set username and password in users[].user")
	case !isProxy(cluster.ProxyURL):
		return errors.New("names a proxy that is not an http, https or socks5 URL; correct clusters[].cluster.proxy-url")
	case user == nil:
		return errors.New("names no user in its current context; add the user")
	case user.Exec != nil || user.AuthProvider != nil:
		return errors.New("runs a program to get its credential, which the hub does not support; use a token or a client certificate")
	case cluster.CertificateAuthority+user.TokenFile+user.ClientCertificate+user.ClientKey != "":
		return errors.New("refers to files, which the hub cannot read; embed their content (kubectl config view --flatten)")
	}
	return nil
}

// isServer and isProxy check the URLs before client-go does: the errors of client-go contain the URL, and with it a password.
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
