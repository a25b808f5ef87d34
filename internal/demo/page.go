package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"regexp"
	"strings"

	"github.com/muster-fleet/muster/internal/ui"
	"github.com/muster-fleet/muster/internal/view"
)

// page is the page of muster ui for the hub. It is served until the demo ends.
type page struct {
	address string // contains the secret
	browser http.Client
	end     context.CancelFunc
	ended   chan error
}

func openPage(ctx context.Context, d *demo) (string, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return "", err
	}
	serving, end := context.WithCancel(context.WithoutCancel(ctx)) // the page is served for longer than this step
	p := &page{browser: http.Client{Jar: jar}, end: end, ended: make(chan error, 1)}
	d.page = p
	ready := make(chan string, 1)
	go func() {
		p.ended <- ui.Serve(serving, ui.Options{
			Config: d.hub.plane.RESTConfig(), Address: "127.0.0.1:0", OnReady: func(address string) { ready <- address },
		})
	}()
	select {
	case p.address = <-ready:
	case err := <-p.ended:
		p.ended <- nil
		return "", errors.Join(err, ctx.Err())
	case <-ctx.Done():
		return "", ctx.Err()
	}
	shown, err := p.counts(ctx)
	return p.address + " shows " + shown, err
}

// close ends the page.
func (p *page) close() error {
	if p == nil {
		return nil
	}
	p.end()
	return <-p.ended
}

// The parts of the page that counts reads: the number of clusters, and the number of clusters in each state.
var (
	total = regexp.MustCompile(`<h1>(\d+ clusters?)</h1>`)
	count = regexp.MustCompile(`<b>(\d+)</b> (\w+)</a>`)
)

// counts returns the number of clusters in each state that the page shows, such as "2 clusters: 1 Registered, 1 Importing".
func (p *page) counts(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.address, nil)
	if err != nil {
		return "", err
	}
	response, err := p.browser.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	all := total.FindSubmatch(body)
	if response.StatusCode != http.StatusOK || all == nil {
		return "", fmt.Errorf("the page of muster ui has no number of clusters: %s", response.Status)
	}
	var states []string
	for _, found := range count.FindAllSubmatch(body, -1) {
		states = append(states, fmt.Sprintf("%s %s", found[1], found[2]))
	}
	text := string(all[1])
	if len(states) > 0 {
		text += ": " + strings.Join(states, ", ")
	}
	return text, nil
}

// awaitRegistered waits until the page shows a number of clusters, all of them registered.
func (p *page) awaitRegistered(ctx context.Context, clusters int) error {
	return poll(ctx, func(ctx context.Context) error {
		shown, err := p.counts(ctx)
		if err == nil && !strings.HasSuffix(shown, fmt.Sprintf(": %d %s", clusters, view.StateRegistered)) {
			err = fmt.Errorf("the page of muster ui shows %s, not %d %s", shown, clusters, view.StateRegistered)
		}
		return err
	})
}
