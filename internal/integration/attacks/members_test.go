package attacks

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/pki"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A tenant has as many concurrent imports as the hub permits, of members whose answers are as large as the hub accepts. A decoded answer
// takes twenty times its size. The hub reports why each import fails, imports the member of another tenant, and does not grow.
func TestHostileMembers(t *testing.T) {
	sample.Long(t)
	const members, growth = 64, 50 << 20
	s := testenv.NewStage(t)
	answer := []byte(`{"kind":"List","apiVersion":"v1","items":[` + strings.Repeat("[],", 1<<20) + `[]]}`)
	var answers atomic.Int32
	hostile := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/kube-system") {
			_, _ = fmt.Fprint(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"9a0d6a35-2d0e-4e37-8b53-7f5d1c0a4e11"}}`)
			return
		}
		answers.Add(1)
		_, _ = w.Write(answer)
	}))
	t.Cleanup(hostile.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hostile.Certificate().Raw})
	kubeconfig, err := pki.Kubeconfig("hostile", hostile.URL, ca, &clientcmdapi.AuthInfo{Token: "t"})
	require.NoError(t, err)
	s.Hub.WriteSecret(t, s.Namespace, "hostile", map[string][]byte{registration.KubeconfigValue: kubeconfig})

	grown := heap.Growth(func() {
		for n := range members {
			spec := fleet.ClusterSpec{KubeConfigSecret: "hostile", AgentNamespace: fmt.Sprint("agent-", n)}
			s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("hostile-", n)}, Spec: spec})
		}
		for n := range members {
			s.Hub.ClusterCondition(t, s.Namespace, fmt.Sprint("hostile-", n), fleet.ConditionImported, "False MemberError")
		}
	})
	t.Logf("the heap grew by %d MiB", grown>>20)
	assert.Less(t, grown, growth)
	assert.GreaterOrEqual(t, answers.Load(), int32(members))

	other := &testenv.Stage{Running: s.Running, Hub: s.Hub, Member: s.Member, Namespace: s.Hub.Namespace(t)}
	other.ImportInto(t, "honest", s.Member.Namespace(t))
	s.Hub.ClusterCondition(t, other.Namespace, "honest", fleet.ConditionImported, "True Imported")
}
