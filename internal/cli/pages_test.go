package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Each list of 10,000 objects is read in pages, with one request for each page and no others.
func TestListsInPages(t *testing.T) {
	sample.Long(t)
	const objects, size = 10_000, 500
	seen := metav1.Now()
	object := func(kind string, i int) any {
		meta := metav1.ObjectMeta{Namespace: "fleet-default", Name: fmt.Sprintf("%s-%05d", kind, i), UID: "0e984725-c51c-4bf4-9960-e1c80e27aba0", Labels: map[string]string{"region": "eu"}}
		switch kind {
		case "clusters":
			return fleet.Cluster{ObjectMeta: meta, Status: fleet.ClusterStatus{Agent: fleet.AgentStatus{LastSeen: seen, Version: "v1.2.3"}}}
		case "clusterregistrations":
			return fleet.ClusterRegistration{ObjectMeta: meta, Spec: fleet.ClusterRegistrationSpec{ClientID: meta.Name}}
		}
		return fleet.ClusterRegistrationToken{ObjectMeta: meta}
	}
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, from := path.Base(r.URL.Path), 0
		if text := r.URL.Query().Get("continue"); text != "" {
			from, _ = strconv.Atoi(text)
		}
		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil || limit > size {
			http.Error(w, "no limit", http.StatusInternalServerError) // such as the Lease of the hub, which is no list
			return
		}
		requests.Add(1)
		list := struct {
			metav1.ListMeta `json:"metadata"`
			Items           []any `json:"items"`
		}{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
		for i := from; i < min(from+limit, objects); i++ {
			list.Items = append(list.Items, object(kind, i))
		}
		if from+limit < objects {
			list.Continue = strconv.Itoa(from + limit)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	defer server.Close()
	t.Setenv("KUBECONFIG", writeConfig(t, func(_ string, c *clientcmdapi.Config) { c.Clusters["cl"].Server = server.URL }))

	for line, lists := range map[string]int{
		"clusters -A": 2, "clusters -n fleet-default -o json": 2, // of Clusters, and of the Leases of their agents
		"requests -A": 1, "token list -A": 1,
	} {
		requests.Store(0)
		began := time.Now()
		out, _, err := muster(t, strings.Fields(line)...)
		require.NoError(t, err, line)
		t.Logf("%s: %d requests, %s", line, requests.Load(), time.Since(began).Round(time.Millisecond))
		require.EqualValues(t, lists*objects/size, requests.Load(), line)
		require.GreaterOrEqual(t, strings.Count(out, "\n"), objects, line)
	}
}
