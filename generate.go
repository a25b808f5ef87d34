// Package muster is the root of the repository. It holds nothing but the list of what is generated, in order;
// scripts/generate runs it.
package muster

// Leftovers of a kind that was removed or renamed would stay for ever, so everything generated goes first.
//go:generate sh -c "rm -rf pkg/generated && find pkg/apis -name 'zz_generated_*.go' -delete"

// pkg/generated (clients and controllers) and the zz_generated files beside the types.
//go:generate go run ./pkg/codegen

// The CustomResourceDefinitions, all in one template of the chart. The file is replaced only when all went well, because
// the programs embed it.
//go:generate sh -c "go tool -modfile=hack/tools/go.mod controller-gen crd paths=./pkg/apis/... output:crd:stdout > crds.yaml.tmp && mkdir -p charts/fleet-crd/templates && mv crds.yaml.tmp charts/fleet-crd/templates/crds.yaml"
