// The check of the licences of what is linked into the programs. It has a module of its own so that what it uses never reaches
// the one that is shipped.
module github.com/muster-fleet/muster/hack/licences

go 1.26.0

require (
	github.com/google/licensecheck v0.3.1
	github.com/stretchr/testify v1.12.1
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
