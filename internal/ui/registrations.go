package ui

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// snapshot contains all tokens and requests at one time.
type snapshot struct {
	Tokens   []view.Token
	Requests []view.Request
	At       time.Time
	changes  int // number of changes of Clusters before the snapshot
}

// snapshots contains the last snapshot. A snapshot is taken only when a browser shows the page of registrations.
type snapshots struct {
	mutex sync.Mutex
	last  *snapshot
}

// The page does not watch tokens and requests. A snapshot is taken again after shortAge if a Cluster has changed, for example because a request
// was granted, and otherwise after longAge.
const (
	shortAge = 5 * time.Second
	longAge  = time.Minute
)

// snapshot lists the tokens and requests in pages, if the last snapshot is too old.
func (p *pages) snapshot(ctx context.Context) (*snapshot, error) {
	p.requests.mutex.Lock()
	defer p.requests.mutex.Unlock()
	_, changes := p.fleet.all()
	if last := p.requests.last; last != nil {
		if age := p.clock.Since(last.At); age < shortAge || age < longAge && last.changes == changes {
			return last, nil
		}
	}
	at := p.clock.Now()
	tokens, err := admin.Collect(ctx, p.hub.Fleet.ClusterRegistrationTokens(p.namespace).List, func(token *fleet.ClusterRegistrationToken) (view.Token, bool) {
		return view.OfToken(token), true
	})
	if err != nil {
		return nil, err
	}
	requests, err := admin.Collect(ctx, p.hub.Fleet.ClusterRegistrations(p.namespace).List, func(request *fleet.ClusterRegistration) (view.Request, bool) {
		return view.OfRequest(request), true
	})
	if err != nil {
		return nil, err
	}
	p.requests.last = &snapshot{tokens, requests, at, changes}
	return p.requests.last, nil
}

// The steps of a registration. A cluster that has reached a step has passed all earlier steps.
const (
	stepKnown = iota // a Cluster or a request exists
	stepRequested
	stepGranted
	stepHeartbeat
	stepConnected
	steps
)

var stepNames = [steps]string{"Known to the hub", "Requested", "Granted", "First heartbeat", "Connected now"}

// registrationsData contains the data of the page of registrations.
type registrationsData struct {
	Steps  []funnelStep
	Tokens []tokenRow
	// MoreTokens is the number of tokens that are not in Tokens.
	MoreTokens int
	Obstacles  []obstacle
	At         *metav1.Time
}

// funnelStep is the number of clusters that have reached a step, in total and by the way in which they register. Width is the share of all clusters in thousandths.
type funnelStep struct {
	Name                                string
	Count, Width, Agent, Manager, Local int
}

// tokenRow is a token, with the numbers of its requests and clusters in each state.
type tokenRow struct {
	Token             view.Token
	Uses              string
	Waiting, Refused  int
	Granted, Reported int
}

// obstacle is a reason for which Clusters, requests or tokens wait or were refused, with their number.
type obstacle struct {
	What, State, Reason, Message string
	Count                        int
	Link                         string // to a list of the Clusters; empty for other objects
	Example, ExampleLink         string
}

const maxTokens = 50

func (p *pages) registrations(*http.Request) loader {
	return func(ctx context.Context) (any, error) {
		s, err := p.snapshot(ctx)
		if err != nil {
			return nil, err
		}
		clusters, _ := p.fleet.all()
		return registrationsOf(clusters, s), nil
	}
}

func registrationsOf(clusters []*entry, s *snapshot) registrationsData {
	type key struct{ namespace, name string }
	type progress struct {
		step int
		way  string
	}
	all, obstacles := map[key]*progress{}, map[obstacle]obstacle{}
	blocked := func(what, namespace, name, state, reason, message, link string) {
		same := obstacle{What: what, State: state, Reason: reason}
		found, known := obstacles[same]
		if !known {
			found = same
			found.Message, found.Link, found.Example = message, link, namespace+"/"+name
			if what != "Token" {
				found.ExampleLink = clusterLink(namespace, name)
			}
		}
		found.Count++
		obstacles[same] = found
	}

	for _, e := range clusters {
		v, reached := e.View, stepKnown
		switch {
		case v.State == view.StateRegistered && v.LastSeen != nil:
			reached = stepConnected
		case v.LastSeen != nil:
			reached = stepHeartbeat
		}
		all[key{v.Namespace, v.Name}] = &progress{reached, v.WayIn}
		if reached != stepConnected && v.State != view.StateManaged && v.State != view.StateDeleting {
			blocked("Cluster", v.Namespace, v.Name, v.State, v.Reason, v.Message, filter{State: v.State, Text: v.Reason}.link())
		}
	}

	tokens := map[key]*tokenRow{}
	for _, t := range s.Tokens {
		tokens[key{t.Namespace, t.Name}] = &tokenRow{Token: t, Uses: t.UsesText()}
		if t.State == view.StateFailed || t.State == view.StateWaiting {
			blocked("Token", t.Namespace, t.Name, t.State, t.Reason, t.Message, "")
		}
	}
	for _, r := range s.Requests {
		at := key{r.Namespace, r.Cluster}
		if all[at] == nil {
			all[at] = &progress{stepKnown, view.WayAgent}
		}
		token := tokens[key{r.Namespace, r.Token}]
		if token == nil {
			token = &tokenRow{} // the token was deleted
		}
		switch r.State {
		case view.StateGranted:
			all[at].step = max(all[at].step, stepGranted)
			token.Granted++
			if all[at].step >= stepHeartbeat {
				token.Reported++
			}
			continue
		case view.StateRefused:
			token.Refused++
		default:
			token.Waiting++
		}
		all[at].step = max(all[at].step, stepRequested)
		blocked("Request", r.Namespace, r.Name, r.State, r.Reason, r.Message, "")
	}

	d := registrationsData{At: &metav1.Time{Time: s.At}}
	for step, name := range stepNames {
		count := funnelStep{Name: name}
		for _, p := range all {
			if p.step < step {
				continue
			}
			count.Count++
			switch p.way {
			case view.WayAgent:
				count.Agent++
			case view.WayManager:
				count.Manager++
			case view.WayLocal:
				count.Local++
			}
		}
		count.Width = count.Count * 1000 / max(1, len(all))
		d.Steps = append(d.Steps, count)
	}
	for _, row := range tokens {
		d.Tokens = append(d.Tokens, *row)
	}
	slices.SortFunc(d.Tokens, func(a, b tokenRow) int {
		return cmp.Or(b.Refused+b.Waiting-a.Refused-a.Waiting, b.Granted-a.Granted, cmp.Compare(a.Token.Namespace, b.Token.Namespace), cmp.Compare(a.Token.Name, b.Token.Name))
	})
	if len(d.Tokens) > maxTokens {
		d.MoreTokens, d.Tokens = len(d.Tokens)-maxTokens, d.Tokens[:maxTokens]
	}
	d.Obstacles = slices.SortedFunc(maps.Values(obstacles), func(a, b obstacle) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.What, b.What), cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
	return d
}
