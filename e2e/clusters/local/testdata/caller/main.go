// Caller lists the namespaces of an API server repeatedly, and prints one line per response: "ok", "refused" for another response or
// a refused connection, and "hangs" if there is no response in time.
//
// It calls the API server of its own cluster, or the one in the environment variable SERVER, with TOKEN and CA (PEM).
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

const mounted = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	server, token, ca := os.Getenv("SERVER"), os.Getenv("TOKEN"), os.Getenv("CA")
	if server == "" {
		server = "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
		token, ca = read(mounted+"token"), read(mounted+"ca.crt")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca))
	client := &http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true},
	}
	for ; ; time.Sleep(200 * time.Millisecond) {
		fmt.Println(ask(client, server+"/api/v1/namespaces", token))
	}
}

func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		fmt.Println(err)
	}
	return string(data)
}

func ask(client *http.Client, url, token string) string {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if os.IsTimeout(err) {
		return "hangs"
	}
	if err != nil {
		return "refused: " + err.Error()
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "refused: " + response.Status
	}
	return "ok"
}
