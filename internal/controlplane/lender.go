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

// Lender starts control planes on demand and lends each to one borrower at a time. Those of one name have the same checkpoint.
type Lender struct {
	mutex   sync.Mutex
	stopped bool
	started []*ControlPlane
	free    map[string][]*ControlPlane
}

// borrow returns a control plane of that name that nobody has, and what gives it back.
func (l *Lender) borrow(ctx context.Context, name string) (*ControlPlane, func(), error) {
	plane, err := l.take(name)
	if err == nil && plane == nil {
		plane, err = l.start(ctx, name)
	}
	if err != nil {
		return nil, nil, err
	}
	return plane, func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		l.free[name] = append(l.free[name], plane)
	}, nil
}

func (l *Lender) take(name string) (*ControlPlane, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.stopped {
		return nil, errors.New("the control planes are being stopped")
	}
	free := l.free[name]
	if len(free) == 0 {
		return nil, nil
	}
	plane := free[len(free)-1]
	l.free[name] = free[:len(free)-1]
	return plane, nil
}

func (l *Lender) start(ctx context.Context, name string) (*ControlPlane, error) {
	plane, err := Start(ctx, Options{Name: name, ControllerManager: true})
	if err != nil {
		return nil, err
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.stopped {
		return nil, errors.Join(errors.New("the control planes are being stopped"), plane.Stop())
	}
	if l.free == nil {
		l.free = map[string][]*ControlPlane{}
	}
	l.started = append(l.started, plane)
	return plane, nil
}

// Stop stops all control planes at once, lent or not.
func (l *Lender) Stop() error {
	l.mutex.Lock()
	l.stopped = true
	started := l.started
	l.mutex.Unlock()
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
func (l *Lender) Serve(ctx context.Context, listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go l.serve(ctx, connection)
	}
}

func (l *Lender) serve(ctx context.Context, connection net.Conn) {
	defer connection.Close()
	lines := bufio.NewScanner(connection)
	if !lines.Scan() {
		return
	}
	plane, giveBack, err := l.borrow(ctx, lines.Text())
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

// borrowFrom is borrow from the Lender of another process, which serves at that Unix socket.
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
