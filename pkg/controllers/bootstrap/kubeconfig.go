package bootstrap

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// ensureSecret writes the kubeconfig Secret of the hub's own cluster, which contains no credential. Fleet's hub stores a token there; it is
// revoked first, because somebody may have read it.
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
	data, err := h.secretData()
	if err != nil {
		return err
	}
	if existing == nil {
		secret := &corev1.Secret{ObjectMeta: desiredset.Managed(namespace, secretName), Data: data}
		secret.Annotations = map[string]string{fleet.CredentialAnnotation: fleet.CredentialIssued}
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
		return err
	}
	if maps.EqualFunc(existing.Data, data, bytes.Equal) && existing.Annotations[fleet.CredentialAnnotation] == fleet.CredentialIssued {
		return nil
	}
	if err := h.revoke(ctx, tokenOf(existing)); err != nil {
		return err
	}
	changed := existing.DeepCopy()
	changed.Data = data
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, fleet.CredentialAnnotation, fleet.CredentialIssued)
	_, err = secrets.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// deleteMovedSecrets deletes the kubeconfig Secret in a namespace that the configuration named before. If Fleet's hub wrote the Secret, its token
// gives the rights of the hub to everybody who may read Secrets there.
func (h *handler) deleteMovedSecrets(ctx context.Context, current string) error {
	managed, err := h.secrets.List("", labels.Everything())
	if err != nil {
		return err
	}
	for _, secret := range managed {
		if secret.Name != secretName || secret.Namespace == current || secret.Data[registration.KubeconfigValue] == nil {
			continue
		}
		err := h.Kubernetes.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, writes.IfUID(secret))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting Secret %s/%s, a kubeconfig of the hub in the earlier namespace of its own cluster: %w", secret.Namespace, secret.Name, err)
		}
	}
	return nil
}

func (h *handler) secretData() (map[string][]byte, error) {
	cfg := rest.CopyConfig(h.RESTConfig)
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, fmt.Errorf("reading the hub's own TLS files: %w", err)
	}
	kubeconfig, err := transport.Kubeconfig(cfg.Host, cfg.CAData, "", "")
	return map[string][]byte{
		registration.KubeconfigValue:        kubeconfig,
		registration.KubeconfigAPIServerURL: []byte(cfg.Host),
		registration.KubeconfigAPIServerCA:  cfg.CAData,
	}, err
}

// maxKubeconfigNodes limits the YAML of a kubeconfig of Fleet's hub, which has some twenty nodes.
const maxKubeconfigNodes = 1000

// tokenOf returns the token of the kubeconfig that Fleet's hub wrote. Users who may write Secrets in the namespace may have written another
// one: it is examined before it is parsed, because a YAML alias can make it thousands of times as large.
func tokenOf(secret *corev1.Secret) credential.Token {
	data := secret.Data[registration.KubeconfigValue]
	if registration.MostNodes(data) > maxKubeconfigNodes || registration.RefuseAliases(data) != nil {
		return ""
	}
	parsed, err := clientcmd.Load(data)
	if err != nil || parsed.AuthInfos[transport.KubeconfigUser] == nil {
		return ""
	}
	return credential.Token(parsed.AuthInfos[transport.KubeconfigUser].Token)
}

// revoke revokes a token that Fleet's hub stored, which does not expire: it deletes the ServiceAccount of the token and creates it again. A token is
// valid only for the UID of the ServiceAccount that it was issued for.
func (h *handler) revoke(ctx context.Context, stored credential.Token) error {
	claims, err := credential.Inspect(stored)
	if err != nil || claims.Namespace != h.SystemNamespace || claims.ServiceAccount != registration.BootstrapAccount {
		return nil // an embedding program wrote it, with a credential of its own
	}
	account, err := h.Kubernetes.CoreV1().ServiceAccounts(h.SystemNamespace).Get(ctx, registration.BootstrapAccount, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err): // the hub was stopped between the deletion and the creation
		account = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: h.SystemNamespace, Name: registration.BootstrapAccount}}
	case err != nil:
		return fmt.Errorf("reading ServiceAccount %s/%s: %w", h.SystemNamespace, registration.BootstrapAccount, err)
	case string(account.UID) != claims.UID:
		return nil
	}
	accounts := h.Kubernetes.CoreV1().ServiceAccounts(account.Namespace)
	if account.UID != "" {
		err := accounts.Delete(ctx, account.Name, writes.IfUID(account))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting ServiceAccount %s/%s: %w", account.Namespace, account.Name, err)
		}
	}
	again := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: account.Namespace, Name: account.Name, Labels: account.Labels, Annotations: account.Annotations,
		},
		ImagePullSecrets: account.ImagePullSecrets, AutomountServiceAccountToken: account.AutomountServiceAccountToken,
	}
	if _, err := accounts.Create(ctx, again, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating ServiceAccount %s/%s again: %w", account.Namespace, account.Name, err)
	}
	logrus.Infof("ServiceAccount %s/%s was deleted and created again, to revoke the token that Fleet's hub stored", account.Namespace, account.Name)
	return nil
}
