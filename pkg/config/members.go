package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// Members limit the addresses to which the hub connects for kubeconfigs, which users of workspaces write.
type Members struct {
	// AllowedCIDRs are ranges of addresses to which the hub connects although they are denied by default or by DeniedCIDRs.
	AllowedCIDRs CIDRs `json:"allowedCIDRs,omitempty"`
	// DeniedCIDRs are ranges of addresses to which the hub does not connect, in addition to loopback, link-local, unspecified and
	// multicast addresses and the metadata services of cloud providers.
	DeniedCIDRs CIDRs `json:"deniedCIDRs,omitempty"`
	// AllowProxyURL lets kubeconfigs name a proxy in proxy-url.
	AllowProxyURL bool `json:"allowProxyURL,omitempty"`
	// Unknown is true if the hub has started with an invalid or missing configuration that does not say which addresses are denied: it then
	// connects to no member, except its own cluster.
	Unknown bool `json:"-"`
}

// CIDRs are ranges of addresses, such as 10.0.0.0/8.
type CIDRs []netip.Prefix

// UnmarshalJSON reads a list of strings.
func (c *CIDRs) UnmarshalJSON(data []byte) error {
	var texts []string
	if err := json.Unmarshal(data, &texts); err != nil {
		return fmt.Errorf("members.allowedCIDRs and members.deniedCIDRs must be lists of CIDRs such as 10.0.0.0/8: %w", err)
	}
	*c = nil
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("members.allowedCIDRs and members.deniedCIDRs must be lists of CIDRs such as 10.0.0.0/8: %q is none", text)
		}
		*c = append(*c, prefix.Masked())
	}
	return nil
}
