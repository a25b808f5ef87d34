package demo

import (
	"context"
	"errors"

	"github.com/muster-fleet/muster/internal/ui"
)

// page is the page of muster ui for the hub. It is served until the demo ends.
type page struct {
	address string // contains the secret
	end     context.CancelFunc
	ended   chan error
}

func openPage(ctx context.Context, d *demo) (string, error) {
	serving, end := context.WithCancel(context.WithoutCancel(ctx)) // the page is served for longer than this step
	p := &page{end: end, ended: make(chan error, 1)}
	d.page = p
	ready := make(chan string, 1)
	go func() {
		p.ended <- ui.Serve(serving, ui.Options{
			Config: d.hub.plane.RESTConfig(), Address: "127.0.0.1:0", OnReady: func(address string) { ready <- address },
		})
	}()
	select {
	case p.address = <-ready:
		return p.address, nil
	case err := <-p.ended:
		p.ended <- nil
		return "", errors.Join(err, ctx.Err())
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// close ends the page.
func (p *page) close() error {
	if p == nil {
		return nil
	}
	p.end()
	return <-p.ended
}
