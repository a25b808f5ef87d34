package download

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/semaphore"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/registry"
	repo "helm.sh/helm/v4/pkg/repo/v1"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/release"
)

const (
	// indexNodes limits the index of a repository: parsed, it takes some 250 bytes for each node. The index of a repository with 20,000 versions of
	// charts has about a million.
	indexNodes = 2_000_000
	// tagsMax limits the tags of a repository in a registry.
	tagsMax = 10_000
)

// downloads limits the charts and artifacts that are being downloaded and unpacked. Each takes several times 64 MiB, and the agent has many
// workers.
var downloads = semaphore.NewWeighted(4)

// Chart downloads the chart that the options name, with the dependencies that its archive does not contain. The files have the
// names under which release.Client.Deploy looks for them.
func Chart(ctx context.Context, h fleet.HelmOptions, a ServerAccess) ([]fleet.BundleResource, error) {
	if err := downloads.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	defer downloads.Release(1)
	data, err := chartArchive(ctx, h, a)
	if err != nil {
		return nil, fmt.Errorf("downloading chart %s: %w", describe(h), err)
	}
	budget := release.NewChartBudget()
	files, err := budget.Unpack(data)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", describe(h), err)
	}
	loaded, err := loader.LoadFiles(files)
	if err != nil {
		return nil, fmt.Errorf("chart %s cannot be loaded: %w", describe(h), err)
	}
	for i, d := range loaded.Metadata.Dependencies {
		if slices.ContainsFunc(loaded.Dependencies(), func(c *chart.Chart) bool { return c.Name() == d.Name }) {
			continue
		}
		from := fleet.HelmOptions{Repo: d.Repository, Chart: d.Name, Version: d.Version}
		if !strings.Contains(d.Repository, "://") || strings.HasPrefix(d.Repository, "file://") {
			return nil, &release.UnsupportedError{Field: "helm.chart", Why: fmt.Sprintf("chart %s depends on %s in %q, which is not a URL; put the dependency into the chart",
				loaded.Name(), d.Name, d.Repository)}
		}
		if registry.IsOCI(d.Repository) {
			from.Repo, from.Chart = strings.TrimSuffix(d.Repository, "/")+"/"+d.Name, ""
		}
		data, err := chartArchive(ctx, from, a.forURL(cmp.Or(h.Repo, h.Chart), d.Repository))
		if err != nil {
			return nil, fmt.Errorf("dependency %s of chart %s: %w", d.Name, loaded.Name(), err)
		}
		if err := budget.AddDependency(data); err != nil {
			return nil, fmt.Errorf("dependency %s of chart %s: %w", d.Name, loaded.Name(), err)
		}
		files = append(files, &archive.BufferedFile{Name: fmt.Sprintf("charts/%s-%d.tgz", d.Name, i), Data: data})
	}
	var resources []fleet.BundleResource
	for _, f := range files {
		resources = append(resources, fleet.BundleResource{Name: path.Join(release.FetchedFolder(h), f.Name), Content: string(f.Data)})
	}
	return resources, nil
}

// describe returns repository, chart and version for an error message, without passwords in URLs.
func describe(h fleet.HelmOptions) string {
	return strings.Join(strings.Fields(redacted(h.Repo)+" "+redacted(h.Chart)+" "+h.Version), " ")
}

// chartArchive downloads the archive of a chart from an OCI registry, from its URL, or from its URL in the index of a repository.
func chartArchive(ctx context.Context, h fleet.HelmOptions, a ServerAccess) ([]byte, error) {
	switch {
	case registry.IsOCI(h.Repo):
		data, _, err := pullChart(ctx, h.Repo, h.Version, a)
		return data, err
	case registry.IsOCI(h.Chart):
		data, _, err := pullChart(ctx, h.Chart, h.Version, a)
		return data, err
	case h.Repo == "" && strings.Contains(h.Chart, "://"):
		return get(ctx, h.Chart, a)
	case h.Repo == "" || h.Chart == "":
		return nil, &release.InvalidError{Why: "a chart to download needs helm.repo and helm.chart, an oci:// reference in helm.repo, or a URL in helm.chart"}
	}

	version, err := findVersion(ctx, h, a)
	if err != nil {
		return nil, err
	}
	if len(version.URLs) == 0 {
		return nil, fmt.Errorf("the index of the repository has no URL for version %s", version.Version)
	}
	from, err := repo.ResolveReferenceURL(h.Repo, version.URLs[0])
	if err != nil {
		return nil, err
	}
	var data []byte
	var manifest string
	if a = a.forURL(h.Repo, from); registry.IsOCI(from) {
		data, manifest, err = pullChart(ctx, from, version.Version, a)
	} else {
		data, err = get(ctx, from, a)
	}
	if err != nil {
		return nil, err
	}
	h.Version = version.Version
	return data, checkDigest(h, version.Digest, data, manifest)
}

// checkDigest compares an archive with the digest in the index of its repository, if there is one: the archives may be on another server than
// the index. The digest is the SHA-256 of the archive, or of its manifest in a registry.
func checkDigest(h fleet.HelmOptions, wanted string, archive []byte, manifest string) error {
	wanted = strings.ToLower(strings.TrimPrefix(wanted, "sha256:"))
	sum := sha256.Sum256(archive)
	if got := hex.EncodeToString(sum[:]); wanted != "" && wanted != got && wanted != manifest {
		return fmt.Errorf("the archive of chart %s has the SHA-256 %s, but the index of the repository says %s", describe(h), got, wanted)
	}
	return nil
}

// indexes admits one index at a time: the index of a large repository takes hundreds of MiB when it is parsed.
var indexes = semaphore.NewWeighted(1)

// findVersion returns the version of the chart in the index of its repository.
func findVersion(ctx context.Context, h fleet.HelmOptions, a ServerAccess) (*repo.ChartVersion, error) {
	data, err := get(ctx, strings.TrimSuffix(h.Repo, "/")+"/index.yaml", a)
	if err != nil {
		return nil, err
	}
	if err := indexes.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	defer indexes.Release(1)
	if err := release.CheckYAML(data, indexNodes); err != nil {
		return nil, fmt.Errorf("the index of the repository: %w", err)
	}
	index := repo.NewIndexFile()
	if err := yaml.Unmarshal(data, index); err != nil {
		return nil, fmt.Errorf("the index of the repository: %w", err)
	}
	return newestMatch(index, h.Chart, h.Version)
}

// newestMatch returns the newest version of a chart that the constraint allows.
func newestMatch(index *repo.IndexFile, name, constraint string) (*repo.ChartVersion, error) {
	index.Entries[name] = slices.DeleteFunc(index.Entries[name], func(v *repo.ChartVersion) bool { return v == nil || v.Metadata == nil })
	if len(index.Entries[name]) == 0 {
		return nil, fmt.Errorf("there is no chart %s", name)
	}
	index.Entries = map[string]repo.ChartVersions{name: index.Entries[name]}
	index.SortEntries()
	version, err := index.Get(name, constraint)
	if err != nil {
		return nil, fmt.Errorf("chart %s has no version %q", name, constraint)
	}
	return version, nil
}
