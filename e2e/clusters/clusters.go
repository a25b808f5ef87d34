// Package clusters is what the end-to-end suite needs of whatever provides its clusters. The suite itself knows a
// kubeconfig, an address and the faults below, and nothing of how a cluster came to be; a provider knows nothing of Muster.
package clusters

import "context"

// Provider makes clusters that run real pods.
type Provider interface {
	// Create makes a cluster and returns when its node is Ready and pods can be made. The name is a DNS label.
	Create(ctx context.Context, name string) (Cluster, error)
	// Collect writes what a person needs to find out why a suite failed, as far as the provider alone has it (logs of
	// components and containers), into dir.
	Collect(ctx context.Context, dir string) error
	// Close removes every cluster and whatever else this provider left on the machine. It is safe to call twice, and
	// after a Create that failed.
	Close() error
}

// Cluster is one cluster with one node or more.
type Cluster interface {
	Name() string
	// Kubeconfig is the file with the administrator's kubeconfig. Its server is reachable from this process and from the
	// pods of the other clusters of the same provider.
	Kubeconfig() string
	// Load brings an image archive (docker save format) to the nodes, so that imagePullPolicy IfNotPresent finds it.
	Load(ctx context.Context, archive string) error
	// Kill ends the process of a container at once, by the signal that cannot be caught: nothing is given back, nobody is told. The
	// ID is that of the container runtime.
	Kill(ctx context.Context, container string) error
	// Crash stops everything of this cluster at once, as a power cut does; the data stays.
	Crash(ctx context.Context) error
	// Restart brings a crashed cluster back and returns when its API server is ready and its node runs pods again.
	Restart(ctx context.Context) error
	// Cut drops every packet between this cluster and another one, both ways, until heal is called. Nothing is refused:
	// connections hang, as in a real partition.
	Cut(ctx context.Context, other Cluster) (heal func() error, err error)
	// Move gives the API server an address beside its own: after it, the server answers at the returned URL as well, with
	// a certificate of the returned CA (PEM), which is not the one of the kubeconfig.
	Move(ctx context.Context) (url string, ca []byte, err error)
}
