package clusternetagent

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/transport"
)

// SentRequests records the requests of an agent as "IDENTITY VERB PATH CODE". IDENTITY is boot for the bootstrap token and ded for the dedicated one.
// VERB is the HTTP method, or WATCH. PATH is without the API group. CODE is 0 without a response.
type SentRequests struct {
	mu    sync.Mutex
	lines []string
}

// Lines are the requests so far. The same request with the same answer many times in a row is one line.
func (s *SentRequests) Lines() (distinct []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.lines {
		if len(distinct) == 0 || distinct[len(distinct)-1] != line {
			distinct = append(distinct, line)
		}
	}
	return distinct
}

// Count is the number of requests so far whose line contains a text.
func (s *SentRequests) Count(text string) (count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.lines {
		if strings.Contains(line, text) {
			count++
		}
	}
	return count
}

// Reset forgets the requests so far.
func (s *SentRequests) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = nil
}

func (s *SentRequests) on(config *rest.Config, identity string) *rest.Config {
	if s == nil {
		return config
	}
	config = rest.CopyConfig(config)
	config.Wrap(transport.Sender(func(next http.RoundTripper, request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		s.add(identity, request, response)
		return response, err
	}).Wrap)
	return config
}

// add records a request that was answered.
func (s *SentRequests) add(identity string, request *http.Request, response *http.Response) {
	verb, path, code := request.Method, request.URL.Path, 0
	if request.URL.Query().Has("watch") {
		verb = "WATCH"
	}
	for _, root := range []string{"/apis/clusters.clusternet.io/v1beta1/", "/apis/apps.clusternet.io/v1alpha1/", "/apis/proxies.clusternet.io/v1alpha1/", "/api/v1/"} {
		path = strings.TrimPrefix(path, root)
	}
	if response != nil {
		code = response.StatusCode
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf("%s %s %s %d", identity, verb, path, code))
}
