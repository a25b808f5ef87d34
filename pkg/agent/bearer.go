package agent

import (
	"net/http"
	"sync/atomic"
)

// bearer sends the token with every request. Another one takes its place while requests are under way: an API server looks at
// it when a request begins, so a watch lives on.
type bearer struct {
	token atomic.Pointer[string]
	next  http.RoundTripper
}

func newBearer(token string, next http.RoundTripper) *bearer {
	b := &bearer{next: next}
	b.use(token)
	return b
}

func (b *bearer) use(token string) { b.token.Store(&token) }

// RoundTrip changes a copy, as a RoundTripper has to.
func (b *bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+*b.token.Load())
	return b.next.RoundTrip(request)
}

// WrappedRoundTripper lets others find the transport below, to close its connections for one.
func (b *bearer) WrappedRoundTripper() http.RoundTripper { return b.next }
