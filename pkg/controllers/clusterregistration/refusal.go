package clusterregistration

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// isFinal says whether an agent does well to ask rarely: only a person can change anything.
func isFinal(reason string) bool {
	switch reason {
	case fleet.ReasonDenied, fleet.ReasonClientIDInUse, fleet.ReasonTokenUsedUp, fleet.ReasonClientIDNotAllowed,
		fleet.ReasonLongLivedRefused, fleet.ReasonQuarantined, fleet.ReasonTokenMismatch, fleet.ReasonSuperseded,
		fleet.ReasonClientIDEmpty, fleet.ReasonClientIDTooLong, fleet.ReasonClientIDAmbiguous, fleet.ReasonClusterNameTaken:
		return true
	}
	return false
}

// answer tells the agent what became of its request, where that is not for the credential to tell: in a Secret of the name
// the agent looks for. Agents of other releases would take it for a credential, so only those get it that renew theirs.
func (p *pass) answer(ctx context.Context, out result.Result) error {
	if !renews(p.request) || p.request.Status.Granted {
		return nil
	}
	switch {
	case out.IsStalled() && isFinal(out.Reason):
		return p.refuse(ctx, out)
	case out.IsWait():
		return p.withdrawRefusal(ctx)
	}
	return nil
}

// refuse writes the Secret, after the right to read it. Where the token is not known nobody may read it, and where the name
// is taken there is no place for it.
func (p *pass) refuse(ctx context.Context, out result.Result) error {
	if p.reader == nil && !p.findReader(ctx).IsDone() {
		return nil
	}
	wanted := p.refusalSecret(out)
	existing, err := p.secrets.Get(wanted.Namespace, wanted.Name)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return err
	case err == nil && (!isFor(existing, p.request) || reflect.DeepEqual(existing.Data, wanted.Data)):
		return nil
	}
	id := registration.OwnedSetID(setID, p.request.Namespace, p.request.Name)
	err = p.sets.Ensure(ctx, id, p.request, p.readerRights()...)
	if foreign := new(desiredset.ForeignError); errors.As(err, &foreign) {
		return nil
	} else if err != nil {
		return fmt.Errorf("letting the agent read why it is refused: %w", err)
	}
	return p.writeRefusal(ctx, existing, wanted)
}

// writeRefusal overwrites only what is of this request. One that the cache has not seen yet is of a moment ago, and its event
// brings nothing back: the next pass compares.
func (p *pass) writeRefusal(ctx context.Context, existing, wanted *corev1.Secret) (err error) {
	secrets := p.Kubernetes.CoreV1().Secrets(wanted.Namespace)
	if existing == nil {
		_, err = secrets.Create(ctx, wanted, metav1.CreateOptions{})
	} else {
		wanted.ResourceVersion = existing.ResourceVersion
		_, err = secrets.Update(ctx, wanted, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("writing Secret %s/%s, which tells the agent why it is refused: %w", wanted.Namespace, wanted.Name, err)
	}
	return nil
}

func (p *pass) refusalSecret(out result.Result) *corev1.Secret {
	meta := managed(p.RegistrationNamespace(), p.secretName())
	meta.Annotations = map[string]string{
		fleet.ClusterRegistrationAnnotation:          p.request.Name,
		fleet.ClusterRegistrationNamespaceAnnotation: p.request.Namespace,
	}
	return &corev1.Secret{
		ObjectMeta: meta,
		Type:       registration.SecretTypeCredential,
		Data: map[string][]byte{
			registration.RefusalReason:  []byte(out.Reason),
			registration.RefusalMessage: []byte(out.Message),
		},
	}
}

// isRefusal says whether a Secret is an answer without a credential.
func isRefusal(secret *corev1.Secret) bool {
	return secret != nil && secret.Type == registration.SecretTypeCredential && len(secret.Data[registration.RefusalReason]) > 0
}

// withdrawRefusal is for a request that is not refused any more: its agent has reason to wait again.
func (p *pass) withdrawRefusal(ctx context.Context) error {
	existing, err := p.secrets.Get(p.RegistrationNamespace(), p.secretName())
	if apierrors.IsNotFound(err) || err == nil && !(isRefusal(existing) && isFor(existing, p.request)) {
		return nil
	} else if err != nil {
		return err
	}
	return p.deleteSecret(ctx, existing)
}

// dropRefusal removes a refusal whose request is gone: nothing else in it ends.
func (h *handler) dropRefusal(ctx context.Context, secret *corev1.Secret) error {
	key := requestKeyOf(secret)
	if _, err := h.cache.Get(key.Namespace, key.Name); !apierrors.IsNotFound(err) {
		return err
	}
	return h.deleteSecret(ctx, secret)
}
