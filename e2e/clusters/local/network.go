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

// The network of a provider exists on this machine only and has one address per cluster.
const (
	networkBits = 24
	firstNode   = 10
	maxClusters = 50
)

// Ports of a node that are reachable from outside. At the second address, a proxy to the API server has a certificate of another authority.
const (
	portAPIServer     = 6443
	portSecondAddress = 7443
)

// addresses are the addresses of the cluster with a number, counted from 0. Services and pods of two clusters have different addresses, so
// that a packet in a log belongs to one cluster.
type addresses struct {
	lane   lane // which set of networks, cgroups and addresses of this machine the process uses
	number int
}

func (a addresses) node() string      { return a.lane.address(firstNode + a.number) }
func (a addresses) services() string  { return fmt.Sprintf("10.%d.0.0/24", 100+a.number) }
func (a addresses) serviceIP() string { return fmt.Sprintf("10.%d.0.1", 100+a.number) }
func (a addresses) pods() string      { return fmt.Sprintf("10.%d.0.0/24", 200+a.number) }
func (a addresses) apiServer() string { return fmt.Sprintf("https://%s:%d", a.node(), portAPIServer) }

// secondAddress is the URL of the API server behind the proxy.
func (a addresses) secondAddress() string {
	return fmt.Sprintf("https://%s:%d", a.node(), portSecondAddress)
}

// mac is the same at each start: peers cache it for most of a minute and would not reach a restarted node with another address.
func (a addresses) mac() string { return fmt.Sprintf("02:6d:75:73:74:%02x", firstNode+a.number) }

// port is the name of the node's link at the switch.
func (a addresses) port() string { return fmt.Sprintf("node%d", a.number) }

// namespaces are the flags of the Linux namespaces that each node and the switch have. When the first process ends, the kernel ends all others.
const namespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET

// bridge is the name of the switch's bridge.
const bridge = "bridge"

// network is the switch that connects the nodes. It has namespaces of its own, so that the packet filters of this machine do not apply to
// packets between clusters, and so that it ends with its first process.
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
	pid, link := n.process.Pid(), n.lane.linkName()
	return [][]string{
		inNetwork(pid, "ip", "link", "add", bridge, "type", "bridge"),
		inNetwork(pid, "ip", "link", "set", bridge, "up"),
		{"ip", "link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", strconv.Itoa(pid)},
		inNetwork(pid, "ip", "link", "set", "uplink", "master", bridge, "up"),
		{"ip", "addr", "add", n.lane.machine() + "/" + strconv.Itoa(networkBits), "dev", link},
		{"ip", "link", "set", link, "up"},
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

// plug connects a node's network interface.
func (n *network) plug(ctx context.Context, a addresses, node int) error {
	return runAll(ctx, [][]string{
		inNetwork(n.process.Pid(), "ip", "link", "add", a.port(), "type", "veth",
			"peer", "name", linkName, "address", a.mac(), "netns", strconv.Itoa(node)),
		inNetwork(n.process.Pid(), "ip", "link", "set", a.port(), "master", bridge, "up"),
	})
}

// unplug deletes the node's link, so that nothing it still sends is delivered.
func (n *network) unplug(ctx context.Context, a addresses) error {
	_, err := command.Run(ctx, nil, inNetwork(n.process.Pid(), "ip", "link", "delete", a.port())...)
	return err
}

// stop ends the network. The kernel deletes interfaces some time after their namespace has ended, so the link of this machine is deleted
// first.
func (n *network) stop() {
	n.lane.removeCable(context.Background())
	n.process.Kill()
}

// inNetwork is a command line that runs in the network namespace of a process, with the files of this machine. "ip netns exec" would hide
// the cgroups.
func inNetwork(pid int, args ...string) []string {
	return append([]string{"nsenter", "--target=" + strconv.Itoa(pid), "--net", "--"}, args...)
}

// onNode is a command line that runs on the node whose first process is given, with its files.
func onNode(pid int, args ...string) []string {
	return append([]string{"nsenter", "--target=" + strconv.Itoa(pid), "--net", "--mount", "--uts", "--ipc", "--"}, args...)
}
