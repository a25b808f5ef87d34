package access

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestMayUse(t *testing.T) {
	for _, row := range []struct {
		name, from, allowed string
		nearby, may         bool
	}{
		{"its own namespace", "", "", true, true},
		{"its own namespace, by name", "ws", "", true, true},
		{"that of a management server", "fleet-default", "", true, true},
		{"another", "theirs", "", false, false},
		{"that of the hub's own cluster", "fleet-local", "", false, false},
		{"that of the hub", "cattle-fleet-system", "", false, false},
		{"another that allows nobody", "theirs", ",", false, false},
		{"another that allows it", "theirs", "x, ws", false, true},
		{"another that allows somebody else", "theirs", "ws-2", false, false},
		{"another that allows everybody", "theirs", "*", false, true},
	} {
		cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws"}, Spec: fleet.ClusterSpec{KubeConfigSecretNamespace: row.from}}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fleet.KubeconfigAllowedAnnotation: row.allowed}}}
		assert.Equal(t, row.nearby, NeedsNoPermission(cluster), row.name)
		assert.Equal(t, row.may, MayUse(cluster, secret), row.name)
	}
}
