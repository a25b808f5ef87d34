package bootstrap

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/desiredset"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// bootstrapAccount is the ServiceAccount, made by the chart, whose token the kubeconfig of Cluster local holds.
	bootstrapAccount = "fleet-controller-bootstrap"
	// renewBefore is how much life a token must have left to be kept.
	renewBefore = 30 * 24 * time.Hour
)

// ensureSecret keeps the kubeconfig of the hub's own cluster. The token in it is kept while it is good.
func (h *handler) ensureSecret(ctx context.Context, namespace string) error {
	secrets := h.Kubernetes.CoreV1().Secrets(namespace)
	existing, err := secrets.Get(ctx, secretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		existing = nil
	} else if err != nil {
		return fmt.Errorf("reading Secret %s/%s: %w", namespace, secretName, err)
	}
	if existing != nil && existing.Labels[fleet.ManagedLabel] != fleet.ManagedValue {
		return &desiredset.ForeignError{Kind: "Secret", Namespace: namespace, Name: secretName}
	}
	data, err := h.secretData(ctx, existing)
	if err != nil {
		return err
	}
	if existing == nil {
		_, err = secrets.Create(ctx, localSecret(namespace, data), metav1.CreateOptions{})
		return err
	}
	if sameData(existing.Data, data) {
		return nil
	}
	changed := existing.DeepCopy()
	changed.Data = data
	_, err = secrets.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// removeMoved deletes the kubeconfig of a namespace the local Cluster was in before: with it whoever may read Secrets there
// has the hub.
func (h *handler) removeMoved(ctx context.Context, current string) error {
	managed, err := h.secrets.List("", labels.Everything())
	if err != nil {
		return err
	}
	for _, secret := range managed {
		if secret.Name != secretName || secret.Namespace == current || secret.Data[registration.KubeconfigValue] == nil {
			continue
		}
		err := h.Kubernetes.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &secret.UID},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting the hub's kubeconfig in the namespace it moved away from: %w", err)
		}
	}
	return nil
}

func localSecret(namespace string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: secretName, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
		},
		Data: data,
	}
}

func sameData(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for key := range a {
		if !bytes.Equal(a[key], b[key]) {
			return false
		}
	}
	return true
}

func (h *handler) secretData(ctx context.Context, existing *corev1.Secret) (map[string][]byte, error) {
	cfg := rest.CopyConfig(h.RESTConfig)
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, fmt.Errorf("reading the hub's own TLS files: %w", err)
	}
	user, err := h.user(ctx, cfg, existing)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"cluster": {Server: cfg.Host, CertificateAuthorityData: cfg.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"user": user},
		Contexts:       map[string]*clientcmdapi.Context{"default": {Cluster: "cluster", AuthInfo: "user"}},
		CurrentContext: "default",
	})
	return map[string][]byte{
		registration.KubeconfigValue:        kubeconfig,
		registration.KubeconfigAPIServerURL: []byte(cfg.Host),
		registration.KubeconfigAPIServerCA:  cfg.CAData,
	}, err
}

// user is the ServiceAccount the chart made for this; without one, it is the hub itself.
func (h *handler) user(ctx context.Context, cfg *rest.Config, existing *corev1.Secret) (*clientcmdapi.AuthInfo, error) {
	account, err := h.Kubernetes.CoreV1().ServiceAccounts(h.SystemNamespace).Get(ctx, bootstrapAccount, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ownUser(cfg)
	} else if err != nil {
		return nil, fmt.Errorf("reading ServiceAccount %s/%s: %w", h.SystemNamespace, bootstrapAccount, err)
	}
	if kept := tokenOf(existing); kept != "" {
		claims, err := credential.Inspect(kept)
		if err == nil && claims.ServesUntil(string(account.UID), h.Clock.Now().Add(renewBefore)) {
			return &clientcmdapi.AuthInfo{Token: kept.Reveal()}, nil
		}
	}
	issued, err := h.Issuer.Issue(ctx, credential.Account{Namespace: h.SystemNamespace, Name: bootstrapAccount}, credential.LongLived)
	return &clientcmdapi.AuthInfo{Token: issued.Token.Reveal()}, err
}

func tokenOf(secret *corev1.Secret) credential.Token {
	if secret == nil {
		return ""
	}
	parsed, err := clientcmd.Load(secret.Data[registration.KubeconfigValue])
	if err != nil || parsed.AuthInfos["user"] == nil {
		return ""
	}
	return credential.Token(parsed.AuthInfos["user"].Token)
}

func ownUser(cfg *rest.Config) (*clientcmdapi.AuthInfo, error) {
	token := cfg.BearerToken
	if cfg.BearerTokenFile != "" {
		data, err := os.ReadFile(cfg.BearerTokenFile)
		if err != nil {
			return nil, fmt.Errorf("reading the hub's own token: %w", err)
		}
		token = string(data)
	}
	return &clientcmdapi.AuthInfo{
		Token: token, ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Username: cfg.Username, Password: cfg.Password,
	}, nil
}
