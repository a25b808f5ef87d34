package rancherlike

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

func (m *Managed) secretName() string { return m.Name + "-kubeconfig" }

// CreateSecret creates the kubeconfig Secret with the address of the member at the server. It does not have the address of the hub,
// which Pass adds to the Secret of the server's own cluster.
func (s *Server) CreateSecret(t testing.TB, m *Managed) {
	t.Helper()
	kubeconfig, err := transport.Kubeconfig(s.Proxy.URL()+tunnelPrefix+m.ID, s.Proxy.CA(), m.token, "")
	require.NoError(t, err)
	_, err = s.Hub.Kubernetes.CoreV1().Secrets(m.Namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:            m.secretName(),
			Labels:          map[string]string{"cluster.x-k8s.io/cluster-name": m.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: m.owner.Name, UID: m.owner.UID}},
		},
		Data: map[string][]byte{registration.KubeconfigValue: kubeconfig, "token": []byte(m.token)},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// DeleteSecret is the first step with which the server corrects the Secret.
func (s *Server) DeleteSecret(t testing.TB, m *Managed) {
	t.Helper()
	require.NoError(t, s.Hub.Kubernetes.CoreV1().Secrets(m.Namespace).Delete(t.Context(), m.secretName(), metav1.DeleteOptions{}))
}

// SecretPath is the path of the Secret in the API.
func (m *Managed) SecretPath() string {
	return "/api/v1/namespaces/" + m.Namespace + "/secrets/" + m.secretName()
}

// addAddress writes the address of the hub's API server for pods of its cluster into the Secret.
func (s *Server) addAddress(t testing.TB, m *Managed) {
	t.Helper()
	secrets := s.Hub.Kubernetes.CoreV1().Secrets(m.Namespace)
	secret, err := secrets.Get(t.Context(), m.secretName(), metav1.GetOptions{})
	require.NoError(t, err)
	secret.Data[registration.KubeconfigAPIServerURL] = []byte(s.Hub.URL())
	secret.Data[registration.KubeconfigAPIServerCA] = s.Hub.CA()
	_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	require.NoError(t, err)
}
