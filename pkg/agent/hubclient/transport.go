package hubclient

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/config"
)

// The RoundTrippers of a Connection, the outermost first. WrappedRoundTripper of each leads to the next one, so that its
// connections can be closed.

// tokenTransport sends the token with every request. The token can be replaced while requests are under way.
type tokenTransport struct {
	token atomic.Pointer[string]
	next  http.RoundTripper
}

func newTokenTransport(token string, next http.RoundTripper) *tokenTransport {
	t := &tokenTransport{next: next}
	t.use(token)
	return t
}

func (t *tokenTransport) use(token string) { t.token.Store(&token) }

// RoundTrip changes a copy of the request, as the interface demands.
func (t *tokenTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+*t.token.Load())
	return t.next.RoundTrip(request)
}

// WrappedRoundTripper returns the next RoundTripper.
func (t *tokenTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

const (
	// dateGrain is what an HTTP date is rounded down to.
	dateGrain = time.Second
	// slowAnswer is the duration of a request from which on its date is too imprecise.
	slowAnswer = 2 * time.Second
)

// clockSkewMeter measures, from the dates of the hub's answers, how far the agent's clock is ahead of the hub's.
type clockSkewMeter struct {
	clock clock.PassiveClock
	next  http.RoundTripper

	mutex sync.Mutex
	known bool
	skew  time.Duration
}

// RoundTrip passes the request on and reads the date of the response.
func (m *clockSkewMeter) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := m.clock.Now()
	response, err := m.next.RoundTrip(request)
	if err == nil {
		m.measure(sent, m.clock.Now(), response.Header.Get("Date"))
	}
	return response, err
}

// WrappedRoundTripper returns the next RoundTripper.
func (m *clockSkewMeter) WrappedRoundTripper() http.RoundTripper { return m.next }

// measure assumes that the hub wrote the date in the middle of the request, and that the date lost half a second by rounding.
func (m *clockSkewMeter) measure(sent, received time.Time, date string) {
	hubTime, err := http.ParseTime(date)
	duration := received.Sub(sent)
	if err != nil || duration > slowAnswer {
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.known, m.skew = true, sent.Add(duration/2).Sub(hubTime.Add(dateGrain/2))
}

// seconds is the skew in whole seconds; false if it is less than one or unknown.
func (m *clockSkewMeter) seconds() (time.Duration, bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if !m.known || m.skew.Abs() < dateGrain {
		return 0, false
	}
	return m.skew.Round(dateGrain), true
}

// tlsHint adds to the error about an untrusted certificate which CAs are trusted and where they are configured.
type tlsHint struct {
	endpoint Endpoint
	next     http.RoundTripper
}

// RoundTrip passes the request on.
func (h *tlsHint) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := h.next.RoundTrip(request)
	var unknownCA x509.UnknownAuthorityError
	var badName x509.HostnameError
	var badCert x509.CertificateInvalidError
	if errors.As(err, &unknownCA) || errors.As(err, &badName) || errors.As(err, &badCert) {
		trusted := "only the given CA is trusted"
		if h.endpoint.TLSMode() != config.TLSModeStrict {
			trusted = "the CAs of this image are trusted and the given CA, if any"
		}
		err = fmt.Errorf("the certificate of the hub is not trusted: %w; agentTLSMode is %s, so that %s; correct %s",
			err, h.endpoint.TLSMode(), trusted, h.endpoint.CASource)
	}
	return response, err
}

// WrappedRoundTripper returns the next RoundTripper.
func (h *tlsHint) WrappedRoundTripper() http.RoundTripper { return h.next }

// longestRetryAfter limits the Retry-After header of an answer. client-go waits as long as the header says, and a watch has no
// timeout: a load balancer's error page that says an hour would cut the agent off for an hour.
const longestRetryAfter = 30 * time.Second

// retryAfterCap shortens the Retry-After header of answers.
type retryAfterCap struct{ next http.RoundTripper }

// RoundTrip passes the request on.
func (c retryAfterCap) RoundTrip(request *http.Request) (*http.Response, error) {
	const header, most = "Retry-After", int(longestRetryAfter / time.Second)
	response, err := c.next.RoundTrip(request)
	if err != nil {
		return response, err
	}
	if seconds, err := strconv.Atoi(response.Header.Get(header)); err == nil && seconds > most {
		response.Header.Set(header, strconv.Itoa(most))
	}
	return response, nil
}

// WrappedRoundTripper returns the next RoundTripper.
func (c retryAfterCap) WrappedRoundTripper() http.RoundTripper { return c.next }
