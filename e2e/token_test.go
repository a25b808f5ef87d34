//go:build e2e

package e2e

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// token creates a ClusterRegistrationToken and returns a file with its values for the chart fleet-agent.
func (s *scene) token(name string, ttl time.Duration) (file string) {
	s.Helper()
	_, err := s.hub.fleet.ClusterRegistrationTokens(s.id).Create(s.Context(), &fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       fleet.ClusterRegistrationTokenSpec{TTL: &metav1.Duration{Duration: ttl}},
	}, metav1.CreateOptions{})
	s.fail(err)
	s.until("Secret "+name+" with the values of the token", func(ctx context.Context) (bool, string) {
		secret, err := s.hub.kube.CoreV1().Secrets(s.id).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		values, filled := secret.Data[registration.ValuesKey]
		if filled {
			file, err = s.file(s.id+"-"+name+".yaml", values)
		}
		return seen(err, filled, "it has no key "+registration.ValuesKey)
	})
	return file
}
