package hubclient

import (
	"crypto/x509"
	"fmt"
	"net/url"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// checkScheme returns an error for an endpoint with http:// in strict mode, and logs one warning for it in the other mode: there is no certificate
// to verify, and everybody on the network can read the token.
func (d *Dialer) checkScheme(e Endpoint) error {
	parsed, err := url.Parse(e.Server)
	if err != nil || parsed.Scheme != "http" {
		return nil
	}
	if e.Mode == config.TLSModeStrict {
		return fmt.Errorf("agentTLSMode is strict, but the address of the hub is %s, to which the token would be sent unencrypted; "+
			"use an address that begins with https://, or set agentTLSMode to %s", e.Server, config.TLSModeSystemStore)
	}
	d.warnInsecure.Do(func() {
		d.Log.Warnf("The address of the hub is %s: the token is sent unencrypted, and everybody on the network can use it; configure an address that begins with https://",
			e.Server)
	})
	return nil
}

// tlsRoots returns the CAs that may have signed the hub's certificate. The mode applies to this connection only: environment
// variables would apply to the whole process.
//
//	strict        the given CA and no other
//	system-store  the CAs of the operating system, and the given CA if there is one
func tlsRoots(e Endpoint, system func() (*x509.CertPool, error)) (*x509.CertPool, error) {
	var roots *x509.CertPool
	switch e.TLSMode() {
	case config.TLSModeStrict:
		if len(e.CA) == 0 {
			return nil, fmt.Errorf("agentTLSMode is strict, but there is no CA to trust; set %s, or set agentTLSMode to %s",
				e.CASource, config.TLSModeSystemStore)
		}
		roots = x509.NewCertPool()
	case config.TLSModeSystemStore:
		var err error
		if roots, err = system(); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("agentTLSMode %q is unknown; correct it in ConfigMap %s or %s: use %s or %s",
			e.Mode, registration.AgentConfigMap, registration.AgentHubConfigMap, config.TLSModeStrict, config.TLSModeSystemStore)
	}
	if len(e.CA) > 0 && !roots.AppendCertsFromPEM(e.CA) {
		return nil, fmt.Errorf("the CA of the hub is not a PEM certificate; set %s", e.CASource)
	}
	return roots, nil
}

// WorkingMode returns the TLS mode with which a stored credential works. Credentials stored by Fleet's agents do not record their
// mode: they work in the configured mode, unless that is impossible. Without a CA, only the CAs of the operating system can have
// verified the hub; with a CA and an unknown mode, it is strict.
func (e Endpoint) WorkingMode(configured config.TLSMode) config.TLSMode {
	for _, mode := range []config.TLSMode{e.Mode, Endpoint{Mode: configured}.TLSMode()} {
		if mode == config.TLSModeSystemStore || mode == config.TLSModeStrict && len(e.CA) > 0 {
			return mode
		}
	}
	if len(e.CA) == 0 {
		return config.TLSModeSystemStore
	}
	return config.TLSModeStrict
}
