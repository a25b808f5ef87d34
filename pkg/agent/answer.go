package agent

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Answer is what the reply to a request, or the lack of one, says about the credential the request was made with.
type Answer int

const (
	// NotAsked means that no request was made.
	NotAsked Answer = iota
	// Accepts means the request was carried out.
	Accepts
	// Refuses means that the Kubernetes API server itself does not know the credential.
	Refuses
	// Obstructed means that somebody answered, but not with a verdict on the credential: the rights are missing, or are
	// not there yet (403), or a proxy on the way, or the server in trouble, answered 401, 403, 404, 429 or 5xx.
	Obstructed
	// Unreachable means that nobody answered: DNS, connection, TLS or time.
	Unreachable
)

// Classify turns the error of a request to the hub into an Answer. Only a 401 with a Status that the API server wrote
// is a refusal: on the way there may be a proxy that answers 401 while it restarts, and an agent that took this for a
// refusal would throw its identity away.
func Classify(err error) Answer {
	if err == nil {
		return Accepts
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return Unreachable
	}
	if status.Status().Code == http.StatusUnauthorized && fromAPIServer(err) {
		return Refuses
	}
	return Obstructed
}

// fromAPIServer tells a Status the API server sent from one the client made up because the body was something else.
func fromAPIServer(err error) bool {
	return !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

func (a Answer) String() string {
	return [...]string{"not-asked", "accepts", "refuses", "obstructed", "unreachable"}[a]
}

// suspicion grows with refusals in a row until they are certain. One refusal proves nothing: behind one address there may
// be several API servers, and one that has just started may not know a ServiceAccount or its key yet.
type suspicion struct {
	needed int           // refusals in a row
	spread time.Duration // from the first to the last of them
	seen   int
	first  time.Time
}

// observe takes the next answer and says whether the credential counts as refused. Any other answer clears the suspicion.
func (s *suspicion) observe(a Answer, now time.Time) bool {
	if a != Refuses {
		s.seen = 0
		return false
	}
	if s.seen == 0 {
		s.first = now
	}
	s.seen++
	return s.seen >= s.needed && now.Sub(s.first) >= s.spread
}
