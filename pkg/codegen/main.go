// Command codegen writes pkg/generated and the zz_generated files beside the types. Run it from the root of the
// repository; scripts/generate does.
package main

import (
	"os"

	controllergen "github.com/rancher/wrangler/v3/pkg/controller-gen"
	"github.com/rancher/wrangler/v3/pkg/controller-gen/args"

	"github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func main() {
	// With GOPATH set the generator writes below $GOPATH/src instead of into this module.
	_ = os.Unsetenv("GOPATH")

	controllergen.Run(args.Options{
		OutputPackage: "github.com/muster-fleet/muster/pkg/generated",
		// Files of this project have no header.
		Boilerplate: os.DevNull,
		Groups: map[string]args.Group{
			"fleet.cattle.io": {
				Types: []any{
					v1alpha1.Bundle{},
					v1alpha1.BundleDeployment{},
					v1alpha1.Cluster{},
					v1alpha1.ClusterGroup{},
					v1alpha1.ClusterRegistration{},
					v1alpha1.ClusterRegistrationToken{},
					v1alpha1.Content{},
				},
				GenerateTypes:   true,
				GenerateClients: true,
			},
		},
	})
}
