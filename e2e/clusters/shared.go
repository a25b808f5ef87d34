package clusters

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

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
