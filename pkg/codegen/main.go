// Command codegen generates pkg/generated and the zz_generated files beside the types. It must run in the root of the
// repository, as scripts/generate does.
package main

import (
	"os"

	controllergen "github.com/rancher/wrangler/v3/pkg/controller-gen"
	"github.com/rancher/wrangler/v3/pkg/controller-gen/args"
	// Wrangler's generator runs the deepcopy and client generators of this module. The import makes it a direct requirement, so
	// that its version follows the other k8s.io modules.
	_ "k8s.io/code-generator"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	"github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func main() {
	// If GOPATH is set, the generator writes below $GOPATH/src instead of into this module.
	_ = os.Unsetenv("GOPATH")

	controllergen.Run(args.Options{
		OutputPackage: "github.com/muster-fleet/muster/pkg/generated",
		// Generated files have no licence header.
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
			"clusters.clusternet.io": {
				Types: []any{
					v1beta1.ClusterRegistrationRequest{},
					v1beta1.ManagedCluster{},
				},
				GenerateTypes:   true,
				GenerateClients: true,
			},
		},
	})
}
