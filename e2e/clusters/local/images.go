package local

import (
	"bytes"
	"context"
	"io"

	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// load gives an archive to containerd as a stream: the node does not see all folders of this machine.
func (c *cluster) load(ctx context.Context, archive io.Reader) error {
	return c.ctr(ctx, archive, "images", "import", "-")
}

// loadPause loads what containerd would otherwise ask a registry for, before the first pod.
func (c *cluster) loadPause(ctx context.Context) error {
	archive, err := pauseArchive(c.node.system.helpers)
	if err != nil {
		return err
	}
	return c.load(ctx, bytes.NewReader(archive))
}

// ctr runs containerd's own client on the node, in the namespace where the kubelet looks for images.
func (c *cluster) ctr(ctx context.Context, input io.Reader, args ...string) error {
	p, err := c.running()
	if err != nil {
		return err
	}
	_, err = command.Run(ctx, input, onNode(p.Pid(), append([]string{"ctr", "--namespace=k8s.io"}, args...)...)...)
	return err
}
