// Front is a proxy in front of an API server, such as a load balancer or a management server: it has a serving certificate of another
// authority and forwards every request, including upgraded connections. Clients have to authenticate with bearer tokens, because the proxy
// does not forward client certificates.
//
// usage: front LISTEN-ADDRESS CERTIFICATE KEY API-SERVER-URL API-SERVER-CA
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "front:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("expected 5 arguments, got %d", len(args))
	}
	listen, certificate, key, server, ca := args[0], args[1], args[2], args[3], args[4]
	handler, err := proxy(server, ca)
	if err != nil {
		return err
	}
	front := &http.Server{
		Addr: listen, Handler: handler, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	return front.ListenAndServeTLS(certificate, key)
}

func proxy(server, ca string) (http.Handler, error) {
	target, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s has no certificate", ca)
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		// The events of a watch have to be forwarded immediately.
		FlushInterval: -1,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2: true,
		},
	}, nil
}
