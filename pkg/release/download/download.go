// Package download downloads what an agent does not get from the hub: charts from repositories and OCI registries, and resources of Bundles in
// an OCI registry. All of it stays in memory and has limits.
//
//	download.go  ServerAccess, and requests by HTTP
//	chart.go     Chart: a chart with its dependencies
//	oci.go       Artifact: the resources of a Bundle; pulling from a registry
package download

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/registry"

	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

const (
	// sizeMax bounds one download, which the agent keeps in memory. release.ChartBudget bounds what a chart contains.
	sizeMax = 64 << 20
	// timeout bounds one request with its response.
	timeout = 5 * time.Minute
	// proxyCAs is the environment variable with the authorities of a proxy that intercepts TLS connections: PEM, or the name of a file with PEM.
	proxyCAs = "PROXY_CA_BUNDLE"
)

// ServerAccess has the options and the credentials for connections to a server.
type ServerAccess struct {
	// Username and Password are for basic authentication; empty means none.
	Username, Password string
	// CAs are trusted authorities in PEM, in addition to the system's.
	CAs []byte
	// Insecure accepts every certificate. PlainHTTP reaches an OCI registry without TLS.
	Insecure, PlainHTTP bool
}

// ServerAccessFrom reads the Secret of a HelmOp or of an OCI registry. The keys agentUsername and agentPassword, which are only
// for agents, take precedence over username and password.
func ServerAccessFrom(secret map[string][]byte) (ServerAccess, error) {
	is := func(keys ...string) bool {
		return slices.ContainsFunc(keys, func(key string) bool {
			value, _ := strconv.ParseBool(strings.TrimSpace(string(secret[key])))
			return value
		})
	}
	a := ServerAccess{
		Username: string(secret["username"]), Password: string(secret["password"]), CAs: secret["cacerts"],
		Insecure: is("insecureSkipVerify", "insecureSkipTLS", "insecure"), PlainHTTP: is("basicHTTP"),
	}
	if len(secret["agentUsername"]) > 0 {
		a.Username, a.Password = string(secret["agentUsername"]), string(secret["agentPassword"])
	}
	if (a.Username == "") != (a.Password == "") {
		return ServerAccess{}, errors.New("it has only one of username and password")
	}
	return a, nil
}

// forURL returns the access to another URL: a repository may name charts and dependencies on any server, but the credentials and the options are for
// one server. The authorities may have issued the certificates of other servers.
func (a ServerAccess) forURL(own, other string) ServerAccess {
	one, err := url.Parse(own)
	two, otherErr := url.Parse(other)
	if err != nil || otherErr != nil {
		return ServerAccess{CAs: a.CAs}
	}
	for _, u := range []*url.URL{one, two} {
		switch {
		case u.Scheme == registry.OCIScheme && a.PlainHTTP:
			u.Scheme = "http"
		case u.Scheme == registry.OCIScheme:
			u.Scheme = "https"
		}
	}
	if !isSameServer(one, two) {
		return ServerAccess{CAs: a.CAs}
	}
	return a
}

// isSameServer compares scheme, host and port. A URL without a port has the default port of its scheme.
func isSameServer(one, two *url.URL) bool {
	return one.Scheme == two.Scheme && strings.EqualFold(one.Hostname(), two.Hostname()) && portOf(one) == portOf(two)
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	case u.Scheme == "http":
		return "80"
	}
	return ""
}

// get downloads a URL.
func get(ctx context.Context, from string, a ServerAccess) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil { // it repeats the URL with its password
		return nil, &release.InvalidError{Why: fmt.Sprintf("%s is not a valid URL", redacted(from))}
	}
	if scheme := request.URL.Scheme; scheme != "https" && scheme != "http" {
		return nil, fmt.Errorf("%s has the unknown scheme %q; it must be https, http or oci", request.URL.Redacted(), scheme)
	}
	if a.Username != "" {
		request.SetBasicAuth(a.Username, a.Password)
	}
	client, closeIdle, err := a.client(request.URL.Host)
	if err != nil {
		return nil, err
	}
	defer closeIdle()
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", request.URL.Redacted(), response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, sizeMax+1))
	if err == nil && len(data) > sizeMax {
		err = tooLarge(request.URL.Redacted())
	}
	return data, err
}

// client returns an HTTP client for a server, whose connections end with closeIdle. The server may redirect to others and, if it is a registry,
// name another one for tokens. These may have certificates of the same authorities, and are always verified.
func (a ServerAccess) client(host string) (client *http.Client, closeIdle func(), err error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if len(a.CAs) > 0 && !pool.AppendCertsFromPEM(a.CAs) {
		return nil, nil, errors.New("the CA certificates contain no PEM certificate")
	}
	if bundle := os.Getenv(proxyCAs); bundle != "" {
		data := []byte(bundle)
		if !strings.Contains(bundle, "-----BEGIN ") {
			if data, err = os.ReadFile(bundle); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", proxyCAs, err)
			}
		}
		if !pool.AppendCertsFromPEM(data) {
			return nil, nil, fmt.Errorf("%s contains no PEM certificate", proxyCAs)
		}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	others := transport.New(config, nil)
	config = config.Clone()
	config.InsecureSkipVerify = a.Insecure
	own := transport.New(config, nil)
	send := transport.Sender(func(others http.RoundTripper, request *http.Request) (*http.Response, error) {
		if request.URL.Host == host {
			return own.RoundTrip(request)
		}
		return others.RoundTrip(request)
	})
	return &http.Client{Transport: send.Wrap(others), Timeout: timeout, CheckRedirect: checkRedirect}, func() {
		own.CloseIdleConnections()
		others.CloseIdleConnections()
	}, nil
}

// checkRedirect is a function for http.Client.CheckRedirect. It refuses a redirect from https to http, and sends no credentials to another server:
// without it, the client omits the credentials only for another host name.
func checkRedirect(request *http.Request, before []*http.Request) error {
	const redirectsMax = 10
	if len(before) >= redirectsMax {
		return fmt.Errorf("more than %d redirects", redirectsMax)
	}
	if before[len(before)-1].URL.Scheme == "https" && request.URL.Scheme != "https" {
		return fmt.Errorf("the redirect to %s would leave TLS", request.URL.Redacted())
	}
	if !isSameServer(before[0].URL, request.URL) {
		request.Header.Del("Authorization")
	}
	return nil
}

// redacted returns a URL without its password; without user and password if it is not a valid URL.
func redacted(text string) string {
	if parsed, err := url.Parse(text); err == nil {
		return parsed.Redacted()
	}
	at := strings.LastIndex(text, "@")
	if at < 0 {
		return text
	}
	scheme, _, found := strings.Cut(text[:at], "//")
	if !found {
		return "xxxxx" + text[at:]
	}
	return scheme + "//xxxxx" + text[at:]
}

func tooLarge(what string) error { return fmt.Errorf("%s is larger than %d MiB", what, sizeMax>>20) }
