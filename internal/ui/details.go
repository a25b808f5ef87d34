package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/muster-fleet/muster/internal/describe"
)

var errNotFound = errors.New("not found")

// details contains the data of the page of a Cluster. Entry is nil if there are only requests about it.
type details struct {
	*describe.Description
	Entry *entry
}

// cluster returns the loader of the page of a Cluster. It describes the Cluster again if the watch shows a change other than a heartbeat, and also
// every minute while a browser shows the page, because the watch does not include the other objects of the Cluster.
func (p *pages) cluster(r *http.Request) loader {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	var last *describe.Description
	var at time.Time
	var fingerprint uint64
	return func(ctx context.Context) (any, error) {
		e, now := p.fleet.get(namespace, name), uint64(0)
		if e != nil {
			now = e.fingerprint
		}
		if last == nil || fingerprint != now || p.clock.Since(at) >= longAge {
			read, err := describe.Of(ctx, p.hub, namespace, name, p.clock.Now())
			if err != nil && e == nil {
				return nil, fmt.Errorf("%w: %w", errNotFound, err)
			}
			if err != nil {
				return nil, err
			}
			slices.Reverse(read.Timeline)
			last, at, fingerprint = read, p.clock.Now(), now
		}
		return details{last, e}, nil
	}
}

// toneOf returns the colour of a line of the timeline.
func toneOf(h describe.Happened) string {
	switch words := append(strings.Fields(h.What), "", ""); {
	case words[0] == "Warning", words[1] == "False":
		return "bad"
	case words[0] == "Normal", words[1] == "True":
		return "good"
	case h.What == "created":
		return "other"
	}
	return "busy"
}
