package ui

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestGuard(t *testing.T) {
	b := serving(t, clustersInAllStates(3))
	port := strconv.Itoa(b.pages.port)
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	withoutCookie := func(r *http.Request) { r.Header.Del("Cookie") }
	tests := map[string]struct {
		path   string
		change []func(*http.Request)
		want   int
	}{
		"a browser with the cookie":              {"/", nil, http.StatusOK},
		"localhost":                              {"/", []func(*http.Request){host("localhost:" + port)}, http.StatusOK},
		"IPv6":                                   {"/", []func(*http.Request){host("[::1]:" + port)}, http.StatusOK},
		"a name that resolves to this machine":   {"/", []func(*http.Request){host("evil.example.com:" + port)}, http.StatusForbidden},
		"the same without a port":                {"/", []func(*http.Request){host("localhost")}, http.StatusForbidden},
		"another port in the Host header":        {"/", []func(*http.Request){host("127.0.0.1:1")}, http.StatusForbidden},
		"the secret under another name":          {"/open?secret=" + b.pages.secret, []func(*http.Request){host("evil.example.com:" + port), withoutCookie}, http.StatusForbidden},
		"the page's own stream":                  {"/static/ui.js", []func(*http.Request){header("Origin", "http://127.0.0.1:"+port), header("Sec-Fetch-Site", "same-origin")}, http.StatusOK},
		"a typed address":                        {"/", []func(*http.Request){header("Sec-Fetch-Site", "none")}, http.StatusOK},
		"a page of another site":                 {"/", []func(*http.Request){header("Sec-Fetch-Site", "cross-site")}, http.StatusForbidden},
		"a page of another port of this machine": {"/", []func(*http.Request){header("Sec-Fetch-Site", "same-site")}, http.StatusForbidden},
		"the stream, read by another origin":     {"/", []func(*http.Request){header("Accept", "text/event-stream"), header("Origin", "http://127.0.0.1:1")}, http.StatusForbidden},
		"an opaque origin":                       {"/", []func(*http.Request){header("Origin", "null")}, http.StatusForbidden},
		"no cookie":                              {"/", []func(*http.Request){withoutCookie}, http.StatusUnauthorized},
		"no cookie, the stream":                  {"/", []func(*http.Request){withoutCookie, header("Accept", "text/event-stream")}, http.StatusUnauthorized},
		"no cookie, the script":                  {"/static/ui.js", []func(*http.Request){withoutCookie}, http.StatusUnauthorized},
		"another value":                          {"/", []func(*http.Request){header("Cookie", "muster-ui-"+port+"=x")}, http.StatusUnauthorized},
		"the cookie of a page on another port":   {"/", []func(*http.Request){header("Cookie", "muster-ui-1="+b.pages.secret)}, http.StatusUnauthorized},
		"the secret":                             {"/open?secret=" + b.pages.secret, []func(*http.Request){withoutCookie}, http.StatusSeeOther},
		"another secret":                         {"/open?secret=x", []func(*http.Request){withoutCookie}, http.StatusUnauthorized},
		"no secret":                              {"/open", []func(*http.Request){withoutCookie}, http.StatusUnauthorized},
		"a write":                                {"/", []func(*http.Request){func(r *http.Request) { r.Method = http.MethodPost }}, http.StatusMethodNotAllowed},
		"a deletion":                             {"/clusters/a/b", []func(*http.Request){func(r *http.Request) { r.Method = http.MethodDelete }}, http.StatusMethodNotAllowed},
		"a page that does not exist":             {"/metrics", nil, http.StatusNotFound},
		"a cluster that does not exist":          {"/clusters/a/b", nil, http.StatusNotFound},
		"a file that is not served":              {"/ui.go", nil, http.StatusNotFound},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			status, body, header := b.get(t, test.path, test.change...)
			require.Equal(t, test.want, status, body)
			assert.Contains(t, header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'; style-src 'self';")
			assert.Equal(t, "no-store", header.Get("Cache-Control"))
			assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
			assert.Empty(t, header.Get("Access-Control-Allow-Origin"))
			if status >= http.StatusBadRequest {
				assert.NotContains(t, body, "store-ams")
				assert.Empty(t, header.Get("Set-Cookie"))
			}
		})
	}

	_, _, answer := b.get(t, "/open?secret="+b.pages.secret)
	require.Equal(t, "muster-ui-"+port+"="+b.pages.secret+"; Path=/; HttpOnly; SameSite=Strict", answer.Get("Set-Cookie"))
	require.Equal(t, "/", answer.Get("Location"))
}

func TestServeRefusesAddressesOfOthers(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", "[::]:0", ":8080", "192.0.2.1:80", "127.0.0.2:0", "localhost:0", "127.0.0.1", ""} {
		err := Serve(t.Context(), Options{Config: &rest.Config{Host: "http://127.0.0.1:1"}, Address: address})
		require.ErrorContains(t, err, "must be 127.0.0.1:PORT or [::1]:PORT", address)
	}
}

// Texts of members and users are escaped on the page: they add no element, no attribute and no line of a stream.
func TestHostileTexts(t *testing.T) {
	const script = `"'><img src=x onerror=hacked()></bdi></td><script>hacked()</script>`
	evil := withCondition(registered("ns", "evil", noon), fleet.ConditionRegistered, corev1.ConditionFalse, "R"+script, "\u202e\r\n\r\ndata: {\"table\":\"x\"}\r\n\r\n"+script)
	evil.Labels["k"+script] = script
	evil.Status.Agent.Version, evil.Status.Agent.KubernetesVersion, evil.Status.Display.ReadyBundles = script, script, script
	evil.Status.Agent.Namespace = script
	evil.Status.Agent.Hub = &fleet.AgentHub{APIServerURL: "javascript:hacked()", Pending: script}
	named := registered("n"+script, "javascript:hacked()"+script, noon)
	others := belongings(evil)
	for _, o := range others {
		switch o := o.(type) {
		case *corev1.Event:
			o.Reason, o.Message = script, script
		case *fleet.ClusterRegistration:
			o.Status.Conditions = append(o.Status.Conditions[:0], condition(fleet.ConditionGranted, corev1.ConditionFalse, script, script, noon))
			o.Status.Granted = false
		case *fleet.BundleDeployment:
			o.Status.Conditions = append(o.Status.Conditions[:0], condition(fleet.ConditionReady, corev1.ConditionFalse, script, script, noon))
		}
	}
	b := serving(t, []*fleet.Cluster{evil, named}, others...)
	elements := regexp.MustCompile(`(?i)<(script|img)[^>]*>`)
	for _, path := range []string{"/", "/registrations", "/clusters/ns/evil", clusterLink(named.Namespace, named.Name), "/?q=" + script, "/?labels=" + "a%3D%3C" + script, "/?state=%22%3E%3Cscript%3E"} {
		status, body, _ := b.get(t, strings.ReplaceAll(path, " ", "+"))
		require.Equal(t, http.StatusOK, status, body)
		require.Equal(t, []string{`<script src="/static/ui.js" defer>`, `<img src="/static/icon.svg" alt="" width="22" height="22">`}, elements.FindAllString(body, -1), path)
		require.NotContains(t, body, "style=")
		require.NotContains(t, body, `href="javascript:`)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+"/", nil)
	require.NoError(t, err)
	parts := nextParts(t, b.stream(t, request))
	require.Len(t, parts, 4)
	require.Empty(t, elements.FindAllString(strings.Join([]string{parts["summary"], parts["map"], parts["table"]}, ""), -1))
	require.Contains(t, parts["table"], "data: {&#34;table&#34;", "the lines of the message are in the message")
}

// stream reads the stream of a page.
func (b browser) stream(t *testing.T, request *http.Request) *bufio.Scanner {
	t.Helper()
	request.Header.Set("Accept", "text/event-stream")
	request.AddCookie(&http.Cookie{Name: "muster-ui-" + strconv.Itoa(b.pages.port), Value: b.pages.secret})
	return openStream(t, http.DefaultClient, request)
}

func openStream(t *testing.T, client *http.Client, request *http.Request) *bufio.Scanner {
	t.Helper()
	response, err := client.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<22)
	return lines
}

// nextParts is the next message.
func nextParts(t *testing.T, lines *bufio.Scanner) (parts map[string]string) {
	t.Helper()
	require.True(t, lines.Scan(), "the stream has ended: %v", lines.Err())
	data, found := strings.CutPrefix(lines.Text(), "data: ")
	require.True(t, found, lines.Text())
	require.NoError(t, json.Unmarshal([]byte(data), &parts))
	require.True(t, lines.Scan())
	require.Empty(t, lines.Text(), "an empty line ends a message")
	return parts
}

func TestStreamSendsWhatHasChanged(t *testing.T) {
	b := servingAt(t, clock.RealClock{}, clustersInAllStates(3))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+"/", nil)
	require.NoError(t, err)
	lines := b.stream(t, request)
	require.Len(t, nextParts(t, lines), 4, "the first message has all parts")

	worse := withCondition(registered("fleet-default", "store-ams-00000", noon), fleet.ConditionRegistered, corev1.ConditionFalse, "Denied", "")
	require.NoError(t, b.pages.fleet.informer.GetStore().Add(mustEntry(t, worse)))
	b.pages.fleet.change(true)
	parts := nextParts(t, lines)
	require.Contains(t, parts["summary"], "Refused")
	require.NotContains(t, parts, "problem", "it has not changed")

	b.pages.fleet.set(errors.New("connection refused"))
	parts = nextParts(t, lines)
	require.Contains(t, parts["problem"], "this page may be out of date: connection refused")
	require.NotContains(t, parts, "map")
	_, body, _ := b.get(t, "/")
	require.Contains(t, body, "this page may be out of date: connection refused")
	b.pages.fleet.set(nil)
	require.Equal(t, map[string]string{"problem": ""}, nextParts(t, lines))
}

func TestOverviewOf(t *testing.T) {
	var clusters []*entry
	for _, c := range clustersInAllStates(300) {
		clusters = append(clusters, mustEntry(t, c))
	}
	names := func(d overviewData) string { return fmt.Sprintf("%d to %d of %d", d.First, d.Last, d.All) }
	tests := map[string]struct {
		filter               filter
		want, previous, next string
	}{
		"all":                           {filter{}, "1 to 50 of 300", "", "/?page=2"},
		"a page in the middle":          {filter{Page: 3, Sort: "name"}, "101 to 150 of 300", "/?page=2&sort=name", "/?page=4&sort=name"},
		"the last page":                 {filter{Page: 6}, "251 to 300 of 300", "/?page=5", ""},
		"a page behind the last":        {filter{Page: 1 << 40}, "251 to 300 of 300", "/?page=5", ""},
		"a page before the first":       {filter{Page: -3}, "1 to 50 of 300", "", "/?page=2"},
		"a state":                       {filter{State: "Offline"}, "1 to 2 of 2", "", ""},
		"a state that does not exist":   {filter{State: "<b>"}, "0 to 0 of 0", "", ""},
		"a part of a name":              {filter{Text: "DEFAULT/store-ams"}, "1 to 20 of 20", "", ""},
		"a reason":                      {filter{Text: " unreachable "}, "1 to 2 of 2", "", ""},
		"a part of a message":           {filter{Text: "no route to host"}, "1 to 2 of 2", "", ""},
		"labels":                        {filter{Labels: "region in (eu),region!=us"}, "1 to 50 of 150", "", "/?labels=region+in+%28eu%29%2Cregion%21%3Dus&page=2"},
		"labels that no cluster has":    {filter{Labels: "region=mars"}, "0 to 0 of 0", "", ""},
		"labels, and a part of a name":  {filter{Labels: "region=eu", Text: "plant", Page: 2}, "1 to 50 of 50", "", ""},
		"what is no selector":           {filter{Labels: "a=<"}, "0 to 0 of 0", "", ""},
		"an order that does not exist":  {filter{Sort: "x"}, "1 to 50 of 300", "", "/?page=2&sort=x"},
		"nothing but spaces: no filter": {filter{Text: "  "}, "1 to 50 of 300", "", "/?page=2&q=++"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := overviewOf(clusters, test.filter)
			require.Equal(t, test.want, names(d))
			require.Equal(t, test.previous, d.Previous)
			require.Equal(t, test.next, d.Next)
			require.Equal(t, test.filter.Labels == "a=<", d.Invalid != "")
			require.Equal(t, 300, d.Total, "the map and the sums have all clusters")
			require.Len(t, d.Cells, 300)
		})
	}

	d := overviewOf(clusters, filter{})
	require.Equal(t, "Refused", d.Rows[0].View.State, "the worst first")
	require.Equal(t, "Registered", d.Counts[0].State)
	total, width := 0, 0
	for _, c := range d.Counts {
		require.Equal(t, width, c.Start)
		total, width = total+c.Count, width+c.Width
	}
	require.Equal(t, []int{300, 1000}, []int{total, width})
	require.Zero(t, overviewOf(nil, filter{Page: 2}).First)
}

// The page of a large fleet is larger than the page of a small one only by its map.
func TestOverviewOfTenThousand(t *testing.T) {
	b := serving(t, clustersInAllStates(10_000))
	_, body, _ := b.get(t, "/")
	require.Less(t, len(body), 500_000)
	require.Contains(t, body, "<h1>10\u202f000 clusters</h1>")
	require.Equal(t, 2000, strings.Count(body, `title="fleet-default/`))
	require.Contains(t, body, "Each square is 5 clusters")
	require.Equal(t, 50, strings.Count(body, `<td class="name">`))

	_, body, _ = b.get(t, "/?sort=name&page=20")
	cells := regexp.MustCompile(`href="/\?page=20&amp;sort=name" title="fleet-default/(\S+) to fleet-default/(\S+):`).FindAllStringSubmatch(body, -1)
	require.Len(t, cells, 10, "5 clusters each, on a page of 50")
	for _, cell := range cells {
		require.Contains(t, body, ">"+"<span>fleet-default/</span>"+cell[1]+"</a>", "a square leads to the page with its clusters")
	}
}

func TestEntryOfIsSmall(t *testing.T) {
	c := registered("ns", "c", noon)
	c.Status.Agent.Version = strings.Repeat("\u00e4", 1<<20)
	c.ManagedFields, c.Annotations = nil, map[string]string{"a": "b"}
	e := mustEntry(t, c)
	require.LessOrEqual(t, len(e.View.Agent), maxText)
	require.NotContains(t, e.View.Agent, "\ufffd")
	require.Empty(t, e.Annotations)

	heartbeat := registered("ns", "c", noon.Add(1))
	heartbeat.Status.Agent.Version = c.Status.Agent.Version
	heartbeat.Status.Conditions = c.Status.Conditions
	require.Equal(t, e.fingerprint, mustEntry(t, heartbeat).fingerprint, "a heartbeat")
	require.NotEqual(t, e.fingerprint, mustEntry(t, withCondition(c, "Imported", corev1.ConditionTrue, "", "")).fingerprint, "a condition")
}

func mustEntry(t *testing.T, c *fleet.Cluster) *entry {
	t.Helper()
	e, err := entryOf(c)
	require.NoError(t, err)
	return e.(*entry)
}

func TestRegistrationsOf(t *testing.T) {
	clusters := []*entry{
		mustEntry(t, registered("ns", "connected", noon)),
		mustEntry(t, withCondition(registered("ns", "offline", noon), fleet.ConditionConnected, corev1.ConditionFalse, "HeartbeatMissed", "")),
	}
	waiting := registered("ns", "waiting", noon)
	waiting.Status.Agent = fleet.AgentStatus{}
	waiting.Spec.KubeConfigSecret = "kubeconfig"
	clusters = append(clusters, mustEntry(t, withCondition(waiting, fleet.ConditionRegistered, corev1.ConditionUnknown, "WaitingForAgent", "first")))
	elsewhere := registered("ns", "elsewhere", noon)
	elsewhere.Labels[fleet.ClusterManagementLabel] = "x"
	elsewhere.Status.Agent = fleet.AgentStatus{}
	clusters = append(clusters, mustEntry(t, elsewhere))
	request := func(name, cluster, token, state, reason string) view.Request {
		return view.Request{Namespace: "ns", Name: name, Cluster: cluster, Token: token, State: state, Reason: reason}
	}
	d := registrationsOf(clusters, &snapshot{
		At:     noon,
		Tokens: []view.Token{{Namespace: "ns", Name: "idle", State: view.StateReady}, {Namespace: "ns", Name: "used", State: view.StateReady, Uses: 2}, {Namespace: "ns", Name: "broken", State: view.StateFailed, Reason: "Invalid"}},
		Requests: []view.Request{
			request("r1", "connected", "used", view.StateGranted, ""), request("r2", "waiting", "used", view.StateGranted, ""),
			request("r3", "connected", "used", view.StateRefused, "ClientIDInUse"), request("r4", "new", "gone", view.StateWaiting, "WaitingForApproval"),
			request("r5", "newer", "used", view.StateWaiting, "WaitingForApproval"),
		},
	})
	var lines []string
	for _, s := range d.Steps {
		lines = append(lines, fmt.Sprint(s.Name, " ", s.Count, " ", s.Width, " ", s.Agent, s.Manager, s.Local))
	}
	require.Equal(t, []string{
		"Known to the hub 6 1000 5 1 0", "Requested 5 833 4 1 0", "Granted 3 500 2 1 0", "First heartbeat 2 333 2 0 0", "Connected now 1 166 1 0 0",
	}, lines)
	lines = nil
	for _, s := range d.Obstacles {
		lines = append(lines, fmt.Sprint(s.Count, " ", s.What, " ", s.State, " ", s.Reason, " ", s.Example))
	}
	require.Equal(t, []string{
		"2 Request Waiting WaitingForApproval ns/r4", "1 Cluster Offline HeartbeatMissed ns/offline", "1 Cluster WaitingForAgent WaitingForAgent ns/waiting",
		"1 Request Refused ClientIDInUse ns/r3", "1 Token Failed Invalid ns/broken",
	}, lines)
	lines = nil
	for _, row := range d.Tokens {
		lines = append(lines, fmt.Sprint(row.Token.Name, " ", row.Uses, " ", row.Waiting, row.Refused, row.Granted, row.Reported))
	}
	require.Equal(t, []string{"used 2 1 1 2 1", "broken 0 0 0 0 0", "idle 0 0 0 0 0"}, lines)

	many := &snapshot{}
	for i := range 60 {
		many.Tokens = append(many.Tokens, view.Token{Name: strconv.Itoa(i)})
	}
	require.Equal(t, 10, registrationsOf(nil, many).MoreTokens)
}

// A Cluster that is not registered can have requests that were not granted, which no ServiceAccount names.
func TestClusterWithARefusedRequest(t *testing.T) {
	c := withCondition(registered("ns", "c", noon), fleet.ConditionRegistered, corev1.ConditionFalse, "Denied", "")
	refused := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "refused", UID: "u", CreationTimestamp: metav1.NewTime(noon)}}
	refused.Status.ClusterName = "c"
	refused.Status.Conditions = append(refused.Status.Conditions, condition(fleet.ConditionGranted, corev1.ConditionFalse, "Denied", "by a person", noon))
	b := serving(t, []*fleet.Cluster{c}, refused)
	_, body, _ := b.get(t, "/clusters/ns/c")
	require.Contains(t, body, `<small>ClusterRegistration</small> <b>refused</b> <span class="badge bad">Refused</span> <bdi>Denied by a person</bdi>`)
}
