package agent

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

func TestTheHubCannotHaveARequestWaitForLong(t *testing.T) {
	for asked, waits := range map[string]string{"3600": "30", "31": "30", "30": "30", "1": "1", "": "", "soon": "soon"} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked != "" {
				w.Header().Set("Retry-After", asked)
			}
			reply(w, http.StatusServiceUnavailable, "<h1>503</h1>")
		}))
		t.Cleanup(server.Close)
		h, err := testLife(t).dial(hubAccess{server: server.URL, ca: []byte(pemOf(server)), token: testToken, namespace: "cluster-ns"}, "strict")
		require.NoError(t, err)
		for _, client := range []rest.Interface{h.fleet.Discovery().RESTClient(), h.watching.Discovery().RESTClient()} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
			require.NoError(t, err)
			response, err := client.(*rest.RESTClient).Client.Do(request)
			require.NoError(t, err)
			response.Body.Close()
			assert.Equal(t, waits, response.Header.Get("Retry-After"), asked)
		}
		h.close()
	}
}
