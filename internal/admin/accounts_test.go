package admin

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// After the removal of a Cluster, the member deletes the token Secret of the earlier ServiceAccount only after some time.
func TestMemberAccountEnsure(t *testing.T) {
	account := MemberAccount{Namespace: "kube-system", Name: "muster-import-x"}
	secrets := corev1.SchemeGroupVersion.WithResource("secrets")
	for name, test := range map[string]struct {
		left    []runtime.Object // of an earlier ServiceAccount
		problem string
		creates int
	}{
		"no Secret": {creates: 1, problem: "it was deleted"},
		"the Secret of an earlier ServiceAccount, which the member deletes": {
			left: []runtime.Object{&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: account.Namespace, Name: account.Name, Annotations: map[string]string{corev1.ServiceAccountUIDKey: "earlier"},
				},
				Data: map[string][]byte{corev1.ServiceAccountTokenKey: []byte("earlier token")},
			}},
			creates: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				member, creates, gets := kubernetesfake.NewClientset(test.left...), 0, 0
				member.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
					creates++
					return false, nil, nil
				})
				member.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
					if gets++; gets == 2 {
						return false, nil, member.Tracker().Delete(secrets, account.Namespace, account.Name)
					}
					object, err := member.Tracker().Get(secrets, account.Namespace, account.Name)
					if err != nil {
						return true, nil, err
					}
					found := object.(*corev1.Secret).DeepCopy()
					if gets > 2 { // the token controller has seen it
						found.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte("token")}
					}
					return true, found, nil
				})
				token, err := account.Ensure(t.Context(), member, false)
				assert.Equal(t, test.creates, creates)
				if test.problem != "" {
					require.ErrorContains(t, err, test.problem)
					return
				}
				require.NoError(t, err)
				assert.Equal(t, "token", token)
			})
		})
	}
}
