package transport

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"
)

// AddressRules decide to which IP addresses a connection may be made. The zero AddressRules deny only deniedByDefault.
type AddressRules struct {
	// Allowed are allowed although they are denied by default or by Denied.
	Allowed []netip.Prefix
	// Denied are denied in addition to deniedByDefault.
	Denied []netip.Prefix
}

// deniedByDefault are addresses of this machine and its links, and services of cloud providers that give credentials to every client. No cluster
// has its API server there.
var deniedByDefault = prefixes(
	"0.0.0.0/8", "::/128", // unspecified: Linux connects to this machine
	"127.0.0.0/8", "::1/128",
	"169.254.0.0/16", "fe80::/10", // link-local, with the metadata services of most cloud providers
	"224.0.0.0/4", "ff00::/8", "255.255.255.255/32",
	"100.100.100.200/32", // metadata service of Alibaba Cloud
	"168.63.129.16/32",   // wire server of Azure
	"192.0.0.192/32",     // metadata service of Oracle Cloud
	"fd00:ec2::254/128",  // metadata service of AWS
	"fd20:ce::254/128",   // metadata service of Google Cloud
	"64:ff9b:1::/48",     // NAT64 of local use: where the IPv4 address begins depends on the gateway
)

// embeddings are the prefixes of IPv6 addresses that contain an IPv4 address, and the byte at which it begins. A gateway may
// translate a connection to one of them into a connection to the IPv4 address. An IPv4-mapped address is the IPv4 address.
var embeddings = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("::/96"), 12},        // IPv4-compatible
	{netip.MustParsePrefix("64:ff9b::/96"), 12}, // NAT64
	{netip.MustParsePrefix("2002::/16"), 2},     // 6to4
}

func prefixes(all ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, 0, len(all))
	for _, prefix := range all {
		parsed = append(parsed, netip.MustParsePrefix(prefix))
	}
	return parsed
}

// AddressError is the error of a connection that AddressRules deny. It does not contain the address: who makes the hub resolve a name
// must not learn the address from the error.
type AddressError struct{}

func (*AddressError) Error() string { return "connections to this address are not allowed" }

// Check returns an AddressError unless the address is allowed, and so is the IPv4 address that it contains.
func (r AddressRules) Check(address netip.Addr) error {
	address = address.Unmap().WithZone("")
	if r.denies(address) {
		return &AddressError{}
	}
	for _, embedding := range embeddings {
		if !contains(r.Allowed, address) && embedding.prefix.Contains(address) {
			bytes := address.As16()
			if r.denies(netip.AddrFrom4([4]byte(bytes[embedding.at : embedding.at+4]))) {
				return &AddressError{}
			}
		}
	}
	return nil
}

func (r AddressRules) denies(address netip.Addr) bool {
	return !contains(r.Allowed, address) && (contains(deniedByDefault, address) || contains(r.Denied, address))
}

func contains(all []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(all, func(prefix netip.Prefix) bool { return prefix.Contains(address) })
}

// Restrict applies the rules to a transport for requests to one server. The address is checked when its name has been resolved, just
// before the connection is made, so another answer of the resolver cannot replace it. A proxy that the kubeconfig or the like names
// is subject to the rules. A proxy of the environment is not, because the operator has configured it; it resolves the name of the
// server itself, so only a server that is an address is checked then.
func (r AddressRules) Restrict(t *http.Transport, server *url.URL, proxyOfEnvironment bool) error {
	if proxy, err := t.Proxy(&http.Request{URL: server}); err == nil && proxy != nil {
		if address, err := netip.ParseAddr(server.Hostname()); err == nil {
			if err := r.Check(address); err != nil {
				return err
			}
		}
		if proxyOfEnvironment {
			return nil
		}
	}
	const timeout = 30 * time.Second // as http.DefaultTransport
	dialer := &net.Dialer{Timeout: timeout, KeepAlive: timeout, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		resolved, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return r.Check(resolved.Addr())
	}}
	t.DialContext = dialer.DialContext
	return nil
}
