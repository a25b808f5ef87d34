// Package ui serves a page about the clusters of a hub to one user of this machine. It uses the kubeconfig of that user, writes nothing, and never
// reads a Secret.
package ui

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/admin"
)

// Options are the options of Serve.
type Options struct {
	// Config is the configuration of a client of the hub, with the credential of the user.
	Config *rest.Config
	// Namespace limits the page to the Clusters of one namespace; empty means all namespaces.
	Namespace string
	// Address is the address to listen at: 127.0.0.1 or [::1], and a port; port 0 means a free port.
	Address string
	// OnReady is called with the address to open, which contains the secret, after the Clusters have been read.
	OnReady func(url string)
	// Clock is the clock; nil means the real one.
	Clock clock.WithTicker
}

// Serve serves the page until ctx ends. It fails at once if the address is not a loopback address, and if the hub refuses to list its Clusters.
func Serve(ctx context.Context, o Options) error {
	address, err := netip.ParseAddrPort(o.Address)
	if err != nil || address.Addr().String() != "127.0.0.1" && address.Addr().String() != "::1" {
		return fmt.Errorf("the address %q must be 127.0.0.1:PORT or [::1]:PORT: everybody who reaches the page sees what you may see", o.Address)
	}
	hub, err := admin.Connect(o.Config)
	if err != nil {
		return err
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	fleet, err := watch(ctx, hub.Fleet, o.Namespace)
	if err != nil {
		return hub.Explain(err, o.Namespace)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Address)
	if err != nil {
		return err
	}
	p := newPages(hub, fleet, o, listener.Addr().(*net.TCPAddr).Port)
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	o.OnReady(fmt.Sprintf("http://%s/open?secret=%s", listener.Addr(), p.secret))
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// pages answers the requests of the browser.
type pages struct {
	hub       *admin.Hub
	fleet     *watchedFleet
	requests  snapshots
	namespace string
	server    string // address of the hub's API server
	clock     clock.WithTicker

	port    int
	secret  string
	mux     *http.ServeMux
	content *template.Template
}

//go:embed static
var static embed.FS

func newPages(hub *admin.Hub, fleet *watchedFleet, o Options, port int) *pages {
	p := &pages{
		hub: hub, fleet: fleet, namespace: o.Namespace, server: o.Config.Host, clock: o.Clock,
		port: port, secret: rand.Text(), mux: http.NewServeMux(),
	}
	p.content = template.Must(template.New("").Funcs(p.functions()).ParseFS(static, "static/*.html"))
	p.mux.HandleFunc("GET /{$}", p.page("overview", []string{"summary", "map", "table"}, p.overview))
	p.mux.HandleFunc("GET /registrations", p.page("registrations", []string{"funnel"}, p.registrations))
	p.mux.HandleFunc("GET /clusters/{namespace}/{name}", p.page("cluster", []string{"details"}, p.cluster))
	p.mux.Handle("GET /static/", http.FileServerFS(static))
	return p
}

// ServeHTTP serves only requests from pages of this server, and addresses that the user has typed. Pages of other servers in the browser, and other
// users of the machine, can also send requests to a loopback port. If the name of another server resolves to 127.0.0.1 (DNS rebinding), the Host
// header contains that name. If a page of another server sends a request, Origin and Sec-Fetch-Site name it. Other users do not know the secret.
func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")

	cookie := "muster-ui-" + strconv.Itoa(p.port) // cookies do not distinguish ports
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	switch {
	case r.Host != p.host("127.0.0.1") && r.Host != p.host("localhost") && r.Host != p.host("::1"):
		http.Error(w, "The host name in the address is not that of this page. Open the address that muster ui has printed.", http.StatusForbidden)
	case origin != "" && origin != "http://"+r.Host, site != "" && site != "none" && site != "same-origin":
		http.Error(w, "Another page has sent this request. Paste the address that muster ui has printed into the browser.", http.StatusForbidden)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		http.Error(w, "This page changes nothing.", http.StatusMethodNotAllowed)
	case r.URL.Path == "/open" && p.isSecret(r.URL.Query().Get("secret")):
		http.SetCookie(w, &http.Cookie{Name: cookie, Value: p.secret, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}) //nolint:gosec // loopback has no TLS
		http.Redirect(w, r, "/", http.StatusSeeOther)
	default:
		if c, err := r.Cookie(cookie); err != nil || !p.isSecret(c.Value) {
			http.Error(w, "Open the address that muster ui has printed: it contains a secret that changes at each start.", http.StatusUnauthorized)
			return
		}
		p.mux.ServeHTTP(w, r)
	}
}

func (p *pages) host(name string) string { return net.JoinHostPort(name, strconv.Itoa(p.port)) }

func (p *pages) isSecret(text string) bool {
	return subtle.ConstantTimeCompare([]byte(text), []byte(p.secret)) == 1
}

// loader returns the current data of a page.
type loader func(context.Context) (any, error)

// frame is the argument of the template of a whole page.
type frame struct {
	Title, Server, Scope, Problem string
	Data                          any
}

// page returns a handler that sends the whole page, or a stream of its parts if the browser accepts an event stream.
func (p *pages) page(name string, parts []string, open func(*http.Request) loader) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		load := open(r)
		if r.Header.Get("Accept") == "text/event-stream" {
			p.stream(w, r, parts, load)
			return
		}
		data, err := load(r.Context())
		switch {
		case errors.Is(err, errNotFound):
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		case err != nil:
			http.Error(w, "The hub cannot be read: "+err.Error(), http.StatusBadGateway)
			return
		}
		var out bytes.Buffer
		if err := p.content.ExecuteTemplate(&out, name, frame{Server: p.server, Scope: p.namespace, Problem: p.fleet.problem(), Data: data}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = out.WriteTo(w) // fails only if the browser has gone
	}
}

const (
	// pause is the minimum time between two messages of a stream.
	pause = time.Second
	// refresh is the maximum time between two messages: the page shows ages, such as the time since the last heartbeat.
	refresh = 10 * time.Second
)

// stream sends the parts of the page that have changed whenever a Cluster changes. Each message is one line of JSON.
func (p *pages) stream(w http.ResponseWriter, r *http.Request, parts []string, load loader) {
	w.Header().Set("Content-Type", "text/event-stream")
	out, sent := http.NewResponseController(w), map[string]string{}
	for {
		changed := p.fleet.nextChange()
		problem := p.fleet.problem()
		data, err := load(r.Context())
		if err != nil {
			problem = err.Error()
		}
		message := map[string]string{}
		add := func(part string, data any) error {
			var text strings.Builder
			if err := p.content.ExecuteTemplate(&text, part, data); err != nil {
				return err
			}
			if before, known := sent[part]; !known || before != text.String() {
				sent[part], message[part] = text.String(), text.String()
			}
			return nil
		}
		failed := add("problem", problem)
		for _, part := range parts {
			if err == nil {
				failed = errors.Join(failed, add(part, data))
			}
		}
		line, err := json.Marshal(message)
		if failed = errors.Join(failed, err); failed != nil {
			return // the browser repeats the request
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", line); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-p.clock.After(refresh):
		case <-r.Context().Done():
			return
		}
		select {
		case <-p.clock.After(pause):
		case <-r.Context().Done():
			return
		}
	}
}
