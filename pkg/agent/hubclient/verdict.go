package hubclient

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/agent/timing"
)

// TokenVerdict is what the response to a request, or a missing response, says about the token of the request.
type TokenVerdict int

const (
	// NotAsked means that no request was sent.
	NotAsked TokenVerdict = iota
	// Accepted means that the request succeeded.
	Accepted
	// Rejected means that the Kubernetes API server itself does not know the token.
	Rejected
	// Obstructed means that a server answered, but said nothing about the token: the rights are missing or not yet there (403),
	// or a proxy, or an API server in trouble, answered 401, 403, 404, 429 or 5xx, or another server answered 200.
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

// FromAPIServer distinguishes a Status of the API server from one that client-go generated because the body was no Status.
func FromAPIServer(err error) bool {
	return !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

func (v TokenVerdict) String() string {
	return [...]string{"not-asked", "accepted", "rejected", "obstructed", "unreachable"}[v]
}

// rejectionsNeeded is how many rejections in a row are certain.
const rejectionsNeeded = 3

// ErrRejected means that the hub certainly rejects the credential.
var ErrRejected = errors.New("the hub rejects the credential")

// RejectionThreshold is reached when a row of rejections is certain. One rejection proves nothing: there may be several API
// servers behind one address, and one that has just started may not know a ServiceAccount or its key yet. Several goroutines
// may share a threshold.
type RejectionThreshold struct {
	needed int           // rejections in a row
	spread time.Duration // between the first and the last of them

	mutex sync.Mutex
	seen  int
	first time.Time
}

// NewRejectionThreshold has seen no rejection yet.
func NewRejectionThreshold(d timing.Durations) *RejectionThreshold {
	return &RejectionThreshold{needed: rejectionsNeeded, spread: d.RejectionSpread}
}

// Reached counts the verdict and reports whether the token is certainly rejected. Every verdict but a rejection resets the count.
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
	return r.seen >= r.needed && now.Sub(r.first) >= r.spread
}

// Check counts the result of a request and returns ErrRejected, wrapped, once the threshold is reached.
func (r *RejectionThreshold) Check(err error, now time.Time) error {
	if r.Reached(Classify(err), now) {
		return fmt.Errorf("%w: %w", ErrRejected, err)
	}
	return nil
}
