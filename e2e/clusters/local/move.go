package local

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
)

// Move returns the second address of the API server: the node has a program in front of it that forwards requests, with
// bearer tokens, and serves with a certificate of an authority of its own.
func (c *cluster) Move(ctx context.Context) (string, []byte, error) {
	ca, err := os.ReadFile(c.node.path(fileFrontCA))
	if err != nil {
		return "", nil, err
	}
	return c.node.front(), ca, c.waitFor(ctx, "second address of the API server", func(ctx context.Context) error {
		return answers(ctx, c.node.front(), ca)
	})
}

// answers says whether somebody with a certificate of the authority answers at the address, be it by a refusal.
func answers(ctx context.Context, url string, ca []byte) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
