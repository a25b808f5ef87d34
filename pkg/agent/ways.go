package agent

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// way is where the hub is and how it proves itself there: an access without the identity.
type way struct {
	server string
	ca     []byte // PEM; empty means none was given
	mode   config.TLSMode
	source string // what says so, for people
	err    error  // why it cannot be used; nothing is sent then
}

func (w way) same(other way) bool {
	return strings.TrimRight(w.server, "/") == strings.TrimRight(other.server, "/") &&
		bytes.Equal(w.ca, other.ca) && tlsMode(w.mode) == tlsMode(other.mode)
}

// String has no CA but whether there is one: it is for logs and for the status on the hub.
func (w way) String() string {
	const shown = 12 // as much of the digest as tells two CAs apart
	ca := "without a CA"
	if len(w.ca) > 0 {
		ca = "with CA " + registration.CAHash(w.ca)[:shown]
	}
	return fmt.Sprintf("%s (%s, %s) of %s", cmp.Or(w.server, "no address"), ca, tlsMode(w.mode), w.source)
}

// tlsMode gives the default its name.
func tlsMode(mode config.TLSMode) config.TLSMode { return cmp.Or(mode, config.TLSModeSystemStore) }

// hubLocation is what ConfigMap registration.AgentHubConfigMap says; nil stands for no such ConfigMap.
type hubLocation struct {
	way
	digest string
}

// parseHubLocation keeps what is wrong with the ConfigMap as the error of the way: the agent goes on where it is, and tells
// the hub why.
func parseHubLocation(configMap *corev1.ConfigMap) *hubLocation {
	if configMap == nil {
		return nil
	}
	location := &hubLocation{way: way{
		server: strings.TrimSpace(configMap.Data[registration.BootstrapAPIServerURL]),
		ca:     bytes.TrimSpace([]byte(configMap.Data[registration.BootstrapAPIServerCA])),
		mode:   config.TLSMode(strings.TrimSpace(configMap.Data[registration.AgentHubTLSMode])),
		source: "ConfigMap " + registration.AgentHubConfigMap,
	}}
	sum := sha256.Sum256([]byte(strings.Join([]string{location.server, string(location.ca), string(location.mode)}, "\x00")))
	location.digest = hex.EncodeToString(sum[:])
	if why := checkServerURL(location.server); why != "" {
		location.err = fmt.Errorf("its key %s is unusable: %s", registration.BootstrapAPIServerURL, why)
	} else if !validCA(location.ca) {
		location.err = fmt.Errorf("its key %s is unusable: it is not a PEM certificate", registration.BootstrapAPIServerCA)
	}
	return location
}

// sources are all that say where the hub is.
type sources struct {
	bootstrap *bootstrap   // nil: there is none, or it is for another registration
	location  *hubLocation // nil: there is none
	mode      config.TLSMode
}

// settled is what the stored way remembers of the ConfigMap it was taken in sight of.
func (s sources) settled() string {
	if s.location == nil {
		return ""
	}
	return s.location.digest
}

// wanted is the way the agent should go instead of its present one; nil when it is on it. A bootstrap Secret comes first,
// for it is the latest word of whoever imports the cluster. Once it is used up, ConfigMap fleet-agent-hub counts only when
// it has changed since the present way was taken: what it said before is older than that way, and going back and forth
// between the two would never end. ConfigMap fleet-agent knows no address; its mode counts where the other says none.
func (s sources) wanted(present *stored) *way {
	var w way
	switch {
	case s.bootstrap != nil:
		w = s.bootstrap.way(s.mode)
	case s.location != nil && s.location.digest != present.settled:
		w = s.location.way
		w.mode = cmp.Or(w.mode, s.mode)
	case s.location == nil || s.location.mode == "":
		w = present.way()
		w.mode, w.source = s.mode, "ConfigMap "+registration.AgentConfigMap
	default:
		return nil
	}
	if w.same(present.way()) {
		return nil
	}
	return &w
}

// fallback is a way to try when the present one does not work and nothing else is wanted: what ConfigMap fleet-agent-hub
// says, although it said so before. Values of a chart, say, may have led the agent away from it to an address that is gone.
func (s sources) fallback(present *stored) *way {
	if s.bootstrap != nil || s.location == nil {
		return nil
	}
	w := s.location.way
	w.mode = cmp.Or(w.mode, s.mode)
	if w.same(present.way()) {
		return nil
	}
	return &w
}

// way is where the bootstrap Secret has the hub; the mode is that of ConfigMap fleet-agent, which comes with it.
func (b *bootstrap) way(mode config.TLSMode) way {
	return way{server: b.apiServerURL, ca: b.apiServerCA, mode: mode, source: "Secret " + registration.BootstrapSecret}
}

// at is the same identity somewhere else.
func (a hubAccess) at(w way) hubAccess {
	a.server, a.ca = w.server, w.ca
	a.caSource = "key " + registration.BootstrapAPIServerCA + " of " + w.source
	return a
}

func (s *stored) way() way {
	return way{server: s.access.server, ca: s.access.ca, mode: s.mode, source: "Secret " + registration.CredentialSecret}
}

// moved is the same credential on another way. settled is what ConfigMap fleet-agent-hub said then.
func (s *stored) moved(w way, settled string) *stored {
	copied := *s
	copied.access, copied.mode, copied.settled = s.access.at(w), tlsMode(w.mode), settled
	return &copied
}

// provedMode is the mode the stored credential works in. Secrets of earlier agents do not say it: they work in the
// configured one, unless they cannot. Without a CA only the CAs of the operating system can have let them in, and a mode
// that does not exist leaves the narrower choice.
func provedMode(s *stored, configured config.TLSMode) config.TLSMode {
	for _, mode := range []config.TLSMode{s.mode, tlsMode(configured)} {
		if usableMode(mode, s.access) {
			return mode
		}
	}
	if len(s.access.ca) == 0 {
		return config.TLSModeSystemStore
	}
	return config.TLSModeStrict
}

func usableMode(mode config.TLSMode, access hubAccess) bool {
	return mode == config.TLSModeSystemStore || mode == config.TLSModeStrict && len(access.ca) > 0
}
