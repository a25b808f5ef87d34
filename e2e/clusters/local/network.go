package local

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/muster-fleet/muster/e2e/clusters/command"
	"github.com/muster-fleet/muster/e2e/clusters/local/machine"
	"github.com/muster-fleet/muster/internal/process"
)

// namespaces are those of every machine of ours: with its first process it ends as a whole.
const namespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET

// bridge is what the switch's bridge is called.
const bridge = "bridge"

// network is the switch that nodes are plugged into. It is a machine of its own: whatever rules this machine has for packets
// that pass through it, those between clusters do not, and with its first process all of it ends.
type network struct {
	lane    lane
	process *process.Process
}

func startNetwork(ctx context.Context, l lane, dir, initProgram string) (*network, error) {
	file := filepath.Join(dir, "switch.json")
	if err := (machine.Spec{Hostname: "switch"}).Write(file); err != nil {
		return nil, err
	}
	p, err := process.Start(process.Command{
		Path: initProgram, Args: []string{file}, Dir: dir, Log: filepath.Join(dir, "switch.log"), Namespaces: namespaces,
	})
	if err != nil {
		return nil, err
	}
	n := &network{lane: l, process: p}
	if err := runAll(ctx, n.commands()); err != nil {
		n.stop()
		return nil, fmt.Errorf("network of the clusters: %w", err)
	}
	return n, nil
}

func (n *network) commands() [][]string {
	pid, cable := n.process.Pid(), n.lane.cable()
	return [][]string{
		inNetwork(pid, "ip", "link", "add", bridge, "type", "bridge"),
		inNetwork(pid, "ip", "link", "set", bridge, "up"),
		{"ip", "link", "add", cable, "type", "veth", "peer", "name", "uplink", "netns", strconv.Itoa(pid)},
		inNetwork(pid, "ip", "link", "set", "uplink", "master", bridge, "up"),
		{"ip", "addr", "add", n.lane.machine() + "/" + strconv.Itoa(networkBits), "dev", cable},
		{"ip", "link", "set", cable, "up"},
	}
}

func runAll(ctx context.Context, commands [][]string) error {
	for _, args := range commands {
		if _, err := command.Run(ctx, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// plug gives a node its network card.
func (n *network) plug(ctx context.Context, a addresses, node int) error {
	return runAll(ctx, [][]string{
		inNetwork(n.process.Pid(), "ip", "link", "add", a.port(), "type", "veth",
			"peer", "name", linkName, "address", a.mac(), "netns", strconv.Itoa(node)),
		inNetwork(n.process.Pid(), "ip", "link", "set", a.port(), "master", bridge, "up"),
	})
}

// unplug takes the cable away: what the node still sends reaches nobody.
func (n *network) unplug(ctx context.Context, a addresses) error {
	_, err := command.Run(ctx, nil, inNetwork(n.process.Pid(), "ip", "link", "delete", a.port())...)
	return err
}

// stop ends the network. The kernel takes interfaces away some time after their namespace is gone; the one of this machine is
// taken away here, so that it is gone on return.
func (n *network) stop() {
	n.lane.removeCable(context.Background())
	n.process.Kill()
}
