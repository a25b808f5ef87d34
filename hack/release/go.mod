// What a release needs beside the scripts: archives, and images of several architectures as an OCI layout. It is a module of its own so
// that nothing of it reaches the one that is shipped.
module github.com/muster-fleet/muster/hack/release

go 1.26.0

require (
	github.com/google/go-containerregistry v0.20.6
	github.com/stretchr/testify v1.12.1
	go.yaml.in/yaml/v3 v3.0.5
)

require (
	github.com/containerd/stargz-snapshotter/estargz v0.16.3 // indirect
	github.com/klauspost/compress v1.18.0 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	github.com/vbatts/tar-split v0.12.1 // indirect
	golang.org/x/sync v0.15.0 // indirect
)
