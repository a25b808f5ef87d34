package audit

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// Request is one request as the audit log has it.
type Request struct {
	Verb           string         `json:"verb"`
	URI            string         `json:"requestURI"`
	UserAgent      string         `json:"userAgent"`
	ObjectRef      objectRef      `json:"objectRef"`
	ResponseStatus responseStatus `json:"responseStatus"`
	// Received and Answered are by the clock of the API server.
	Received time.Time `json:"requestReceivedTimestamp"`
	Answered time.Time `json:"stageTimestamp"`
}

type objectRef struct {
	Resource    string `json:"resource"`
	Subresource string `json:"subresource"`
}

type responseStatus struct {
	Code int `json:"code"`
}

// Kind is the kind of the request, such as "create secrets" or "patch clusters/status". One that is about no object, such as
// that for the version of the server, is its verb alone.
func (r Request) Kind() string {
	kind := r.Verb + " " + r.ObjectRef.Resource
	if r.ObjectRef.Subresource != "" {
		kind += "/" + r.ObjectRef.Subresource
	}
	if r.isDryRun() {
		kind += " (dry run)"
	}
	return strings.TrimSpace(kind)
}

func (r Request) isDryRun() bool { return strings.Contains(r.URI, "dryRun=All") }

// isOverhead is what a hub sends that has nothing to do with clusters.
func (r Request) isOverhead() bool {
	return r.ObjectRef.Resource == "leases" || r.ObjectRef.Resource == "events"
}

// IsWrite leaves out leases and events.
func (r Request) IsWrite() bool { return !r.isOverhead() && r.changes() && !r.isDryRun() }

func (r Request) changes() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// IsRead leaves watches out: one stays open for minutes and costs nothing while nothing changes. A dry run is a read: it asks what
// would happen.
func (r Request) IsRead() bool {
	return !r.isOverhead() && (r.Verb == "get" || r.Verb == "list" || r.changes() && r.isDryRun())
}

// Counts says whether a request is one of those that are counted.
func (r Request) Counts() bool { return r.IsWrite() || r.IsRead() }

// Failed is an answer that asked the client to do it again, or not at all.
func (r Request) Failed() bool { return r.ResponseStatus.Code >= http.StatusBadRequest }

// Took is how long the API server had the request.
func (r Request) Took() time.Duration { return r.Answered.Sub(r.Received) }

// ByAgents matches the requests of programs whose User-Agent begins in one of these ways.
func ByAgents(prefixes ...string) func(Request) bool {
	return func(r Request) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(r.UserAgent, prefix) })
	}
}

// All matches every request.
func All(Request) bool { return true }
