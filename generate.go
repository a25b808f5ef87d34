// Package muster is the root of the repository. It only lists the commands that generate code, in order; scripts/generate
// runs them.
package muster

// Delete everything generated first: otherwise the files of a removed or renamed kind would remain.
//go:generate sh -c "rm -rf pkg/generated && find pkg/apis -name 'zz_generated_*.go' -delete"

// Generate pkg/generated (clients and controllers) and the zz_generated files beside the types.
//go:generate go run ./pkg/codegen

// Generate the CustomResourceDefinitions, all into one template of the chart. The programs embed this file, so it is replaced
// only if controller-gen succeeds.
//go:generate sh -c "go tool -modfile=hack/tools/go.mod controller-gen crd paths=./pkg/apis/fleet.cattle.io/... output:crd:stdout > crds.yaml.tmp && mkdir -p charts/fleet-crd/templates && mv crds.yaml.tmp charts/fleet-crd/templates/crds.yaml"

// Generate the CustomResourceDefinitions of Clusternet, which a hub installs only if it serves Clusternet's agents.
//go:generate sh -c "go tool -modfile=hack/tools/go.mod controller-gen crd paths=./pkg/apis/clusters.clusternet.io/... output:crd:stdout > crds.yaml.tmp && mv crds.yaml.tmp pkg/crds/clusternet.yaml"

// Bound the quantities that these CustomResourceDefinitions admit.
//go:generate scripts/bound-quantities charts/fleet-crd/templates/crds.yaml pkg/crds/clusternet.yaml
