package release

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// The owner of a cluster limits Bundles with ServiceAccount fleet-default. A Bundle must not get around that with the ServiceAccount of the agent.
func TestServiceAccount_own(t *testing.T) {
	for _, name := range []string{"fleet-agent", "fleet-controller", "fleet-controller-bootstrap", "named", ""} {
		for _, limited := range []bool{false, true} {
			client := fake.NewClientset()
			names := []string{"fleet-agent", "fleet-controller", "fleet-controller-bootstrap", "named"}
			if limited {
				names = append(names, fallbackServiceAccount)
			}
			for _, exists := range names {
				require.NoError(t, client.Tracker().Add(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "agent", Name: exists}}))
			}
			r := Request{ServiceAccountNamespace: "agent"}
			r.Options.ServiceAccount = name
			account, err := (&Client{core: client}).serviceAccount(t.Context(), r)
			switch {
			case limited && name != "" && name != "named":
				require.ErrorContains(t, err, "serviceAccount must not name "+name)
			case name == "" && limited:
				require.NoError(t, err)
				assert.Equal(t, fallbackServiceAccount, account.name)
			default:
				require.NoError(t, err)
				assert.Equal(t, name, account.name)
			}
		}
	}
}
