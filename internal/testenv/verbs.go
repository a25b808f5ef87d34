package testenv

import (
	"context"
	"fmt"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Generic is the condition type of all kinds.
type Generic = genericcondition.GenericCondition

// Token creates a ClusterRegistrationToken and waits for its values.
func (c *Cluster) Token(t testing.TB, namespace, name string, spec fleet.ClusterRegistrationTokenSpec) registration.Values {
	t.Helper()
	_, err := c.Fleet.ClusterRegistrationTokens(namespace).Create(context.Background(),
		&fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	require.NoError(t, err)
	return c.Values(t, namespace, name)
}

// Values waits for the values of a token.
func (c *Cluster) Values(t testing.TB, namespace, token string) (values registration.Values) {
	t.Helper()
	EventuallyIs(t, c.Kubernetes.CoreV1().Secrets(namespace).Get, token, func(secret *corev1.Secret) (bool, string) {
		var err error
		values, err = registration.DecodeValues(secret.Data[registration.ValuesKey])
		return err == nil && values.Token != "", fmt.Sprint(err)
	})
	return values
}

// Request creates a ClusterRegistration as an agent does, with the token of the values.
func (c *Cluster) Request(t testing.TB, values registration.Values, spec fleet.ClusterRegistrationSpec) *fleet.ClusterRegistration {
	t.Helper()
	return c.request(t, values, spec, nil)
}

// RenewingRequest is Request for an agent that renews its credential. Such an agent understands a refusal.
func (c *Cluster) RenewingRequest(t testing.TB, values registration.Values, spec fleet.ClusterRegistrationSpec) *fleet.ClusterRegistration {
	t.Helper()
	return c.request(t, values, spec, map[string]string{registration.RenewalAnnotation: "true"})
}

func (c *Cluster) request(
	t testing.TB, values registration.Values, spec fleet.ClusterRegistrationSpec, annotations map[string]string,
) *fleet.ClusterRegistration {
	t.Helper()
	labels := map[string]string{}
	if values.TokenName != "" {
		labels[fleet.RegistrationTokenLabel] = values.TokenName
	}
	return c.Send(t, values, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "request-", Labels: labels, Annotations: annotations}, Spec: spec,
	})
}

// Send creates a ClusterRegistration with the token of the values, as soon as the token has its rights.
func (c *Cluster) Send(t testing.TB, values registration.Values, request *fleet.ClusterRegistration) (created *fleet.ClusterRegistration) {
	t.Helper()
	requests := c.ClientFor(t, values.Token).Fleet.ClusterRegistrations(values.Workspace)
	Eventually(t, func() (bool, string) {
		var err error
		created, err = requests.Create(context.Background(), request, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) {
			require.NoError(t, err)
		}
		return err == nil, fmt.Sprint(err)
	})
	return created
}

// Granted waits until a request is granted, and returns it with the credential that the agent can read.
func (c *Cluster) Granted(t testing.TB, values registration.Values, request *fleet.ClusterRegistration) (*fleet.ClusterRegistration, *corev1.Secret) {
	t.Helper()
	requests := c.Fleet.ClusterRegistrations(request.Namespace)
	latest := EventuallyIs(t, requests.Get, request.Name, func(latest *fleet.ClusterRegistration) (bool, string) {
		return latest.Status.Granted, Condition(latest.Status.Conditions, fleet.ConditionGranted)
	})
	secrets := c.ClientFor(t, values.Token).Kubernetes.CoreV1().Secrets(values.SystemRegistrationNamespace)
	return latest, EventuallyThere(t, secrets.Get, registration.AnswerSecretName(request.Spec.ClientID, request.Spec.ClientRandom))
}

// Import creates a Cluster with a kubeconfig Secret for the member.
func (c *Cluster) Import(t testing.TB, namespace, name string, member *Cluster, change ...func(*fleet.Cluster)) *fleet.Cluster {
	t.Helper()
	c.WriteSecret(t, namespace, name+"-kubeconfig", map[string][]byte{registration.KubeconfigValue: member.Kubeconfig()})
	cluster := &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: name + "-kubeconfig"},
	}
	for _, f := range change {
		f(cluster)
	}
	created, err := c.Fleet.Clusters(namespace).Create(context.Background(), cluster, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// WriteSecret creates a Secret, or replaces its data.
func (c *Cluster) WriteSecret(t testing.TB, namespace, name string, data map[string][]byte) {
	t.Helper()
	secrets := c.Kubernetes.CoreV1().Secrets(namespace)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	_, err := secrets.Create(context.Background(), secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(context.Background(), secret, metav1.UpdateOptions{})
	}
	require.NoError(t, err)
}

// TokenOf returns a token of a ServiceAccount.
func (c *Cluster) TokenOf(t testing.TB, namespace, account string) string {
	t.Helper()
	reply, err := c.Kubernetes.CoreV1().ServiceAccounts(namespace).CreateToken(context.Background(), account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	return reply.Status.Token
}
