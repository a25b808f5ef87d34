package agent

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/pkg/config"
)

// hubWithItsCA is a hub with an authority of its own, that has no bundles.
func hubWithItsCA(t *testing.T, seen *[]string) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*seen = append(*seen, r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"BundleDeploymentList","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"resourceVersion":"1"},"items":[]}`)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serverCertificate(t)}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func TestACertificateThatIsNotTrustedIsNamedAndGetsNoToken(t *testing.T) {
	const source = "key apiServerCA of Secret fleet-agent-bootstrap"
	var seen []string
	server := hubWithItsCA(t, &seen)
	right, wrong := pemOf(server), testCA(t)
	otherName := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	rows := map[string]struct {
		mode        config.TLSMode
		ca, address string
		want        []string // of the error; nil when the agent gets through
	}{
		"strict with the CA":           {config.TLSModeStrict, right, server.URL, nil},
		"system-store with the CA":     {config.TLSModeSystemStore, right, server.URL, nil},
		"no mode, with the CA":         {"", right, server.URL, nil},
		"strict with two CAs":          {config.TLSModeStrict, wrong + right, server.URL, nil},
		"strict with another CA":       {config.TLSModeStrict, wrong, server.URL, []string{"unknown authority", "agentTLSMode is strict, so that only the given CA counts; correct " + source}},
		"system-store with another CA": {config.TLSModeSystemStore, wrong, server.URL, []string{"unknown authority", "agentTLSMode is system-store", source}},
		"system-store without a CA":    {config.TLSModeSystemStore, "", server.URL, []string{"unknown authority", "the authorities of this image count", source}},
		"another name":                 {config.TLSModeStrict, right, otherName, []string{"localhost", "agentTLSMode is strict"}},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			seen = nil
			h, err := testLife(t).dial(hubAccess{server: row.address, ca: []byte(row.ca), token: newToken, namespace: "ns", caSource: source}, row.mode)
			require.NoError(t, err)
			defer h.close()
			err = h.probe(t.Context())
			if row.want == nil {
				require.NoError(t, err)
				assert.Equal(t, []string{"Bearer " + newToken}, seen)
				return
			}
			require.ErrorContains(t, err, "the certificate of the hub is not trusted: ")
			for _, want := range row.want {
				require.ErrorContains(t, err, want)
			}
			assert.Equal(t, Unreachable, Classify(err), "nobody refused the credential")
			assert.Empty(t, seen, "no request to see whether somebody is there")
			assert.NotContains(t, err.Error(), newToken)
		})
	}
}

// One connection does not weaken another of the same process, in whichever order they are made.
func TestTheModeIsOfAConnectionAndNotOfTheProcess(t *testing.T) {
	var seen []string
	server := hubWithItsCA(t, &seen)
	access := func(ca string) hubAccess {
		return hubAccess{server: server.URL, ca: []byte(ca), token: newToken, namespace: "ns"}
	}
	for range 2 {
		for _, way := range []struct {
			mode config.TLSMode
			ca   string
			ok   bool
		}{
			{config.TLSModeStrict, testCA(t), false},
			{config.TLSModeSystemStore, pemOf(server), true},
			{config.TLSModeSystemStore, "", false},
			{config.TLSModeStrict, pemOf(server), true},
		} {
			h, err := testLife(t).dial(access(way.ca), way.mode)
			require.NoError(t, err)
			assert.Equal(t, way.ok, h.probe(t.Context()) == nil, "%+v", way)
			h.close()
		}
	}
}
