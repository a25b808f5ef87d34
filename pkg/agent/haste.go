package agent

import (
	"net/http"
	"strconv"
	"time"
)

// longestRetryAfter bounds how long an answer may have a request wait. client-go waits as long as it is told to, and a watch has no
// time of its own: the page of a load balancer that says an hour would keep the agent from everything the hub wants meanwhile.
const longestRetryAfter = 30 * time.Second

// hasty shortens what an answer asks for.
type hasty struct{ next http.RoundTripper }

// RoundTrip passes the request on.
func (h hasty) RoundTrip(request *http.Request) (*http.Response, error) {
	const header = "Retry-After"
	response, err := h.next.RoundTrip(request)
	if err != nil {
		return response, err
	}
	const most = int(longestRetryAfter / time.Second)
	if seconds, err := strconv.Atoi(response.Header.Get(header)); err == nil && seconds > most {
		response.Header.Set(header, strconv.Itoa(most))
	}
	return response, nil
}

// WrappedRoundTripper lets others find the transport below, to close its connections for one.
func (h hasty) WrappedRoundTripper() http.RoundTripper { return h.next }
