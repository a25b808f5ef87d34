package controlplane

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/muster-fleet/muster/internal/pki"
)

// Pool starts control planes on demand and lends each to one borrower at a time. Those of one name have the same checkpoint.
type Pool struct {
	mutex   sync.Mutex
	stopped bool
	started []*ControlPlane
	free    map[string][]*ControlPlane
}

// borrow returns a control plane of that name that nobody has, and what gives it back.
func (p *Pool) borrow(ctx context.Context, name string) (*ControlPlane, func(), error) {
	plane, err := p.take(name)
	if err == nil && plane == nil {
		plane, err = p.start(ctx, name)
	}
	if err != nil {
		return nil, nil, err
	}
	return plane, func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.free[name] = append(p.free[name], plane)
	}, nil
}

func (p *Pool) take(name string) (*ControlPlane, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.stopped {
		return nil, errors.New("the control planes are being stopped")
	}
	free := p.free[name]
	if len(free) == 0 {
		return nil, nil
	}
	plane := free[len(free)-1]
	p.free[name] = free[:len(free)-1]
	return plane, nil
}

func (p *Pool) start(ctx context.Context, name string) (*ControlPlane, error) {
	plane, err := Start(ctx, Options{Name: name, ControllerManager: true})
	if err != nil {
		return nil, err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.stopped {
		return nil, errors.Join(errors.New("the control planes are being stopped"), plane.Stop())
	}
	if p.free == nil {
		p.free = map[string][]*ControlPlane{}
	}
	p.started = append(p.started, plane)
	return plane, nil
}

// Stop stops all control planes at once, lent or not.
func (p *Pool) Stop() error {
	p.mutex.Lock()
	p.stopped = true
	started := p.started
	p.mutex.Unlock()
	errs := make([]error, len(started))
	var wg sync.WaitGroup
	for i, plane := range started {
		wg.Go(func() { errs[i] = plane.Stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// loan is what another process needs of a control plane.
type loan struct {
	Options Options
	Dir     string
	Port    int
	CA      []byte
	Admin   pki.Pair
	Problem string // why there is none
}

// Serve lends control planes to other processes, each of which connects to the listener and says a name. A control plane is
// lent until the connection ends, so also until its borrower crashes. Serve returns when the listener is closed.
func (p *Pool) Serve(ctx context.Context, listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go p.serve(ctx, connection)
	}
}

func (p *Pool) serve(ctx context.Context, connection net.Conn) {
	defer connection.Close()
	lines := bufio.NewScanner(connection)
	if !lines.Scan() {
		return
	}
	plane, giveBack, err := p.borrow(ctx, lines.Text())
	if err != nil {
		_ = json.NewEncoder(connection).Encode(loan{Problem: err.Error()})
		return
	}
	defer giveBack()
	err = json.NewEncoder(connection).Encode(loan{
		Options: plane.options, Dir: plane.dir, Port: plane.port, CA: plane.identities.ca, Admin: plane.identities.admin,
	})
	for err == nil && lines.Scan() { // until the connection ends
	}
}

// borrowFrom is borrow from the Pool of another process, which serves at that Unix socket.
func borrowFrom(ctx context.Context, socket, name string) (*ControlPlane, func(), error) {
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil, err
	}
	giveBack := func() { _ = connection.Close() }
	defer context.AfterFunc(ctx, giveBack)()
	var lent loan
	if _, err = fmt.Fprintln(connection, name); err == nil {
		err = json.NewDecoder(connection).Decode(&lent)
	}
	if err == nil && lent.Problem != "" {
		err = errors.New(lent.Problem)
	}
	if err != nil {
		giveBack()
		return nil, nil, fmt.Errorf("borrowing a control plane at %s: %w", socket, errors.Join(err, ctx.Err()))
	}
	return &ControlPlane{
		options: lent.Options, dir: lent.Dir, port: lent.Port, lent: true, identities: &identities{ca: lent.CA, admin: lent.Admin},
	}, giveBack, nil
}
