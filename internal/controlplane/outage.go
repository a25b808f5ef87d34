package controlplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-fleet/muster/internal/process"
)

// StopAPIServer ends the API server only: connections to it are refused until StartAPIServer. Etcd and the controller
// manager keep running.
func (c *ControlPlane) StopAPIServer() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.apiServer.Alive() {
		return fmt.Errorf("control plane %q: the API server is not running", c.options.Name)
	}
	c.apiServer.Stop(graceAPIServer)
	return nil
}

// StartAPIServer ends the outage begun by StopAPIServer: same port, same certificates, same data. It returns when the
// server is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if err := c.mayStartAPIServer(); err != nil {
		return fmt.Errorf("control plane %q: %w", c.options.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.startAPIServer(ctx); err != nil {
		// Left half started it could neither be stopped nor started again.
		c.apiServer.Stop(graceAPIServer)
		return fmt.Errorf("control plane %q: %w", c.options.Name, err)
	}
	return nil
}

func (c *ControlPlane) mayStartAPIServer() error {
	switch {
	case c.lent:
		return errors.New("it belongs to another process: a test that stops an API server has to start its own control plane")
	case c.stopped:
		return errors.New("it was stopped for good: start a new one")
	case c.apiServer.Alive():
		return errors.New("the API server is running already")
	default:
		return nil
	}
}

// APIServerPid is the process ID of the API server, which must be running.
func (c *ControlPlane) APIServerPid() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.apiServer.Pid()
}

// PauseAPIServer freezes the API server: it accepts connections and never answers, until ResumeAPIServer. Not every
// system can do that; the error says so.
func (c *ControlPlane) PauseAPIServer() error {
	return c.onAPIServer("pause", (*process.Process).Pause)
}

// ResumeAPIServer lets a paused API server go on. It answers what was asked in the meantime, unless the client gave up.
func (c *ControlPlane) ResumeAPIServer() error {
	return c.onAPIServer("resume", (*process.Process).Resume)
}

func (c *ControlPlane) onAPIServer(verb string, do func(*process.Process) error) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if err := do(c.apiServer); err != nil {
		return fmt.Errorf("control plane %q: %s the API server: %w", c.options.Name, verb, err)
	}
	return nil
}
