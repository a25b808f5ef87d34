package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// auditPolicy notes every request once, when it is answered, without its body.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
  - level: Metadata
`

// sent is one request as the audit log has it.
type sent struct {
	Verb      string `json:"verb"`
	UserAgent string `json:"userAgent"`
	User      struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received time.Time `json:"requestReceivedTimestamp"`
	Answered time.Time `json:"stageTimestamp"`
}

// what is the kind of the request, such as "create secrets" or "patch clusters/status".
func (s sent) what() string {
	if s.ObjectRef.Subresource != "" {
		return fmt.Sprintf("%s %s/%s", s.Verb, s.ObjectRef.Resource, s.ObjectRef.Subresource)
	}
	return s.Verb + " " + s.ObjectRef.Resource
}

// isOverhead is what a hub sends that has nothing to do with clusters.
func (s sent) isOverhead() bool { return s.ObjectRef.Resource == "leases" || s.ObjectRef.Resource == "events" }

func (s sent) isWrite() bool {
	switch s.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return !s.isOverhead()
	}
	return false
}

// isRead leaves watches out: one stays open for minutes and costs nothing while nothing changes.
func (s sent) isRead() bool { return !s.isOverhead() && (s.Verb == "get" || s.Verb == "list") }

// failed is an answer that asked the client to do it again, or not at all.
func (s sent) failed() bool { return s.ResponseStatus.Code >= http.StatusBadRequest }

// auditLog reads the audit log of an API server from where the last reading ended.
type auditLog struct {
	path   string
	offset int64
}

// since returns the requests that were noted since the last call and that match.
func (l *auditLog) since(match func(sent) bool) ([]sent, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return nil, err
	}
	var all []sent
	reader := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := reader.ReadBytes('\n')
		if err == io.EOF { // a line that is being written is read the next time
			return all, nil
		} else if err != nil {
			return nil, err
		}
		l.offset += int64(len(line))
		var s sent
		if err := json.Unmarshal(line, &s); err != nil {
			return nil, fmt.Errorf("reading the audit log %s: %w", l.path, err)
		}
		if match(s) {
			all = append(all, s)
		}
	}
}

// byAgent matches the requests of programs whose User-Agent begins so.
func byAgent(prefix string) func(sent) bool {
	return func(s sent) bool { return strings.HasPrefix(s.UserAgent, prefix) }
}

// Requests is what was sent.
type Requests struct {
	// Writes and Reads are requests, without leases, events and watches.
	Writes int `json:"writes"`
	Reads  int `json:"reads"`
	// Failed are those of them that were answered with an error.
	Failed int `json:"failed"`
	// Kinds counts them by verb and resource.
	Kinds map[string]int `json:"kinds"`
}

func countAll(all []sent) Requests {
	r := Requests{Kinds: map[string]int{}}
	for _, s := range all {
		switch {
		case s.isWrite():
			r.Writes++
		case s.isRead():
			r.Reads++
		default:
			continue
		}
		r.Kinds[s.what()]++
		if s.failed() {
			r.Failed++
		}
	}
	return r
}
