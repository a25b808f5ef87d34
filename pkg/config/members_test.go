package config

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseHub_members(t *testing.T) {
	hub, _, err := ParseHub("members: {allowedCIDRs: [127.0.0.1/8], deniedCIDRs: ['10.96.0.0/12', 'fd00::/8'], allowProxyURL: true}")
	require.NoError(t, err)
	assert.Equal(t, Members{
		AllowedCIDRs:  CIDRs{netip.MustParsePrefix("127.0.0.0/8")},
		DeniedCIDRs:   CIDRs{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/8")},
		AllowProxyURL: true,
	}, hub.Members)

	for _, document := range []string{"members: {deniedCIDRs: [10.0.0.1]}", "members: {allowedCIDRs: [hub.example]}", "members: {deniedCIDRs: 10.0.0.0/8}"} {
		_, _, err := ParseHub(document)
		require.ErrorContains(t, err, "members.allowedCIDRs and members.deniedCIDRs must be lists of CIDRs such as 10.0.0.0/8", document)
	}
}
