package release

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestValuesThatAreNotThereYetMayCome(t *testing.T) {
	there := metav1.ObjectMeta{Namespace: "default", Name: "there"}
	c := &Client{core: kubefake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: there, Data: map[string]string{"bad": "]"}}, &corev1.Secret{ObjectMeta: there},
	)}
	for name, row := range map[string]struct {
		from    fleet.ValuesFrom
		says    string
		invalid bool
	}{
		"no ConfigMap":        {fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: "gone"}}, "names ConfigMap default/gone, which does not exist", false},
		"no Secret":           {fleet.ValuesFrom{SecretKeyRef: &fleet.KeySelector{Name: "gone"}}, "names Secret default/gone, which does not exist", false},
		"no key, ConfigMap":   {fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: "there"}}, "names key values.yaml of ConfigMap default/there", false},
		"no key, Secret":      {fleet.ValuesFrom{SecretKeyRef: &fleet.KeySelector{Name: "there", Key: "k"}}, "names key k of Secret default/there", false},
		"what holds no value": {fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: "there", Key: "bad"}}, "contains no valid values", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Namespace: "default", Options: fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{ValuesFrom: []fleet.ValuesFrom{row.from}}}}
			_, err := c.values(t.Context(), r)
			require.ErrorContains(t, err, row.says)
			var never *InvalidError
			assert.Equal(t, row.invalid, errors.As(err, &never), "what may come is tried again soon")
		})
	}
}
