package localpods

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/internal/agenttest"
)

func TestWorker_writeAccess_clockAhead(t *testing.T) {
	issued := time.Now().Add(-24 * time.Hour) // by the clock of the API server
	client := kubefake.NewClientset()
	client.PrependReactor("create", "serviceaccounts", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
			Token: agenttest.JWT("uid", issued, issued.Add(time.Hour), 1), ExpirationTimestamp: metav1.NewTime(issued.Add(time.Hour)),
		}}, nil
	})
	w := newWorker(&node{client: client, options: Options{RESTConfig: &rest.Config{Host: "https://localhost"}}}, &corev1.Pod{})
	w.home = t.TempDir()
	require.NoError(t, w.writeAccess(t.Context()))
	select {
	case <-w.renew.C:
		assert.Fail(t, "the new token is replaced at once")
	default:
	}
}
