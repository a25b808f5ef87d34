package controlplane

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/pki"
)

// Lender starts control planes on demand and lends each to one borrower at a time. Control planes with the same name have the same
// checkpoint. One that a borrower could not reset is stopped when it is returned, and one that nobody has borrowed for maxFree when any is returned.
type Lender struct {
	// BeforeControllerManager are the functions for Options of the control planes with these names.
	BeforeControllerManager map[string]Prepare

	start func(context.Context, Options) (*ControlPlane, error) // nil is Start
	now   func() time.Time                                      // nil is time.Now

	mutex   sync.Mutex
	stopped bool
	started []*ControlPlane
	free    map[string][]freePlane
}

type freePlane struct {
	*ControlPlane
	since time.Time
}

// maxFree is the time after which it costs as much CPU to keep a control plane as to start another: a start needs six seconds, and an unused control
// plane a twenty-fifth of a CPU.
const maxFree = 150 * time.Second

// borrow returns a control plane with this name that no other borrower has, and a function that gives it back.
func (l *Lender) borrow(ctx context.Context, name string) (plane *ControlPlane, giveBack func(), err error) {
	o := sharedOptions(name)
	o.BeforeControllerManager = l.BeforeControllerManager[name]
	return l.borrowWith(ctx, o)
}

// borrowWith is borrow for a control plane with these options. All that have the same name have the same options.
func (l *Lender) borrowWith(ctx context.Context, o Options) (plane *ControlPlane, giveBack func(), err error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if free := l.free[o.Name]; len(free) > 0 {
		plane, l.free[o.Name] = free[len(free)-1].ControlPlane, free[:len(free)-1]
	} else if !l.stopped {
		start := l.start
		if start == nil {
			start = Start
		}
		l.mutex.Unlock()
		plane, err = start(ctx, o)
		l.mutex.Lock()
		if err != nil {
			return nil, nil, err
		}
		l.started = append(l.started, plane)
	}
	if l.stopped {
		err = errors.New("the control planes are being stopped")
		if plane != nil {
			err = errors.Join(err, plane.Stop())
		}
		return nil, nil, err
	}
	return plane, func() {
		unused := []*ControlPlane{plane}
		if !plane.isBroken() {
			unused = l.takeBack(o.Name, plane)
		}
		for _, c := range unused {
			if err := c.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}, nil
}

// takeBack adds a control plane to those that are free, and removes and returns those that have been free for too long.
func (l *Lender) takeBack(name string, plane *ControlPlane) (unused []*ControlPlane) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	now := time.Now()
	if l.now != nil {
		now = l.now()
	}
	if l.free == nil {
		l.free = map[string][]freePlane{}
	}
	l.free[name] = append(l.free[name], freePlane{plane, now})
	for other, free := range l.free {
		l.free[other] = slices.DeleteFunc(free, func(f freePlane) bool {
			if now.Sub(f.since) <= maxFree {
				return false
			}
			unused = append(unused, f.ControlPlane)
			return true
		})
	}
	return unused
}

// sharedOptions are the options of the shared control plane with that name. The one of members is called "member".
func sharedOptions(name string) Options {
	o := Options{Name: name}
	if name == "member" {
		o.Binaries = os.Getenv(EnvMemberBinaries)
	}
	return o
}

// Stop stops all control planes at the same time, whether they are lent or not.
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

// loan has everything that another process needs to use a control plane.
type loan struct {
	Options Options
	Dir     string
	Port    int
	CA      []byte
	Admin   pki.Pair
	Problem string // the error if there is no control plane
}

// Serve lends control planes to other processes. A process connects to the listener and sends a name. The loan ends with the connection, so
// it also ends when the borrower crashes. Serve returns when the listener is closed.
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

// borrowFrom borrows from the Lender of another process, which serves at a Unix socket.
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
