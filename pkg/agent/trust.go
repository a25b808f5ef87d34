package agent

import (
	"crypto/x509"
	"fmt"

	"github.com/muster-fleet/muster/pkg/config"
)

// trustedRoots are the CAs the hub's certificate may come from. The mode is enforced for this agent's own connections,
// not through environment variables that the whole process would share.
//
//	strict        the given CA and no other
//	system-store  the CAs of the operating system, and the given one if there is one
func trustedRoots(mode config.TLSMode, access hubAccess, system func() (*x509.CertPool, error)) (*x509.CertPool, error) {
	roots, err := baseRoots(mode, access, system)
	if err != nil {
		return nil, err
	}
	if len(access.ca) > 0 && !roots.AppendCertsFromPEM(access.ca) {
		return nil, fmt.Errorf("the CA of the hub is not a PEM certificate; set %s", access.caSource)
	}
	return roots, nil
}

func baseRoots(mode config.TLSMode, access hubAccess, system func() (*x509.CertPool, error)) (*x509.CertPool, error) {
	switch mode {
	case config.TLSModeStrict:
		if len(access.ca) == 0 {
			return nil, fmt.Errorf("agentTLSMode is strict, but there is no CA to trust; set %s, or set agentTLSMode to %s",
				access.caSource, config.TLSModeSystemStore)
		}
		return x509.NewCertPool(), nil
	case config.TLSModeSystemStore, "":
		return system()
	}
	return nil, fmt.Errorf("agentTLSMode %q of ConfigMap fleet-agent is unknown; use %s or %s",
		mode, config.TLSModeStrict, config.TLSModeSystemStore)
}
