package launch

import (
	"context"
	"net/http"
	"net/http/pprof"

	"github.com/urfave/cli/v2"
)

// ProfilesFlag says where profiles are served.
func ProfilesFlag(address *string) cli.Flag {
	return &cli.StringFlag{
		Name: "profiling-bind-address", Destination: address, EnvVars: []string{"FLEET_PROFILING_BIND_ADDRESS"},
		Usage: "`ADDRESS` such as localhost:6060 to serve Go profiles at, to anybody who can reach it; default: none",
	}
}

// Profiles serves Go's profiles of this process under /debug/pprof/ until ctx ends. An empty address serves none; one that
// cannot be listened on is an error.
func Profiles(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index) // heap, goroutine, allocs and their like, by name
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return serve(ctx, "profiles", address, mux)
}
