package ui

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// worse compares states by their position in view.ClusterStates, which begins with the good states.
func worse(a, b string) int {
	return slices.Index(view.ClusterStates, b) - slices.Index(view.ClusterStates, a)
}

// tones are the colours of states, as classes of the style sheet.
var tones = map[string]string{
	view.StateRefused: "bad", view.StateFailed: "bad", view.StateImportFailed: "bad", view.StateOffline: "bad", string(fleet.ErrApplied): "bad",
	view.StateQuarantined: "held",
	view.StateRegistered:  "good", view.StateGranted: "good", view.StateReady: "good", "Active": "good", "InUse": "good", "Connected": "good",
	view.StateManaged: "other", view.StateUsedUp: "other", "Deleted": "other",
}

// tone returns the colour of a state. States that are not in tones are in progress.
func tone(state string) string {
	if t, found := tones[state]; found {
		return t
	}
	return "busy"
}

const (
	rowsOnPage = 50
	// maxCells limits the map. A cell of a larger fleet stands for several clusters.
	maxCells = 2000
	// maxTiles is the number of clusters up to which the map shows their names.
	maxTiles = 40
)

// overviewData contains the data of the start page.
type overviewData struct {
	Total  int
	Counts []stateCount
	Cells  []cell
	Each   int // number of clusters that a cell stands for
	Tiles  bool

	Filter           filter
	States           []string
	Rows             []*entry
	First, Last, All int // positions of the first and the last of Rows, and the number of clusters that the filter selects
	Previous, Next   string
	Invalid          string // the error of the filter
}

// stateCount is the number of clusters in a state. Start and Width describe its part of the bar, in thousandths.
type stateCount struct {
	State, Tone, Link   string
	Count, Start, Width int
}

// cell is one square of the map, with the worst state of its clusters.
type cell struct {
	Tone, Link, Name, State, Title string
	Few                            bool // fewer than half of the clusters are in that state
}

// filter contains the parameters in the query of the address.
type filter struct {
	Text, State, Labels, Sort string
	Page                      int
}

// link returns the address of the start page with a filter.
func (f filter) link() string {
	values := url.Values{}
	for key, value := range map[string]string{"q": f.Text, "state": f.State, "labels": f.Labels, "sort": f.Sort} {
		if value != "" {
			values.Set(key, value)
		}
	}
	if f.Page > 1 {
		values.Set("page", strconv.Itoa(f.Page))
	}
	return "/?" + values.Encode()
}

// matches reports whether the filter selects a Cluster. The text may be in its namespace, name, reason or message.
func (f filter) matches(e *entry, selector labels.Selector) bool {
	text := strings.ToLower(strings.TrimSpace(f.Text))
	contains := func(cell string) bool { return strings.Contains(strings.ToLower(cell), text) }
	return (f.State == "" || e.View.State == f.State) && selector.Matches(labels.Set(e.Labels)) &&
		(text == "" || contains(e.Namespace+"/"+e.Name) || contains(e.View.Reason) || contains(e.View.Message))
}

func (p *pages) overview(r *http.Request) loader {
	query := r.URL.Query()
	f := filter{Text: query.Get("q"), State: query.Get("state"), Labels: query.Get("labels"), Sort: query.Get("sort")}
	f.Page, _ = strconv.Atoi(query.Get("page")) // an invalid number means the first page
	return func(context.Context) (any, error) {
		clusters, _ := p.fleet.all()
		return overviewOf(clusters, f), nil
	}
}

func overviewOf(clusters []*entry, f filter) overviewData {
	d := overviewData{Total: len(clusters), Filter: f, States: view.ClusterStates}

	counts := map[string]int{}
	for _, e := range clusters {
		counts[e.View.State]++
	}
	start, before := 0, 0
	for _, state := range view.ClusterStates {
		if n := counts[state]; n > 0 {
			before += n
			end := before * 1000 / len(clusters)
			d.Counts = append(d.Counts, stateCount{
				State: state, Tone: tone(state), Link: filter{State: state}.link(), Count: n, Start: start, Width: end - start,
			})
			start = end
		}
	}

	d.Tiles, d.Each = len(clusters) <= maxTiles, max(1, (len(clusters)+maxCells-1)/maxCells)
	for first := 0; first < len(clusters); first += d.Each {
		d.Cells = append(d.Cells, cellOf(clusters[first:min(first+d.Each, len(clusters))], first))
	}

	selector, err := labels.Parse(f.Labels)
	if err != nil {
		d.Invalid, selector = "This is not a label selector: "+err.Error(), labels.Nothing()
	}
	var rows []*entry
	for _, e := range clusters {
		if f.matches(e, selector) {
			rows = append(rows, e)
		}
	}
	if f.Sort != "name" {
		slices.SortStableFunc(rows, func(a, b *entry) int { return worse(a.View.State, b.View.State) })
	}
	d.All = len(rows)
	last := max(1, (d.All+rowsOnPage-1)/rowsOnPage)
	f.Page = min(max(f.Page, 1), last)
	first := (f.Page - 1) * rowsOnPage
	d.Rows = rows[first:min(first+rowsOnPage, d.All)]
	d.First, d.Last = min(first+1, d.All), first+len(d.Rows)
	if f.Page > 1 {
		before := f
		before.Page--
		d.Previous = before.link()
	}
	if f.Page < last {
		after := f
		after.Page++
		d.Next = after.link()
	}
	return d
}

// cellOf returns the cell of some clusters. first is the position of the first of them in the list of all clusters.
func cellOf(clusters []*entry, first int) cell {
	worst, counts := clusters[0], map[string]int{}
	for _, e := range clusters {
		counts[e.View.State]++
		if worse(e.View.State, worst.View.State) < 0 {
			worst = e
		}
	}
	v := worst.View
	c := cell{Tone: tone(v.State), Link: clusterLink(v.Namespace, v.Name), Name: v.Name, State: v.State}
	c.Title = fmt.Sprintf("%s/%s: %s %s", v.Namespace, v.Name, v.State, v.Reason)
	c.Few = 2*counts[v.State] < len(clusters)
	if len(clusters) > 1 {
		from, to := clusters[0].View, clusters[len(clusters)-1].View
		c.Title = fmt.Sprintf("%s/%s to %s/%s:", from.Namespace, from.Name, to.Namespace, to.Name)
		for _, state := range view.ClusterStates {
			if counts[state] > 0 {
				c.Title += fmt.Sprintf(" %d %s", counts[state], state)
			}
		}
		c.Link = filter{Sort: "name", Page: first/rowsOnPage + 1}.link()
	}
	return c
}

func clusterLink(namespace, name string) string {
	return "/clusters/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// functions returns the functions of the templates.
func (p *pages) functions() template.FuncMap {
	return template.FuncMap{
		"tone": tone, "toneOf": toneOf, "clusterLink": clusterLink, "short": shorten,
		"ago": func(t *metav1.Time) string { return view.Ago(t, p.clock.Now()) },
		"seen": func(v view.Cluster) string {
			// The watch has the last heartbeat only of agents that are not connected: the status has an earlier one of the others.
			if v.State == view.StateRegistered {
				return "connected"
			}
			return view.Ago(v.LastSeen, p.clock.Now())
		},
		"until": func(t *metav1.Time) string { return view.Until(t, p.clock.Now()) },
		"lacking": func(ready string) bool { // such as 1/2
			have, want, found := strings.Cut(ready, "/")
			return found && have != want
		},
		"after": func(seconds float64) string {
			return duration.HumanDuration(time.Duration(seconds * float64(time.Second)))
		},
		"number": number,
	}
}

// number formats a number such as 12 345 with narrow spaces, which readers of every language understand.
func number(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}
