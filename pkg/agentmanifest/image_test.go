package agentmanifest

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestImageComesFromThePrivateRegistryWhenThereIsOne(t *testing.T) {
	tests := map[string]struct{ reference, systemDefault, private, want string }{
		"no registries":                     {"fleet/agent:v1", "", "", "fleet/agent:v1"},
		"default only":                      {"reg.io/fleet/agent:v1", "reg.io", "", "reg.io/fleet/agent:v1"},
		"private only":                      {"fleet/agent:v1", "", "private.io", "private.io/fleet/agent:v1"},
		"private replaces default":          {"reg.io/fleet/agent:v1", "reg.io", "private.io", "private.io/fleet/agent:v1"},
		"default written with slash":        {"reg.io/fleet/agent:v1", "reg.io/", "private.io", "private.io/fleet/agent:v1"},
		"private written with slash":        {"fleet/agent:v1", "", "private.io/", "private.io/fleet/agent:v1"},
		"private written as URL":            {"fleet/agent:v1", "", "https://private.io", "private.io/fleet/agent:v1"},
		"private with port and path":        {"fleet/agent:v1", "", "private.io:5000/a/b", "private.io:5000/a/b/fleet/agent:v1"},
		"already from the private one":      {"private.io/fleet/agent:v1", "", "private.io", "private.io/fleet/agent:v1"},
		"both are the same":                 {"reg.io/fleet/agent:v1", "reg.io", "reg.io", "reg.io/fleet/agent:v1"},
		"private below default":             {"reg.io/fleet/agent:v1", "reg.io", "reg.io/mirror", "reg.io/mirror/fleet/agent:v1"},
		"default not in the image":          {"fleet/agent:v1", "reg.io", "private.io", "private.io/fleet/agent:v1"},
		"default is the start of a name":    {"registry/agent:v1", "reg", "private.io", "private.io/registry/agent:v1"},
		"private is the start of a name":    {"private.iota/agent:v1", "", "private.io", "private.io/private.iota/agent:v1"},
		"digest":                            {"fleet/agent@sha256:abc", "", "private.io", "private.io/fleet/agent@sha256:abc"},
		"image of another registry is kept": {"other.io/fleet/agent:v1", "reg.io", "private.io", "private.io/other.io/fleet/agent:v1"},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			assert.Equal(t, tt.want, image(tt.reference, tt.systemDefault, tt.private))
		})
	}
}
