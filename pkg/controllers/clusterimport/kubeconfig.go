package clusterimport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/access"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// clientForInstalled returns the client for a member on which the agent is installed; if it is nil, the caller returns out.
func (i *Importer) clientForInstalled(ctx context.Context, hub config.Hub, cluster *fleet.Cluster, secretVersion string) (*memberClient, result.Result) {
	secret, out := i.readSecret(ctx, cluster, secretVersion)
	if secret == nil {
		return nil, out
	}
	member, problem := i.clientFor(hub, cluster, secret, hub.TLSMode())
	if problem != nil {
		return nil, problem.stalled()
	}
	return member, result.Done("", "")
}

// kubeconfigVersion is the version of the Cluster's kubeconfig Secret, or "" if it does not exist.
func (i *Importer) kubeconfigVersion(cluster *fleet.Cluster) string {
	return i.secretVersion(index.KubeconfigNamespace(cluster), cluster.Spec.KubeConfigSecret)
}

// readSecret reads the kubeconfig Secret from the API server, once for each import. If secret is nil, the caller returns out. For a
// namespace whose Secrets the Cluster may not use, a missing Secret is reported like a Secret that may not be used: a Cluster
// must not reveal which Secrets exist there.
func (i *Importer) readSecret(ctx context.Context, cluster *fleet.Cluster, version string) (secret *corev1.Secret, out result.Result) {
	namespace, name := index.KubeconfigNamespace(cluster), cluster.Spec.KubeConfigSecret
	notAllowed := result.Stalled(fleet.ReasonKubeconfigNotAllowed, fmt.Sprintf(
		"Secret %s/%s is in another namespace and does not allow this one, or does not exist; its owner annotates it with %s=%s",
		namespace, name, fleet.KubeconfigAllowedAnnotation, cluster.Namespace))
	missing := result.Wait(fleet.ReasonWaitingForKubeconfig, fmt.Sprintf("waiting for kubeconfig Secret %s/%s", namespace, name)).WithEvent()
	if !access.NeedsNoPermission(cluster) {
		missing = notAllowed
	}
	if version == "" {
		return nil, missing
	}
	secret = i.kubeconfigs.get(nameOf(cluster), version)
	if secret == nil {
		var err error
		secret, err = i.Kubernetes.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, missing
		case err != nil:
			return nil, result.Retry(fleet.ReasonError, fmt.Errorf("reading kubeconfig Secret %s/%s: %w", namespace, name, err))
		}
		secret = withoutUnused(secret)
		if usedSize(secret) <= maxKubeconfig {
			i.kubeconfigs.keep(nameOf(cluster), secret)
		}
	}
	if !access.MayUse(cluster, secret) {
		return nil, notAllowed
	}
	if size := usedSize(secret); size > maxKubeconfig {
		return nil, result.Stalled(fleet.ReasonKubeconfigInvalid, fmt.Sprintf(
			"the keys %s of Secret %s/%s have %d bytes, at most %d are accepted; remove the clusters, contexts and users that the member does not need",
			strings.Join(usedKeys, ", "), namespace, name, size, maxKubeconfig))
	}
	return secret, result.Done("", "")
}

// usedKeys are the keys of a kubeconfig Secret that the hub uses.
var usedKeys = []string{registration.KubeconfigValue, registration.KubeconfigAPIServerURL, registration.KubeconfigAPIServerCA}

// maxKubeconfig limits usedKeys. A pass and a call have them in memory.
const maxKubeconfig = 256 << 10

func usedSize(secret *corev1.Secret) (size int) {
	for _, key := range usedKeys {
		size += len(secret.Data[key])
	}
	return size
}

// withoutUnused removes the values of the other keys, whose names a condition may show.
func withoutUnused(secret *corev1.Secret) *corev1.Secret {
	for key := range secret.Data {
		if !slices.Contains(usedKeys, key) {
			secret.Data[key] = nil
		}
	}
	secret.ManagedFields = nil
	return secret
}

// clientFor returns a client for the member, and sends no request.
func (i *Importer) clientFor(hub config.Hub, cluster *fleet.Cluster, secret *corev1.Secret, mode config.TLSMode) (*memberClient, *failure) {
	parsed, err := parseKubeconfig(secret)
	if err != nil {
		return nil, failuref(fleet.ReasonKubeconfigInvalid, "%s", err)
	}
	if isHubKubeconfig(secret) {
		return i.clientForHub(hub, cluster, secret, parsed, mode)
	}
	if hub.Members.Unknown {
		return nil, failuref(fleet.ReasonConfigInvalid, "the hub connects to no member: %s", i.Config.Problem())
	}
	if !hub.Members.AllowProxyURL && parsed.Clusters[parsed.Contexts[parsed.CurrentContext].Cluster].ProxyURL != "" {
		return nil, failuref(fleet.ReasonAddressNotAllowed,
			"the kubeconfig in Secret %s/%s names a proxy, which the hub uses only with members.allowProxyURL in its configuration (ConfigMap %s); "+
				"remove proxy-url, or set members.allowProxyURL",
			secret.Namespace, secret.Name, registration.HubConfigMap)
	}
	member, err := newMemberClient(parsed, mode, hub.Members, i.calls.large.of(cluster.Namespace))
	var denied *transport.AddressError
	switch {
	case errors.As(err, &denied):
		return nil, addressNotAllowed("connecting to the member", "the server of the kubeconfig")
	case err != nil:
		return nil, failuref(fleet.ReasonKubeconfigInvalid, "the kubeconfig in Secret %s/%s cannot be used: %s",
			secret.Namespace, secret.Name, innermost(err))
	}
	return member, nil
}

// secretVersion returns the version of a Secret, or "" if it does not exist.
func (i *Importer) secretVersion(namespace, name string) string {
	secret := index.Metadata(i.SecretMetadata, index.Key(namespace, name))
	if secret == nil {
		return ""
	}
	return version(secret)
}

// version is "<uid>/<resourceVersion>".
func version(secret metav1.Object) string {
	return string(secret.GetUID()) + "/" + secret.GetResourceVersion()
}

// Limits of kubeconfigs, in bytes. A Secret beyond them is read again when it is needed.
const (
	keptPerWorkspace = 16 << 20 // some 2,000 Secrets of 6 kB
	keptInTotal      = 64 << 20
)

// kubeconfigs keeps the kubeconfig Secret of each import that is under way: a Cluster is reconciled several times during its import, and each pass
// would read the Secret again. Thousands of imports of a workspace may wait for their token or for a slot, so the bytes are limited. The zero
// kubeconfigs are ready to use.
type kubeconfigs struct {
	mu        sync.Mutex
	byCluster map[types.NamespacedName]*corev1.Secret
	sizes     map[string]int // by the workspace
	total     int
}

// keptSize estimates the memory of a Secret, with the names of its other keys, its labels and annotations.
func keptSize(secret *corev1.Secret) int {
	const base, entry = 1 << 10, 64
	entries := len(secret.Data) + len(secret.Labels) + len(secret.Annotations) + len(secret.OwnerReferences) + len(secret.Finalizers)
	return base + secret.Size() + entry*entries
}

// get returns the kubeconfig Secret of the Cluster if it is kept and has this version, otherwise nil.
func (k *kubeconfigs) get(cluster types.NamespacedName, secretVersion string) *corev1.Secret {
	k.mu.Lock()
	defer k.mu.Unlock()
	if secret, found := k.byCluster[cluster]; found && version(secret) == secretVersion {
		return secret
	}
	return nil
}

// keep replaces the Secret of the Cluster, or drops it if there is no room for it.
func (k *kubeconfigs) keep(cluster types.NamespacedName, secret *corev1.Secret) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remove(cluster)
	size := keptSize(secret)
	if k.sizes[cluster.Namespace]+size > keptPerWorkspace || k.total+size > keptInTotal {
		return
	}
	if k.byCluster == nil {
		k.byCluster, k.sizes = map[types.NamespacedName]*corev1.Secret{}, map[string]int{}
	}
	k.byCluster[cluster] = secret
	k.sizes[cluster.Namespace] += size
	k.total += size
}

func (k *kubeconfigs) drop(cluster types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remove(cluster)
}

func (k *kubeconfigs) remove(cluster types.NamespacedName) {
	secret, found := k.byCluster[cluster]
	if !found {
		return
	}
	delete(k.byCluster, cluster)
	size := keptSize(secret)
	k.total -= size
	if k.sizes[cluster.Namespace] -= size; k.sizes[cluster.Namespace] == 0 {
		delete(k.sizes, cluster.Namespace)
	}
}

// parseKubeconfig parses the kubeconfig in a Secret. It rejects everything that would make the hub run a program or read a local
// file: any user who may write Secrets in a namespace can write a kubeconfig. The errors never contain parts of the kubeconfig.
func parseKubeconfig(secret *corev1.Secret) (*clientcmdapi.Config, error) {
	data := secret.Data[registration.KubeconfigValue]
	if len(data) == 0 {
		return nil, fmt.Errorf("Secret %s/%s has no key %q with a kubeconfig; its keys: %s; store the kubeconfig under this key",
			secret.Namespace, secret.Name, registration.KubeconfigValue, keysOf(secret))
	}
	if syntaxOf(data) > maxSyntax {
		return nil, fmt.Errorf("key %q of Secret %s/%s has more than %d lines, keys and elements of lists; remove the clusters, contexts and users that the "+
			"member does not need", registration.KubeconfigValue, secret.Namespace, secret.Name, maxSyntax)
	}
	if err := registration.RefuseAliases(data); err != nil {
		return nil, fmt.Errorf("key %q of Secret %s/%s: %w", registration.KubeconfigValue, secret.Namespace, secret.Name, err)
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

// maxSyntax is the largest syntaxOf a kubeconfig that the hub parses. A workspace may have fifty passes at the same time, and a parser needs some 500 bytes for each line and
// each element.
const maxSyntax = 10_000

// syntaxOf counts the characters that begin a line, a key or an element of a list in YAML and JSON. They are rare in the values of a kubeconfig.
func syntaxOf(document []byte) (count int) {
	for _, character := range []byte("\n\r:,[{-?") {
		count += bytes.Count(document, []byte{character})
	}
	return count
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
	const shown = 5 // the text becomes part of a condition
	if len(keys) > shown {
		keys = append(keys[:shown], fmt.Sprintf("and %d others", len(keys)-shown))
	}
	return strings.Join(keys, ", ")
}

// maxServer is the length of the longest server URL. The URL is part of conditions.
const maxServer = 1024

func checkSelfContained(parsed *clientcmdapi.Config) error {
	context := parsed.Contexts[parsed.CurrentContext]
	if context == nil {
		return errors.New("has no current context; set current-context")
	}
	cluster, user := parsed.Clusters[context.Cluster], parsed.AuthInfos[context.AuthInfo]
	switch {
	case cluster == nil || cluster.Server == "":
		return errors.New("names no server in its current context; set clusters[].cluster.server")
	case len(cluster.Server) > maxServer:
		return fmt.Errorf("names a server of more than %d characters; correct clusters[].cluster.server", maxServer)
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
