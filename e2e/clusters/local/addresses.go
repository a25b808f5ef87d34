package local

import "fmt"

// The network of a provider: a private one that only this machine knows, with one address per cluster.
const (
	networkBits = 24
	firstNode   = 10
	maxClusters = 50
)

// Ports of a node that are reached from outside of it.
const (
	portAPIServer = 6443
	portFront     = 7443
)

// addresses are those of the cluster with the given number, counted from 0. Services and pods of two clusters never share
// an address, so that a packet in a log belongs to one of them.
type addresses struct {
	lane   lane
	number int
}

func (a addresses) node() string      { return a.lane.address(firstNode + a.number) }
func (a addresses) services() string  { return fmt.Sprintf("10.%d.0.0/24", 100+a.number) }
func (a addresses) serviceIP() string { return fmt.Sprintf("10.%d.0.1", 100+a.number) }
func (a addresses) pods() string      { return fmt.Sprintf("10.%d.0.0/24", 200+a.number) }
func (a addresses) apiServer() string { return fmt.Sprintf("https://%s:%d", a.node(), portAPIServer) }
func (a addresses) front() string     { return fmt.Sprintf("https://%s:%d", a.node(), portFront) }

// mac is the same at each start: others keep the one they know for most of a minute, and meanwhile would not reach a node
// that came back with another.
func (a addresses) mac() string { return fmt.Sprintf("02:6d:75:73:74:%02x", firstNode+a.number) }

// port is what the node's cable is called at the switch.
func (a addresses) port() string { return fmt.Sprintf("node%d", a.number) }
