package local

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoTwoClustersShareAnAddress(t *testing.T) {
	machines := netip.MustParsePrefix(machineAddress + "/24").Masked()
	seen := map[string]bool{machineAddress: true}
	var networks []netip.Prefix
	for number := range maxClusters {
		a := addresses{number: number}
		for _, value := range []string{a.node(), a.mac(), a.port()} {
			require.False(t, seen[value], value)
			seen[value] = true
		}
		require.True(t, machines.Contains(netip.MustParseAddr(a.node())))
		services, pods := netip.MustParsePrefix(a.services()), netip.MustParsePrefix(a.pods())
		require.True(t, services.Contains(netip.MustParseAddr(a.serviceIP())))
		networks = append(networks, services, pods)
	}
	networks = append(networks, machines)
	for i, one := range networks {
		for _, other := range networks[i+1:] {
			require.False(t, one.Overlaps(other), "%s and %s", one, other)
		}
	}
}

func TestWhereAClusterIsReached(t *testing.T) {
	a := addresses{number: 1}
	require.Equal(t, "https://10.99.0.11:6443", a.apiServer())
	require.Equal(t, "https://10.99.0.11:7443", a.front())
}
