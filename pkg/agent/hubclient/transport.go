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

const (
	// longestRetryAfter limits the Retry-After header of an answer. client-go waits for that time, and a watch has no timeout: a load balancer's
	// error page with an hour in the header would cut the agent off for an hour.
	longestRetryAfter = 30 * time.Second
	// dateGrain is the resolution of an HTTP date.
	dateGrain = time.Second
	// slowAnswer is the duration of a request from which on the date of its answer is too imprecise.
	slowAnswer = 2 * time.Second
)

// hubTransport is the http.RoundTripper of a Connection.
type hubTransport struct {
	next     http.RoundTripper
	endpoint Endpoint
	clock    clock.PassiveClock
	token    atomic.Pointer[string] // can be replaced while requests are under way

	mutex     sync.Mutex
	skewKnown bool
	skew      time.Duration // how far the agent's clock is ahead of the hub's
}

// RoundTrip sends a copy of the request, with the token.
func (t *hubTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+*t.token.Load())
	sent := t.clock.Now()
	response, err := t.next.RoundTrip(request)
	if err != nil {
		return response, t.explain(err)
	}
	t.measureSkew(sent, t.clock.Now(), response.Header.Get("Date"))
	const header, most = "Retry-After", int(longestRetryAfter / time.Second)
	if seconds, err := strconv.Atoi(response.Header.Get(header)); err == nil && seconds > most {
		response.Header.Set(header, strconv.Itoa(most))
	}
	return response, nil
}

// WrappedRoundTripper lets client-go close the connections of the transport below.
func (t *hubTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// explain adds to an error about a certificate what must be corrected, and for an unknown CA which CAs are trusted.
func (t *hubTransport) explain(err error) error {
	var unknownCA x509.UnknownAuthorityError
	var badName x509.HostnameError
	var badCert x509.CertificateInvalidError
	switch {
	case errors.As(err, &badName):
		return fmt.Errorf("the certificate of the hub is not for the address %s: %w; correct the address in %s, or the certificate of the hub",
			t.endpoint.Server, err, t.endpoint.Source)
	case errors.As(err, &badCert):
		return fmt.Errorf("the certificate of the hub is not valid: %w; renew it, or correct the clock of this cluster", err)
	case !errors.As(err, &unknownCA):
		return err
	}
	trusted := "only the given CA is trusted"
	if t.endpoint.TLSMode() != config.TLSModeStrict {
		trusted = "the CAs of this image are trusted and the given CA, if any"
	}
	return fmt.Errorf("the certificate of the hub is not trusted: %w; agentTLSMode is %s, so that %s; correct %s",
		err, t.endpoint.TLSMode(), trusted, t.endpoint.CASource)
}

// measureSkew assumes that the hub wrote the date in the middle of the request, and that the date lost half a second by rounding. Round(0) leaves
// the reading of the wall clock: if the machine was suspended or the clock was set during the request, the date does not fit to the times.
func (t *hubTransport) measureSkew(sent, received time.Time, date string) {
	hubTime, err := http.ParseTime(date)
	duration := received.Round(0).Sub(sent.Round(0))
	if err != nil || duration.Abs() > slowAnswer {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.skewKnown, t.skew = true, sent.Add(duration/2).Sub(hubTime.Add(dateGrain/2))
}

func (t *hubTransport) clockSkew() (time.Duration, bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if !t.skewKnown || t.skew.Abs() < dateGrain {
		return 0, false
	}
	return t.skew.Round(dateGrain), true
}
