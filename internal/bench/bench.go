package bench

import (
	"context"
	"fmt"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/controlplane"
)

// part is one thing that is measured, on API servers of its own.
type part struct {
	name    string
	measure func(context.Context, Options) ([]figures.Figure, error)
	// extra parts are measured only when they are asked for.
	extra bool
}

func parts() []part {
	return []part{
		{name: "registrations", measure: registrations},
		{name: "throttled", measure: throttled},
		{name: "secrets", measure: tokenSecrets},
		{name: "imports", measure: imports},
		{name: "silence", measure: silence},
		{name: "growth", measure: growth},
		{name: "small", measure: small, extra: true},
		{name: "day", measure: day, extra: true},
		{name: "replicas", measure: replicas, extra: true},
	}
}

// WholeParts are the names of the parts of a whole run.
func WholeParts() (names []string) {
	for _, p := range parts() {
		if !p.extra {
			names = append(names, p.name)
		}
	}
	return names
}

func allParts() (names []string) {
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

func partOf(name string) (part, bool) {
	for _, p := range parts() {
		if p.name == name {
			return p, true
		}
	}
	return part{}, false
}

// Run measures everything that is asked for. With an error come the figures taken until then.
func Run(ctx context.Context, o Options) (all []figures.Figure, err error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Binaries == "" {
		if o.Binaries, err = controlplane.Binaries(ctx, o.Log); err != nil {
			return nil, err
		}
	}
	for _, name := range o.Parts {
		p, _ := partOf(name)
		measured, err := p.measure(ctx, o)
		all = append(all, measured...)
		if err != nil {
			return all, fmt.Errorf("measuring %s: %w", p.name, err)
		}
	}
	return all, nil
}
