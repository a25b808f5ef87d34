// Package clusters defines the clusters of the end-to-end suite. The suite depends on a kubeconfig, an address and the faults below, and not
// on how a cluster was created. A provider does not depend on Muster.
package clusters

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Provider creates clusters that run real pods.
type Provider interface {
	// Create creates a cluster and returns when its node is ready and runs pods. The name is a DNS label.
	Create(ctx context.Context, name string) (Cluster, error)
	// Collect writes the logs of components and containers into dir, for finding the cause of a failure.
	Collect(ctx context.Context, dir string) error
	// Close removes all clusters and everything else that the provider has created on the machine. It can be called twice, and after a
	// Create that failed.
	Close() error
}

// Cluster is one cluster with one node or more.
type Cluster interface {
	Name() string
	// Kubeconfig is the file with the administrator's kubeconfig. Its server is reachable from this process and from the
	// pods of the other clusters of the same provider.
	Kubeconfig() string
	// Load imports an image archive (docker save format) into the nodes, for pods with imagePullPolicy IfNotPresent.
	Load(ctx context.Context, archive string) error
	// Kill ends the process of a container with SIGKILL. It takes the ID of the container runtime.
	Kill(ctx context.Context, container string) error
	// Crash stops all processes of the cluster at once, as a power cut does. The data stay.
	Crash(ctx context.Context) error
	// Restart starts a crashed cluster again and returns when its API server is ready and its node runs pods.
	Restart(ctx context.Context) error
	// Cut drops every packet between two clusters, in both directions, until heal is called. Connections are not refused but hang, as in a
	// network partition.
	Cut(ctx context.Context, other Cluster) (heal func() error, err error)
	// Move adds an address to the API server. Afterwards the server also responds at the returned URL, with a certificate of the returned
	// CA (PEM), which is not the CA in the kubeconfig.
	Move(ctx context.Context) (url string, ca []byte, err error)
}

// CheckName returns an error unless the name is a DNS label that no existing cluster has.
func CheckName(name string, existing []string) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Errorf("cluster %q: %s", name, strings.Join(problems, "; "))
	}
	if slices.Contains(existing, name) {
		return fmt.Errorf("cluster %q: a cluster with that name already exists", name)
	}
	return nil
}

// DropCommands returns the commands that insert, check or delete the two iptables rules of a node that drop all packets from and to an address. The
// verb is --insert, --check or --delete. One rule is before and one after address translation, where neither other rules nor connection tracking have accepted the packet
// yet.
func DropCommands(verb, address string) [][]string {
	return [][]string{
		{"iptables", "--wait", "--table", "raw", verb, "PREROUTING", "--source", address, "--jump", "DROP"},
		{"iptables", "--wait", "--table", "mangle", verb, "POSTROUTING", "--destination", address, "--jump", "DROP"},
	}
}
