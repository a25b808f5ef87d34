package deploy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	"github.com/muster-fleet/muster/pkg/transport"
)

// An API server without the feature WatchList has more BundleDeployments than one response may have. It serves all of them with resourceVersion 0.
func TestListBundleDeployments_inPages(t *testing.T) {
	const all = 300
	resources := strings.Repeat(`{"kind":"ConfigMap","apiVersion":"v1","namespace":"apps","name":"a"},`, 20)
	sent := []string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		sent = append(sent, query.Get("limit"))
		from, _ := strconv.Atoi(query.Get("continue"))
		to, next := all, ""
		if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && query.Get("resourceVersion") != "0" && from+limit < all {
			to, next = from+limit, strconv.Itoa(from+limit)
		}
		items := []string{}
		for i := from; i < to; i++ {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":"b-%d"},"status":{"resources":[%s]}}`, i, strings.TrimSuffix(resources, ",")))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"BundleDeploymentList","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"resourceVersion":"7","continue":%q},"items":[%s]}`,
			next, strings.Join(items, ","))
	}))
	defer server.Close()
	for _, row := range []struct {
		values int
		want   []string
	}{
		{100_000, []string{"500"}},
		{12_000, []string{"500", "64", "64", "64", "64", "64"}},
		{3_000, []string{"500", "64", "32", "16", "16", "16", "16"}},
	} {
		p, limits := newStoppedReconciler(), transport.ResponseLimits{Bytes: 64 << 20, Values: row.values}
		client, err := versioned.NewForConfigAndClient(&rest.Config{Host: server.URL, QPS: -1},
			&http.Client{Transport: transport.Limited{Next: http.DefaultTransport, Body: limits}})
		require.NoError(t, err)
		p.Hub, p.CheckRejection = client, func(error) error { return nil }
		sent = nil
		list, err := p.listBundleDeployments(t.Context(), metav1.ListOptions{ResourceVersion: "0", Limit: 500}) // as the informer
		require.NoError(t, err)
		require.Len(t, list.Items, all)
		for i, bd := range list.Items {
			assert.Equal(t, fmt.Sprintf("b-%d", i), bd.Name)
			assert.Len(t, bd.Status.Resources, 20)
		}
		assert.Equal(t, metav1.ListMeta{ResourceVersion: "7"}, list.ListMeta, "no further page")
		assert.Equal(t, row.want, sent[:min(len(sent), len(row.want))], "limit of each request")
	}
}
