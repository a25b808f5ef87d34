package local

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoTwoClustersShareAnAddress(t *testing.T) {
	for l := range lane(lanes) {
		requireNoneShared(t, l)
	}
	require.NotEqual(t, lane(0).name(), lane(1).name())
	require.False(t, strings.HasPrefix(lane(1).cgroups(), lane(0).cgroups()), "those of the one would be taken for those of the other")
	require.False(t, networkOf(lane(0)).Overlaps(networkOf(lane(1))))
}

func networkOf(l lane) netip.Prefix { return netip.MustParsePrefix(l.machine() + "/24").Masked() }

// requireNoneShared: services and pods of two lanes may share addresses, for they never meet.
func requireNoneShared(t *testing.T, l lane) {
	t.Helper()
	machines := networkOf(l)
	seen := map[string]bool{l.machine(): true}
	var networks []netip.Prefix
	for number := range maxClusters {
		a := addresses{lane: l, number: number}
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
	require.Equal(t, "https://10.99.1.11:6443", addresses{lane: 1, number: 1}.apiServer())
}
