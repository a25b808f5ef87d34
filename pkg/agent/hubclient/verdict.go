package hubclient

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/agent/timing"
)

// TokenVerdict is the conclusion about the token of a request from its response, or from a missing response.
type TokenVerdict int

const (
	// NotAsked means that no request was sent.
	NotAsked TokenVerdict = iota
	// Accepted means that the request succeeded.
	Accepted
	// Rejected means that the Kubernetes API server itself does not know the token.
	Rejected
	// Obstructed means that the answer of a server allows no conclusion: the rights are missing or not yet there (403), or a proxy, or an
	// overloaded or restarting API server, answered 401, 403, 404, 429 or 5xx, or another server answered 200.
	Obstructed
	// Unreachable means that no server answered (DNS, connection, TLS or a timeout), or that its answer could not be read.
	Unreachable
)

// Classify turns the error of a request to the hub into a TokenVerdict. Only a 401 with a Status that the API server wrote is a
// rejection: a proxy may answer 401 while it restarts, and an agent that took this for a rejection would give up its identity.
func Classify(err error) TokenVerdict {
	if err == nil {
		return Accepted
	}
	if errors.Is(err, errNoList) {
		return Obstructed
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return Unreachable
	}
	if status.Status().Code == http.StatusUnauthorized && FromAPIServer(err) {
		return Rejected
	}
	return Obstructed
}

// FromAPIServer reports whether the API server wrote the Status of an error. client-go generates one if the body of a response is no Status.
func FromAPIServer(err error) bool {
	return !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// RefusedBy reports whether an admission policy of the hub has refused a request.
func RefusedBy(err error, policy string) bool {
	return err != nil && apierrors.IsForbidden(err) && FromAPIServer(err) && strings.Contains(err.Error(), "'"+policy+"'")
}

func (v TokenVerdict) String() string {
	return [...]string{"not-asked", "accepted", "rejected", "obstructed", "unreachable"}[v]
}

// rejectionsNeeded is the number of rejections in a row after which a rejection is certain.
const rejectionsNeeded = 3

// RejectionThreshold counts rejections in a row. One rejection is not certain: there may be several API servers behind one address, and a server
// that has just started may not have a ServiceAccount or its key yet. Several goroutines may share a threshold.
type RejectionThreshold struct {
	spread time.Duration // between the first and the last rejection

	mutex sync.Mutex
	seen  int
	first time.Time
}

// NewRejectionThreshold returns a threshold without rejections.
func NewRejectionThreshold(d timing.Durations) *RejectionThreshold {
	return &RejectionThreshold{spread: d.RejectionSpread}
}

// Reached counts the verdict, and reports whether the rejection is certain. Every verdict but a rejection resets the count.
func (r *RejectionThreshold) Reached(v TokenVerdict, now time.Time) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if v != Rejected {
		r.seen = 0
		return false
	}
	if r.seen == 0 {
		r.first = now
	}
	r.seen++
	return r.seen >= rejectionsNeeded && now.Sub(r.first) >= r.spread
}

// Check counts the result of a request and returns an error once the threshold is reached.
func (r *RejectionThreshold) Check(err error, now time.Time) error {
	if r.Reached(Classify(err), now) {
		return fmt.Errorf("the hub rejects the credential: %w", err)
	}
	return nil
}
