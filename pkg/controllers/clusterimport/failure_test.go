package clusterimport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
)

// firstCall returns the failure of a first call to a server.
func firstCall(t *testing.T, change func(*clientcmdapi.Config), patience time.Duration) *failure {
	t.Helper()
	parsed, err := parseKubeconfig(kubeconfigSecret(with(t, change)))
	require.NoError(t, err)
	m, err := newMemberClient(parsed, config.TLSModeStrict, loopback, semaphore.NewWeighted(largeResponses))
	require.NoError(t, err)
	defer m.close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var calls memberCalls
	return calls.onMember(ctx, m, "ws", calls.members.shared, func(context.Context) *failure { return nil })
}

// to points a kubeconfig at a test server, trusting its certificate.
func to(server *httptest.Server) func(*clientcmdapi.Config) {
	return func(c *clientcmdapi.Config) {
		c.Clusters["cluster"].Server = server.URL
		if server.Certificate() != nil {
			c.Clusters["cluster"].CertificateAuthorityData = pemOf(server.Certificate())
		}
	}
}

func serve(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handle)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func answers(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if strings.HasPrefix(body, "{") {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

func statusBody(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)
}

func TestDiagnose_reasons(t *testing.T) {
	for _, row := range []struct {
		name         string
		server       func(*testing.T) func(*clientcmdapi.Config)
		reason, says string
	}{
		{"no server", func(t *testing.T) func(*clientcmdapi.Config) {
			server := serve(t, nil)
			server.Close()
			return to(server)
		}, fleet.ReasonUnreachable, "connection refused"},
		{"no such name", func(*testing.T) func(*clientcmdapi.Config) {
			return func(c *clientcmdapi.Config) { c.Clusters["cluster"].Server = "https://member.invalid" }
		}, fleet.ReasonUnreachable, "the name member.invalid cannot be resolved"},
		{"it never answers", func(t *testing.T) func(*clientcmdapi.Config) {
			return to(serve(t, func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				// The client announces that it closes the connection before it does. A return would be an answer, which can arrive between them.
				panic(http.ErrAbortHandler)
			}))
		}, fleet.ReasonUnreachable, "no answer in time"},
		{"it hangs up", func(t *testing.T) func(*clientcmdapi.Config) {
			return to(serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		}, fleet.ReasonUnreachable, "no answer in time"},
		{"a certificate of another CA", func(t *testing.T) func(*clientcmdapi.Config) {
			server, other := serve(t, nil), somePEM(t)
			return func(c *clientcmdapi.Config) {
				to(server)(c)
				c.Clusters["cluster"].CertificateAuthorityData = other
			}
		}, fleet.ReasonCertificateUntrusted, "signed by unknown authority"},
		{"a certificate of another name", func(t *testing.T) func(*clientcmdapi.Config) {
			server := serve(t, nil)
			return func(c *clientcmdapi.Config) {
				to(server)(c)
				c.Clusters["cluster"].TLSServerName = "member.invalid"
			}
		}, fleet.ReasonCertificateUntrusted, "not valid for member.invalid"},
		{"a proxy that is not there", func(t *testing.T) func(*clientcmdapi.Config) {
			proxy := httptest.NewServer(nil)
			proxy.Close()
			return func(c *clientcmdapi.Config) { c.Clusters["cluster"].ProxyURL = withPassword(proxy.URL) }
		}, fleet.ReasonUnreachable, "the proxy in front of the member cannot be reached: connection refused"},
		{"a proxy without a name", func(*testing.T) func(*clientcmdapi.Config) {
			return func(c *clientcmdapi.Config) { c.Clusters["cluster"].ProxyURL = "http://proxy.invalid:3128" }
		}, fleet.ReasonUnreachable, "the proxy in front of the member cannot be reached: the name proxy.invalid cannot be resolved"},
		{"a proxy that refuses", proxied(403), fleet.ReasonUnreachable, "answers 403 Forbidden; configure the proxy to allow the address of the server"},
		{"a proxy that asks for a password", proxied(407), fleet.ReasonUnreachable, "answers 407 Proxy Authentication Required; put user"},
		{"it sends the hub elsewhere", func(t *testing.T) func(*clientcmdapi.Config) {
			elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the token was sent elsewhere") })
			return to(serve(t, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			}))
		}, fleet.ReasonMemberError, ""},
		{"no TLS there", func(t *testing.T) func(*clientcmdapi.Config) {
			server := httptest.NewServer(answers(200, "{}"))
			t.Cleanup(server.Close)
			return func(c *clientcmdapi.Config) { c.Clusters["cluster"].Server = "https" + server.URL[len("http"):] }
		}, fleet.ReasonUnreachable, "server gave HTTP response to HTTPS client"},
		{"the credential is refused", answered(401, statusBody(401, "Unauthorized", "Unauthorized")), fleet.ReasonUnauthorized, "renew it"},
		{"a proxy refuses the credential", answered(401, "no"), fleet.ReasonUnauthorized, "renew it"},
		{
			"a right is missing", answered(403, statusBody(403, "Forbidden", `nodes is forbidden: User "u" cannot list`)),
			fleet.ReasonForbidden, "the member forbids it; give the user of the kubeconfig this right",
		},
		{"it starts or stops", answered(503, statusBody(503, "ServiceUnavailable", "apiserver not ready")), fleet.ReasonUnreachable, "the member answered 503 Service Unavailable"},
		{"the proxy before it", answered(503, "cluster agent disconnected"), fleet.ReasonUnreachable, "a proxy in front of the member answered 503 Service Unavailable"},
		{"a gateway", answered(502, "<html>request 4711</html>"), fleet.ReasonUnreachable, "a proxy in front of the member answered 502 Bad Gateway"},
		{"a fault of its own", answered(500, statusBody(500, "InternalError", "etcd is out")), fleet.ReasonMemberError, "the member answered 500 Internal Server Error"},
		{"something else answers", answered(200, "<html>welcome</html>"), fleet.ReasonMemberError, "not a Kubernetes API server"},
		{"something else answers in JSON", answered(200, "{}"), fleet.ReasonMemberError, "not a Kubernetes API server"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			change, patience := row.server(t), 2*time.Minute
			if slices.Contains([]string{"it never answers", "it hangs up"}, row.name) { // the call ends only with its time
				patience = 3 * time.Second
			}
			first := firstCall(t, change, patience)
			require.NotNil(t, first)
			assert.Equal(t, row.reason, first.reason)
			assert.Contains(t, first.message, row.says)
			assert.Contains(t, first.message, "connecting to the member at https://")
			assert.NotContains(t, first.message, confidential)
			assert.NotContains(t, first.message, "request 4711")
			assert.Equal(t, first, firstCall(t, change, patience), "the same words each time: another message would be another status write")
		})
	}
}

func answered(code int, body string) func(*testing.T) func(*clientcmdapi.Config) {
	return func(t *testing.T) func(*clientcmdapi.Config) {
		t.Helper()
		return to(serve(t, answers(code, body)))
	}
}

func withPassword(address string) string {
	return strings.Replace(address, "http://", "http://user:"+confidential+"@", 1)
}

// proxied is a way through a proxy that answers like this.
func proxied(code int) func(*testing.T) func(*clientcmdapi.Config) {
	return func(t *testing.T) func(*clientcmdapi.Config) {
		t.Helper()
		proxy := httptest.NewServer(answers(code, ""))
		t.Cleanup(proxy.Close)
		return func(c *clientcmdapi.Config) { c.Clusters["cluster"].ProxyURL = withPassword(proxy.URL) }
	}
}

func TestDiagnose_stableMessages(t *testing.T) {
	expired := &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{
		Reason: x509.Expired, Detail: "current time 2026-11-21T10:55:17Z is after 2020-01-01T00:00:00Z",
	}}
	reset := &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{Port: 45678}, Addr: &net.TCPAddr{Port: 6443}, Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for _, row := range []struct {
		name         string
		err          error
		reason, says string
	}{
		{"an expired certificate", expired, fleet.ReasonCertificateUntrusted, "x509: certificate has expired or is not yet valid"},
		{"another fault of it", x509.CertificateInvalidError{Reason: x509.NotAuthorizedToSign}, fleet.ReasonCertificateUntrusted, "not authorized to sign"},
		{"a broken connection", reset, fleet.ReasonUnreachable, "connection reset by peer"},
		{
			"a resolver that is out",
			&net.DNSError{Name: "member", Server: "10.0.0.10:53", Err: "read udp 10.0.0.1:45678->10.0.0.10:53: i/o timeout", IsTimeout: true},
			fleet.ReasonUnreachable, "the name member cannot be resolved",
		},
		{"a deadline", fmt.Errorf("x: %w", context.DeadlineExceeded), fleet.ReasonUnreachable, "no answer in time"},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := diagnose("https://member", "installing Secret a/b", row.err)
			assert.Equal(t, row.reason, f.reason)
			assert.Contains(t, f.message, "installing Secret a/b at https://member: ")
			assert.Contains(t, f.message, row.says)
			assert.NotRegexp(t, `45678|10:55|10\.0\.0`, f.message)
		})
	}
}

// A kubeconfig may lead to any service inside the hub's network, and its writer reads the condition.
func TestDiagnose_revealsNoAnswer(t *testing.T) {
	const inside = "inside-secret"
	raw := func(answer string) func(*testing.T) func(*clientcmdapi.Config) {
		return func(t *testing.T) func(*clientcmdapi.Config) {
			t.Helper()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			t.Cleanup(func() { _ = listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = io.WriteString(conn, answer)
					_ = conn.Close()
				}
			}()
			return func(c *clientcmdapi.Config) { c.Clusters["cluster"].Server = "http://" + listener.Addr().String() }
		}
	}
	for name, server := range map[string]func(*testing.T) func(*clientcmdapi.Config){
		"a banner":                      raw("SSH-2.0-" + inside + "\r\n"),
		"a malformed header":            raw("HTTP/1.1 200 OK\r\n" + inside + "\r\n\r\n"),
		"a malformed status":            raw("HTTP/1.1 " + inside + "\r\n\r\n"),
		"an unknown status":             raw("HTTP/1.1 599 " + inside + "\r\nContent-Length: 0\r\n\r\n"),
		"a malformed length":            raw("HTTP/1.1 200 OK\r\nContent-Length: " + inside + "\r\n\r\n"),
		"a page":                        answered(200, inside),
		"a page in JSON":                answered(200, `{"gitVersion": ["`+inside+`"]}`),
		"an error in text":              answered(500, inside),
		"a short text of a gateway":     answered(503, inside),
		"a page that is not there":      answered(404, inside),
		"a Status":                      answered(500, statusBody(500, "InternalError", inside)),
		"a Status of a missing right":   answered(403, statusBody(403, "Forbidden", inside)),
		"a Status of a bad credential":  answered(401, statusBody(401, "Unauthorized", inside)),
		"a Status with another reason":  answered(422, statusBody(422, inside, inside)),
		"a Status that the server ends": answered(503, statusBody(503, "ServiceUnavailable", inside)),
		"a redirect": func(t *testing.T) func(*clientcmdapi.Config) {
			return to(serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "https://"+inside, http.StatusFound) }))
		},
		"a certificate of another name": func(t *testing.T) func(*clientcmdapi.Config) {
			server := serve(t, nil)
			return func(c *clientcmdapi.Config) { to(server)(c); c.Clusters["cluster"].TLSServerName = "member.invalid" }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failed := firstCall(t, server(t), 5*time.Second)
			require.NotNil(t, failed)
			assert.NotContains(t, failed.message, inside)
			assert.NotContains(t, failed.message, "example.com", "a name in the certificate of the test server")
			assert.Less(t, len(failed.message), 300)
		})
	}
}
