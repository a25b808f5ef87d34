// Package audit counts requests from the audit log of an API server.
package audit

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// Policy records every request once, when it is answered, without its body.
const Policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
  - level: Metadata
`

// Request is one event of the audit log, with the fields that are used here.
type Request struct {
	Verb      string `json:"verb"`
	URI       string `json:"requestURI"`
	UserAgent string `json:"userAgent"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	// Received and Answered are by the clock of the API server.
	Received time.Time `json:"requestReceivedTimestamp"`
	Answered time.Time `json:"stageTimestamp"`
}

func (r Request) isDryRun() bool { return strings.Contains(r.URI, "dryRun=All") }

// kind is the verb and the resource, such as "create secrets" or "patch clusters/status". A request for no resource, such as
// /version, has only the verb.
func (r Request) kind() string {
	kind := r.Verb + " " + r.ObjectRef.Resource
	if r.ObjectRef.Subresource != "" {
		kind += "/" + r.ObjectRef.Subresource
	}
	if r.isDryRun() {
		kind += " (dry run)"
	}
	return strings.TrimSpace(kind)
}

// counts returns whether a request counts as a write or as a read. Leases and Events do not count because they are not about
// clusters, and watches do not count because an open watch costs nothing while nothing changes. A dry run is a read.
func (r Request) counts() (write, read bool) {
	if r.ObjectRef.Resource == "leases" || r.ObjectRef.Resource == "events" {
		return false, false
	}
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return !r.isDryRun(), r.isDryRun()
	case "get", "list":
		return false, true
	}
	return false, false
}

// ByUserAgents matches requests whose User-Agent starts with one of the prefixes.
func ByUserAgents(prefixes ...string) func(Request) bool {
	return func(r Request) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(r.UserAgent, prefix) })
	}
}

// All matches every request.
func All(Request) bool { return true }

// Log reads the audit log of an API server. Each read continues where the previous one ended.
type Log struct {
	path   string
	offset int64
}

// NewLog reads the file from its beginning.
func NewLog(path string) *Log { return &Log{path: path} }

// Next returns the matching requests that were recorded since the last call.
func (l *Log) Next(match func(Request) bool) ([]Request, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return nil, err
	}
	var all []Request
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // the API server is still writing this line; the next call reads it
			return all, nil
		} else if err != nil {
			return nil, err
		}
		l.offset += int64(len(line))
		var r Request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("reading the audit log %s: %w", l.path, err)
		}
		if match(r) {
			all = append(all, r)
		}
	}
}

// FromHere returns another reader that starts at the end of the file.
func (l *Log) FromHere() (*Log, error) {
	info, err := os.Stat(l.path)
	if err != nil {
		return nil, err
	}
	return &Log{path: l.path, offset: info.Size()}, nil
}

// Counts are the numbers of requests, without Leases, Events and watches.
type Counts struct {
	Writes, Reads int
	// Failed is the number of these requests that were answered with an error.
	Failed int
	// Kinds counts the requests by verb and resource, FailedKinds the failed ones by status code as well.
	Kinds, FailedKinds map[string]int
	// Last is the time of the last answer.
	Last time.Time
}

// Count counts the requests.
func Count(all []Request) Counts {
	c := Counts{Kinds: map[string]int{}, FailedKinds: map[string]int{}}
	for _, r := range all {
		write, read := r.counts()
		switch {
		case write:
			c.Writes++
		case read:
			c.Reads++
		default:
			continue
		}
		c.Kinds[r.kind()]++
		if r.ResponseStatus.Code >= http.StatusBadRequest {
			c.Failed++
			c.FailedKinds[fmt.Sprintf("%s %d", r.kind(), r.ResponseStatus.Code)]++
		}
		if r.Answered.After(c.Last) {
			c.Last = r.Answered
		}
	}
	return c
}

// Requests is the number of writes and reads.
func (c Counts) Requests() int { return c.Writes + c.Reads }

// PerItem lists the requests divided by n, the most frequent first, followed by those that failed.
func (c Counts) PerItem(n int) string {
	list := func(kinds map[string]int) string {
		names := slices.SortedFunc(maps.Keys(kinds), func(a, b string) int {
			return cmp.Or(kinds[b]-kinds[a], strings.Compare(a, b))
		})
		for i, name := range names {
			names[i] = fmt.Sprintf("%s %.2f", name, float64(kinds[name])/float64(n))
		}
		return strings.Join(names, ", ")
	}
	if c.Failed == 0 {
		return list(c.Kinds)
	}
	return list(c.Kinds) + "; failed: " + list(c.FailedKinds)
}

// Latencies are the times that the API server took to answer, without watches.
func Latencies(all []Request) (took []time.Duration) {
	for _, r := range all {
		if r.Verb != "watch" {
			took = append(took, r.Answered.Sub(r.Received))
		}
	}
	return took
}
