package download

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/registry"
	repo "helm.sh/helm/v4/pkg/repo/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	bundlecontent "github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

const (
	artifactType = "application/fleet.file"
	artifactTag  = "latest"
	// artifactID is the annotation with the ID of an artifact.
	artifactID = "id"
)

// Artifact downloads the resources of a Bundle: the one layer of REFERENCE/ID:latest, a document as in a Content. The ID is the
// digest of the document, so that a registry cannot change what is deployed.
func Artifact(ctx context.Context, reference, id string, a ServerAccess) ([]fleet.BundleResource, error) {
	if err := downloads.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	defer downloads.Release(1)
	reference = strings.TrimSuffix(strings.TrimPrefix(reference, registry.OCIScheme+"://"), "/") + "/" + id
	repository, closeIdle, err := openRepository(reference, a)
	if err != nil {
		return nil, err
	}
	defer closeIdle()
	_, manifest, layer, err := fetchLayer(ctx, repository, artifactTag, artifactType)
	if err != nil {
		return nil, fmt.Errorf("fetching OCI artifact %s:%s: %w", reference, artifactTag, err)
	}
	if found := cmp.Or(manifest.Layers[0].Annotations[artifactID], manifest.Annotations[artifactID]); found != id {
		return nil, fmt.Errorf("OCI artifact %s:%s has the annotation %s=%q, not the ID of the deployment", reference, artifactTag, artifactID, found)
	}
	return bundlecontent.DecodeDocument(id, layer)
}

// pullChart downloads the archive of a chart, and returns the digest of its manifest too. A reference may name a tag or digest itself.
func pullChart(ctx context.Context, reference, version string, a ServerAccess) (data []byte, manifest string, err error) {
	repository, closeIdle, err := openRepository(strings.TrimPrefix(reference, registry.OCIScheme+"://"), a)
	if err != nil {
		return nil, "", err
	}
	defer closeIdle()
	tag := repository.Reference.Reference
	if tag == "" {
		if tag, err = chartTag(ctx, repository, version); err != nil {
			return nil, "", err
		}
	}
	described, _, data, err := fetchLayer(ctx, repository, tag, registry.ChartLayerMediaType, registry.LegacyChartLayerMediaType)
	return data, strings.TrimPrefix(string(described.Digest), "sha256:"), err
}

// chartTag returns the tag of a version: an exact one, or the newest that matches a constraint. Tags have _ in place of +.
func chartTag(ctx context.Context, repository *remote.Repository, version string) (string, error) {
	tag := strings.ReplaceAll(version, "+", "_")
	if tag != "" && !strings.ContainsAny(tag, "^~<>=!*|, ") && strings.Count(tag, ".") >= 2 && !strings.ContainsAny(strings.SplitN(tag, "-", 2)[0], "xX") {
		return tag, nil
	}
	index := repo.NewIndexFile()
	const name = "chart"
	const pageMin = 10
	left := tagsMax
	err := repository.Tags(ctx, "", func(tags []string) error {
		if left -= max(len(tags), pageMin); left < 0 { // empty pages count too: a registry can send any number of them
			return fmt.Errorf("the repository has more than %d tags; name an exact version", tagsMax)
		}
		for _, tag := range tags {
			index.Entries[name] = append(index.Entries[name], &repo.ChartVersion{Metadata: &chart.Metadata{Version: strings.ReplaceAll(tag, "_", "+")}})
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	found, err := newestMatch(index, name, version)
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(found.Version, "+", "_"), nil
}

func openRepository(reference string, a ServerAccess) (repository *remote.Repository, closeIdle func(), err error) {
	if repository, err = remote.NewRepository(reference); err != nil && strings.Contains(reference, "@") { // the error repeats a password
		return nil, nil, &release.InvalidError{Why: fmt.Sprintf(
			"%s is not a valid reference to an OCI repository: it has a host and a path in lower case, and user and password belong into a Secret",
			redacted(registry.OCIScheme+"://"+reference))}
	} else if err != nil {
		return nil, nil, err
	}
	client, closeIdle, err := a.client(repository.Reference.Host())
	if err != nil {
		return nil, nil, err
	}
	authorized := &auth.Client{Client: client, Cache: auth.NewCache()}
	if a.Username != "" {
		authorized.Credential = auth.StaticCredential(repository.Reference.Registry, auth.Credential{Username: a.Username, Password: a.Password})
	}
	repository.Client, repository.PlainHTTP = authorized, a.PlainHTTP
	return repository, closeIdle, nil
}

// fetchLayer returns the descriptor of a manifest, the manifest, and the one layer of it that has one of the media types. The digest of the layer
// is verified.
func fetchLayer(ctx context.Context, repository *remote.Repository, tag string, mediaTypes ...string) (
	described ocispec.Descriptor, manifest ocispec.Manifest, layer []byte, err error,
) {
	described, reader, err := repository.FetchReference(ctx, tag)
	if err != nil {
		return described, manifest, nil, err
	}
	defer reader.Close()
	const manifestMax, valuesMax = 4 << 20, 10_000
	if described.Size > manifestMax {
		return described, manifest, nil, fmt.Errorf("the manifest is larger than %d MiB", manifestMax>>20)
	}
	data, err := content.ReadAll(reader, described)
	if err != nil {
		return described, manifest, nil, err
	}
	read := transport.SizeCounter{Limits: transport.ResponseLimits{Values: valuesMax}}
	if _, err := read.Write(data); err != nil {
		return described, manifest, nil, fmt.Errorf("the manifest has more than %d values", valuesMax)
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		return described, manifest, nil, fmt.Errorf("the manifest: %w", err)
	}
	var layers []ocispec.Descriptor
	for _, layer := range manifest.Layers {
		for _, mediaType := range mediaTypes {
			if layer.MediaType == mediaType {
				layers = append(layers, layer)
			}
		}
	}
	if len(layers) != 1 {
		return described, manifest, nil, fmt.Errorf("it has %d layers of type %s, not one", len(layers), mediaTypes[0])
	}
	manifest.Layers = layers
	if layers[0].Size > sizeMax {
		return described, manifest, nil, tooLarge("the layer")
	}
	layer, err = content.FetchAll(ctx, repository, layers[0])
	return described, manifest, layer, err
}
