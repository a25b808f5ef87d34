package agent

import (
	"fmt"
	"net/url"

	"github.com/muster-fleet/muster/pkg/config"
)

// isPlain says that nothing on the way to the hub is encrypted, and that nobody proves to be the hub.
func (a hubAccess) isPlain() bool {
	parsed, err := url.Parse(a.server)
	return err == nil && parsed.Scheme == "http"
}

// checkPlain: with http:// there is no certificate that a TLS mode could ask for, and whoever listens on the way has the token.
// Whoever says strict has said that this must not happen; anybody else is told once.
func (l *life) checkPlain(access hubAccess, mode config.TLSMode) error {
	if !access.isPlain() {
		return nil
	}
	if mode == config.TLSModeStrict {
		return fmt.Errorf("agentTLSMode is strict, but the address of the hub is %s, where the token would go out in clear; "+
			"use an address that begins with https://, or set agentTLSMode to %s", access.server, config.TLSModeSystemStore)
	}
	l.plain.Do(func() {
		l.log.Warnf("The address of the hub is %s: the token goes out in clear, and anybody on the way can use it; give the agent an address that begins with https://",
			access.server)
	})
	return nil
}
