package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Snapshot writes a backup of etcd to a file, while the control plane runs.
func (c *ControlPlane) Snapshot(ctx context.Context, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("control plane %q: snapshot: %w", c.options.Name, err)
		}
	}()
	etcd := newEtcdClient(c.dir)
	defer etcd.http.CloseIdleConnections()
	reply, err := etcd.post(ctx, "maintenance/snapshot", struct{}{})
	if err != nil {
		return err
	}
	defer reply.Close()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for parts := json.NewDecoder(reply); ; {
		var part struct {
			Result struct {
				Blob []byte `json:"blob"`
			} `json:"result"`
			Error json.RawMessage `json:"error"`
		}
		switch err := parts.Decode(&part); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case part.Error != nil:
			return fmt.Errorf("etcd answers: %s", part.Error)
		}
		if _, err := file.Write(part.Result.Blob); err != nil {
			return err
		}
	}
}

// RestoreFlags are the flags of `etcdutl snapshot restore` that end every watch, because the versions of all objects jump.
var RestoreFlags = []string{"--bump-revision=1000000000", "--mark-compacted"}

// Restore stops the control plane, replaces the data of etcd with a Snapshot, as operators do it with etcdutl, and starts the control plane
// again. The flags are added to those of etcdutl.
func (c *ControlPlane) Restore(ctx context.Context, path string, flags ...string) (err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("control plane %q: restore: %w", c.options.Name, err)
		}
	}()
	if c.lent || c.stopped {
		return errors.New("only a running control plane that belongs to this process can be restored")
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c.controllerManager.Stop(graceControllerManager)
	c.apiServer.Stop(graceAPIServer)
	c.etcd.Stop(graceEtcd)
	if err := os.RemoveAll(filepath.Join(c.dir, etcdDataDir)); err != nil {
		return err
	}
	args := append([]string{
		"snapshot", "restore", path, "--data-dir=" + etcdDataDir,
		"--name=muster", "--initial-cluster=muster=" + etcdPeerURL, "--initial-advertise-peer-urls=" + etcdPeerURL,
	}, flags...)
	restore := exec.CommandContext(ctx, filepath.Join(c.options.Binaries, "etcdutl"), args...)
	restore.Dir = c.dir
	if output, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	if c.etcd, err = c.run("etcd", etcdArgs()...); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	return c.startControllerManager(ctx)
}
