package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAddressRules(t *testing.T) {
	denied := AddressRules{Denied: prefixes("10.0.0.0/8", "fd00:1::/32")}
	allowed := AddressRules{Allowed: prefixes("127.0.0.0/8", "10.1.0.0/16", "64:ff9b::/96"), Denied: denied.Denied}
	for _, row := range []struct {
		name    string
		rules   AddressRules
		allowed bool
		address []string
	}{
		{"public, private and shared addresses", AddressRules{}, true, []string{
			"8.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "2001:db8::1", "fd00::1", "64:ff9b::808:808", "2002:808:808::",
		}},
		{"loopback", AddressRules{}, false, []string{"127.0.0.1", "127.255.0.9", "::1", "::1%lo"}},
		{"link-local", AddressRules{}, false, []string{"169.254.169.254", "fe80::1", "fe80::1%eth0", "febf::1"}},
		{"metadata services", AddressRules{}, false, []string{"100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"}},
		{"unspecified", AddressRules{}, false, []string{"0.0.0.0", "0.1.2.3", "::"}},
		{"multicast and broadcast", AddressRules{}, false, []string{"224.0.0.1", "239.255.255.255", "255.255.255.255", "ff02::1"}},
		{"IPv4-mapped", AddressRules{}, false, []string{"::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:7f00:1"}},
		{"IPv4-compatible", AddressRules{}, false, []string{"::127.0.0.1", "::a9fe:a9fe"}},
		{"NAT64", AddressRules{}, false, []string{"64:ff9b::7f00:1", "64:ff9b::169.254.169.254", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:2:3::127.0.0.1", "64:ff9b:1:7f00:0:100::", "64:ff9b:1:808:8:800::"}},
		{"6to4", AddressRules{}, false, []string{"2002:7f00:1::", "2002:a9fe:a9fe::1"}},
		{"denied by configuration", denied, false, []string{"10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00:1::9"}},
		{"others stay allowed", denied, true, []string{"11.1.2.3", "fd00:2::9"}},
		{"allowed by configuration", allowed, true, []string{"127.0.0.1", "::ffff:127.0.0.1", "10.1.2.3", "64:ff9b::10.2.2.3"}},
		{"the rest stays denied", allowed, false, []string{"::1", "10.2.2.3", "64:ff9b:1::10.2.2.3", "169.254.169.254"}},
	} {
		for _, address := range row.address {
			t.Run(row.name+": "+address, func(t *testing.T) {
				err := row.rules.Check(netip.MustParseAddr(address))
				assert.Equal(t, row.allowed, err == nil)
				if err != nil {
					assert.NotContains(t, err.Error(), address)
				}
			})
		}
	}
}

// dial sends a request over a restricted transport.
func dial(t *testing.T, rules AddressRules, address string, proxy Proxy, proxyOfEnvironment bool) error {
	t.Helper()
	server, err := url.Parse(address)
	require.NoError(t, err)
	connections := New(&tls.Config{MinVersion: tls.VersionTLS12}, proxy)
	t.Cleanup(connections.CloseIdleConnections)
	if err := rules.Restrict(connections, server, proxyOfEnvironment); err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	require.NoError(t, err)
	response, err := connections.RoundTrip(request)
	if err == nil {
		_ = response.Body.Close()
	}
	return err
}

func direct(*http.Request) (*url.URL, error) { return nil, nil }

func TestRestrict(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(server.Close)
	here, err := url.Parse(server.URL)
	require.NoError(t, err)
	requireRefused := func(t *testing.T, err error) {
		t.Helper()
		var denied *AddressError
		require.ErrorAs(t, err, &denied)
		assert.Zero(t, requests.Load())
	}
	loopback := AddressRules{Allowed: prefixes("127.0.0.0/8", "::1/128")}
	via := http.ProxyURL(here)

	for _, host := range []string{"127.0.0.1", "[::1]", "localhost", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "169.254.169.254"} {
		t.Run("server "+host+": refused", func(t *testing.T) {
			requireRefused(t, dial(t, AddressRules{}, "http://"+host+":"+here.Port(), direct, false))
		})
	}
	t.Run("proxy of a kubeconfig at loopback: refused", func(t *testing.T) {
		requireRefused(t, dial(t, AddressRules{}, "http://member.example", via, false))
	})
	t.Run("metadata service behind a proxy: refused", func(t *testing.T) {
		requireRefused(t, dial(t, loopback, "http://169.254.169.254/latest", via, false))
		requireRefused(t, dial(t, AddressRules{}, "http://169.254.169.254/latest", via, true))
	})
	t.Run("loopback that the configuration allows: connected", func(t *testing.T) {
		require.NoError(t, dial(t, loopback, server.URL, direct, false))
	})
	t.Run("proxy of the environment at loopback: connected", func(t *testing.T) {
		require.NoError(t, dial(t, AddressRules{}, "http://member.example", via, true))
	})
	assert.Equal(t, int32(2), requests.Load())
}

// A check that resolves the name itself would see the first answer, and the connection would be made to the second.
func TestRestrict_rebinding(t *testing.T) {
	resolver := &net.Resolver{PreferGo: true, Dial: rebindingServer(t)}
	addresses, err := resolver.LookupHost(t.Context(), "member.example")
	require.NoError(t, err)
	require.Equal(t, []string{"192.0.2.1"}, addresses)

	before := net.DefaultResolver
	net.DefaultResolver = resolver
	t.Cleanup(func() { net.DefaultResolver = before })
	var denied *AddressError
	require.ErrorAs(t, dial(t, AddressRules{}, "http://member.example:1", direct, false), &denied)
}

// rebindingServer starts a DNS server that answers 192.0.2.1 once and 127.0.0.1 from then on. It returns a function that connects to it.
func rebindingServer(t *testing.T) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		const header, typeA = 12, 1
		address, packet := []byte{192, 0, 2, 1}, make([]byte, 512)
		for {
			n, client, err := server.ReadFrom(packet)
			if err != nil {
				return
			}
			name := bytes.IndexByte(packet[header:n], 0) + 1
			question := packet[header : header+name+4]
			answer := append([]byte{packet[0], packet[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
			if question[name+1] == typeA {
				answer[7] = 1
				answer = append(answer, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4)
				answer = append(answer, address...)
				address = []byte{127, 0, 0, 1}
			}
			_, _ = server.WriteTo(answer, client)
		}
	}()
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}
}
