package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/muster-fleet/muster/internal/controlplane"
)

// part is one thing that is measured, on API servers of its own.
type part struct {
	name    string
	measure func(context.Context, Options) ([]Result, error)
}

var parts = []part{
	{"registrations", registrations},
	{"throttled", throttled},
	{"imports", imports},
	{"growth", growth},
}

// Run measures everything that is asked for. With an error come the figures taken until then.
func Run(ctx context.Context, o Options) ([]Result, error) {
	o = o.withDefaults()
	if o.Binaries == "" {
		var err error
		if o.Binaries, err = controlplane.Binaries(ctx, o.Log); err != nil {
			return nil, err
		}
	}
	var all []Result
	for _, p := range parts {
		if len(o.Only) > 0 && !slices.Contains(o.Only, p.name) {
			continue
		}
		results, err := p.measure(ctx, o)
		all = append(all, results...)
		if err != nil {
			return all, fmt.Errorf("measuring %s: %w", p.name, err)
		}
	}
	return all, nil
}
