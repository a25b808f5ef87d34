package agent

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// dateGrain is what an HTTP date is rounded down to.
	dateGrain = time.Second
	// slowAnswer is the time from question to answer from which nobody can tell to the second when it was written.
	slowAnswer = 2 * time.Second
)

// skewMeter learns from the dates of the hub's answers how far the own clock is ahead of the hub's.
type skewMeter struct {
	clock clock.PassiveClock
	next  http.RoundTripper

	mutex sync.Mutex
	known bool
	skew  time.Duration
}

// RoundTrip passes the request on.
func (m *skewMeter) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := m.clock.Now()
	response, err := m.next.RoundTrip(request)
	if err == nil {
		m.observe(sent, m.clock.Now(), response.Header.Get("Date"))
	}
	return response, err
}

// WrappedRoundTripper lets others find the transport below, to close its connections for one.
func (m *skewMeter) WrappedRoundTripper() http.RoundTripper { return m.next }

// observe takes half of the round trip off, and half of what the date was rounded by.
func (m *skewMeter) observe(sent, received time.Time, date string) {
	theirs, err := http.ParseTime(date)
	trip := received.Sub(sent)
	if err != nil || trip > slowAnswer {
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.known, m.skew = true, sent.Add(trip/2).Sub(theirs.Add(dateGrain/2))
}

// seconds is the skew in whole seconds; false while it is less than one, or not known.
func (m *skewMeter) seconds() (time.Duration, bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if !m.known || m.skew.Abs() < dateGrain {
		return 0, false
	}
	return m.skew.Round(dateGrain), true
}
