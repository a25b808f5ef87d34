package member

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/registration"
)

func TestWatchConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: registration.BootstrapSecret, ResourceVersion: "7"}}
		core := kubefake.NewClientset(secret)
		watches := make(chan struct{}, 2)
		core.PrependWatchReactor("secrets", func(action kubetesting.Action) (bool, watch.Interface, error) {
			restrictions := action.(kubetesting.WatchAction).GetWatchRestrictions()
			if !restrictions.Fields.Matches(fields.Set{metav1.ObjectNameField: secret.Name}) {
				return false, nil, nil
			}
			watches <- struct{}{}
			if len(watches) > 1 {
				return false, nil, nil
			}
			expired := watch.NewFakeWithChanSize(1, false) // as after a restart of the API server: the list is sent again
			expired.Error(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone})
			return true, expired, nil
		})
		changed := make(chan struct{}, 1)
		m := &Member{Namespace: "ns", Watching: core}
		go m.WatchConfiguration(t.Context(), changed)
		synctest.Wait()
		<-changed // the Secret exists
		for len(watches) < 2 {
			<-time.After(time.Second)
			synctest.Wait()
		}
		assert.Empty(t, changed, "the same Secret in another list is no change")

		secret.ResourceVersion = "8"
		require.NoError(t, core.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), secret, "ns"))
		<-changed
	})
}

func TestBrief(t *testing.T) {
	assert.Equal(t, "short", Brief("short"))
	assert.Equal(t, strings.Repeat("ü", 198)+"...", Brief(strings.Repeat("ü", 1000)))
}
