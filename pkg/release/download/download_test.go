package download

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/registry"
	"oras.land/oras-go/v2"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/release"
)

// chartArchiveOf packs a chart. Files are pairs of name and content.
func chartArchiveOf(t *testing.T, name, version, more string, files ...string) []byte {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	files = append(files, "Chart.yaml", fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\n%s", name, version, more))
	for i := 0; i < len(files); i += 2 {
		require.NoError(t, archive.WriteHeader(&tar.Header{Name: name + "/" + files[i], Mode: 0o600, Size: int64(len(files[i+1]))}))
		_, err := archive.Write([]byte(files[i+1]))
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	require.NoError(t, zipped.Close())
	return packed.Bytes()
}

// server serves files under their paths, and an OCI registry under /v2. If it has credentials, it requires them.
type server struct {
	*httptest.Server
	files     map[string][]byte
	redirects map[string]string
	username  string
	mediaType string // of the files
	asked     []string
}

func newServer(t *testing.T, start func(http.Handler) *httptest.Server) *server {
	t.Helper()
	s := &server{files: map[string][]byte{}}
	oci := containerregistry.New(containerregistry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	s.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		username, password, _ := r.BasicAuth()
		s.asked = append(s.asked, username+" "+r.URL.Path)
		if s.username != "" && (username != s.username || password != "secret") {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if target, found := s.redirects[r.URL.Path]; found {
			http.Redirect(w, r, target, http.StatusFound)
			return
		}
		if data, found := s.files[r.URL.Path]; found {
			w.Header().Set("Content-Type", s.mediaType)
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			_, _ = w.Write(data)
			return
		}
		oci.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) host() string { return s.Listener.Addr().String() }

// push stores a manifest with one layer in the registry.
func (s *server) push(t *testing.T, repository, tag, mediaType string, annotations map[string]string, layers ...[]byte) {
	t.Helper()
	to, closeIdle, err := openRepository(s.host()+"/"+repository, ServerAccess{PlainHTTP: true})
	require.NoError(t, err)
	defer closeIdle()
	var descriptors []ocispec.Descriptor
	for _, layer := range layers {
		descriptor, err := oras.PushBytes(t.Context(), to, mediaType, layer)
		require.NoError(t, err)
		descriptor.Annotations = annotations
		descriptors = append(descriptors, descriptor)
	}
	manifest, err := oras.PackManifest(t.Context(), to, oras.PackManifestVersion1_1, "application/x", oras.PackManifestOptions{Layers: descriptors})
	require.NoError(t, err)
	require.NoError(t, to.Tag(t.Context(), manifest, tag))
}

func names(resources []fleet.BundleResource) (all []string) {
	for _, r := range resources {
		all = append(all, strings.SplitN(r.Name, "/", 3)[2])
	}
	return all
}

func TestChart(t *testing.T) {
	s := newServer(t, httptest.NewServer)
	one, two := chartArchiveOf(t, "app", "1.0.0", ""), chartArchiveOf(t, "app", "1.2.0+b", "", "templates/t.yaml", "kind: T")
	s.files["/repo/index.yaml"] = []byte("apiVersion: v1\nentries:\n  app:\n  - {version: 1.0.0, urls: [app-1.tgz]}\n  -\n" +
		"  - {version: 1.2.0+b, urls: ['" + s.URL + "/elsewhere/app-2.tgz']}\n  - {version: 3.0.0}\n")
	s.files["/repo/app-1.tgz"], s.files["/elsewhere/app-2.tgz"] = one, two
	s.push(t, "charts/app", "1.0.0", registry.ChartLayerMediaType, nil, one)
	s.push(t, "charts/app", "1.2.0_b", registry.ChartLayerMediaType, nil, two)
	oci := "oci://" + s.host() + "/charts/app"
	for name, row := range map[string]struct {
		helm fleet.HelmOptions
		want string // the files, or the error
	}{
		"a repository":                 {fleet.HelmOptions{Repo: s.URL + "/repo/", Chart: "app", Version: "1.0.0"}, "[Chart.yaml]"},
		"a constraint":                 {fleet.HelmOptions{Repo: s.URL + "/repo", Chart: "app", Version: "^1"}, "[templates/t.yaml Chart.yaml]"},
		"a URL":                        {fleet.HelmOptions{Chart: s.URL + "/repo/app-1.tgz"}, "[Chart.yaml]"},
		"an OCI registry":              {fleet.HelmOptions{Repo: oci, Version: "1.0.0"}, "[Chart.yaml]"},
		"an OCI registry in chart":     {fleet.HelmOptions{Chart: oci, Version: "1.2.0+b"}, "[templates/t.yaml Chart.yaml]"},
		"an OCI registry, constraint":  {fleet.HelmOptions{Repo: oci, Version: "1.x"}, "[templates/t.yaml Chart.yaml]"},
		"an OCI registry, newest":      {fleet.HelmOptions{Repo: oci}, "[templates/t.yaml Chart.yaml]"},
		"a version that is not there":  {fleet.HelmOptions{Repo: s.URL + "/repo", Chart: "app", Version: "9.0.0"}, `chart app has no version "9.0.0"`},
		"a version without a URL":      {fleet.HelmOptions{Repo: s.URL + "/repo", Chart: "app", Version: "3.0.0"}, "has no URL for version 3.0.0"},
		"a password in a URL":          {fleet.HelmOptions{Chart: strings.Replace(s.URL, "//", "//joe:hunter2@", 1) + "/none.tgz"}, "joe:xxxxx@"},
		"a password in no valid URL":   {fleet.HelmOptions{Chart: "https://joe:hunter2@host:port/app.tgz"}, "https://xxxxx@host:port/app.tgz is not a valid URL"},
		"a password in no repository":  {fleet.HelmOptions{Repo: "https://joe:hun/ter@hunter2@host:port", Chart: "app"}, "https://xxxxx@host:port/index.yaml is not a valid URL"},
		"a password in no registry":    {fleet.HelmOptions{Repo: "oci://joe:hunter2@host:port/app"}, "oci://xxxxx@host:port/app is not a valid reference"},
		"a password for a registry":    {fleet.HelmOptions{Repo: "oci://joe:hunter2@host/app"}, "oci://joe:xxxxx@host/app is not a valid reference"},
		"a chart that is not there":    {fleet.HelmOptions{Repo: s.URL + "/repo", Chart: "none"}, "there is no chart none"},
		"no repository":                {fleet.HelmOptions{Repo: s.URL + "/none", Chart: "app"}, "/none/index.yaml answers 404 Not Found"},
		"no OCI repository":            {fleet.HelmOptions{Repo: "oci://" + s.host() + "/none", Version: "1.0.0"}, "not found"},
		"no reference":                 {fleet.HelmOptions{Chart: "app"}, "a chart to download needs helm.repo"},
		"another scheme":               {fleet.HelmOptions{Chart: "file:///etc/app.tgz"}, `has the unknown scheme "file"`},
		"an archive that is not there": {fleet.HelmOptions{Chart: s.URL + "/none.tgz"}, "/none.tgz answers 404 Not Found"},
		"no archive":                   {fleet.HelmOptions{Chart: s.URL + "/repo/index.yaml"}, "not a chart archive"},
	} {
		t.Run(name, func(t *testing.T) {
			resources, err := Chart(t.Context(), row.helm, ServerAccess{PlainHTTP: true})
			if err != nil {
				assert.ErrorContains(t, err, row.want)
				assert.NotContains(t, err.Error(), "hunter2")
				return
			}
			assert.Equal(t, row.want, fmt.Sprint(names(resources)))
			assert.True(t, strings.HasPrefix(resources[0].Name, release.FetchedFolder(row.helm)+"/"), "where Deploy looks for it")
		})
	}
}

func TestChart_digest(t *testing.T) {
	s := newServer(t, httptest.NewServer)
	archive := chartArchiveOf(t, "app", "1.0.0", "")
	sum := fmt.Sprintf("%x", sha256.Sum256(archive))
	other := strings.Repeat("0", len(sum))
	s.files["/app.tgz"] = archive
	s.files["/parent.tgz"] = chartArchiveOf(t, "parent", "2.0.0", "dependencies: [{name: app, version: ^1, repository: '"+s.URL+"'}]")
	s.push(t, "charts/app", "1.0.0", registry.ChartLayerMediaType, nil, archive)
	oci := "oci://" + s.host() + "/charts/app:1.0.0"
	_, manifest, err := pullChart(t.Context(), oci, "", ServerAccess{PlainHTTP: true})
	require.NoError(t, err)
	for name, row := range map[string]struct {
		url, digest string
		wrong       bool
	}{
		"the digest of the archive":                 {"app.tgz", sum, false},
		"with its algorithm":                        {"app.tgz", "sha256:" + sum, false},
		"in capital letters":                        {"app.tgz", strings.ToUpper(sum), false},
		"another archive":                           {"app.tgz", other, true},
		"no digest":                                 {"app.tgz", "", false},
		"the archive in a registry":                 {oci, sum, false},
		"the manifest of the archive in a registry": {oci, manifest, false},
		"another archive in a registry":             {oci, other, true},
	} {
		t.Run(name, func(t *testing.T) {
			s.files["/index.yaml"] = fmt.Appendf(nil, "entries: {app: [{name: app, version: 1.0.0, urls: ['%s'], digest: '%s'}]}", row.url, row.digest)
			for _, helm := range []fleet.HelmOptions{{Repo: s.URL, Chart: "app", Version: "^1"}, {Chart: s.URL + "/parent.tgz"}} {
				_, err := Chart(t.Context(), helm, ServerAccess{PlainHTTP: true})
				if !row.wrong {
					require.NoError(t, err)
					continue
				}
				assert.ErrorContains(t, err, fmt.Sprintf("the archive of chart %s app 1.0.0 has the SHA-256 %s, but the index of the repository says %s", s.URL, sum, other))
			}
		})
	}
}

func TestChart_redirects(t *testing.T) {
	archive := chartArchiveOf(t, "app", "1.0.0", "")
	start := func(start func(http.Handler) *httptest.Server) *server {
		s := newServer(t, start)
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
		s.files["/app.tgz"] = archive
		return s
	}
	plain, plainToo, encrypted, encryptedToo := start(httptest.NewServer), start(httptest.NewServer), start(httptest.NewTLSServer), start(httptest.NewTLSServer)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: encrypted.Certificate().Raw})
	credentials := ServerAccess{Username: "joe", Password: "secret"}
	for name, row := range map[string]struct {
		from, to *server
		access   ServerAccess
		username string // that arrives
		says     string
	}{
		"the same server":                  {from: plain, to: plain, access: credentials, username: "joe"},
		"another server":                   {from: plain, to: plainToo, access: credentials},
		"from TLS":                         {from: encrypted, to: plain, access: ServerAccess{CAs: ca}, says: "/app.tgz would leave TLS"},
		"to TLS":                           {from: plain, to: encrypted, access: ServerAccess{CAs: ca}},
		"another server of the authority":  {from: encrypted, to: encryptedToo, access: ServerAccess{CAs: ca}},
		"the same server, any certificate": {from: encrypted, to: encrypted, access: ServerAccess{Insecure: true}},
		"another server, any certificate":  {from: encrypted, to: encryptedToo, access: ServerAccess{Insecure: true}, says: "certificate signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			row.from.redirects = map[string]string{"/moved.tgz": row.to.URL + "/app.tgz"}
			row.to.asked = nil
			_, err := Chart(t.Context(), fleet.HelmOptions{Chart: row.from.URL + "/moved.tgz"}, row.access)
			if row.says != "" {
				require.ErrorContains(t, err, row.says)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, row.username+" /app.tgz", row.to.asked[len(row.to.asked)-1])
		})
	}
	plain.redirects = map[string]string{"/moved.tgz": plain.URL + "/moved.tgz"}
	_, err := Chart(t.Context(), fleet.HelmOptions{Chart: plain.URL + "/moved.tgz"}, ServerAccess{})
	require.ErrorContains(t, err, "more than 10 redirects")
}

// The access is for the server of the chart, and not for other servers that a chart or an index names.
func TestServerAccess_forURL(t *testing.T) {
	encrypted := ServerAccess{Username: "joe", Password: "secret", CAs: []byte("ca"), Insecure: true}
	plain := ServerAccess{Username: "joe", Password: "secret", PlainHTTP: true}
	for _, row := range []struct {
		access     ServerAccess
		own, other string
		same       bool
	}{
		{encrypted, "https://a/charts", "https://a/x.tgz", true},
		{encrypted, "https://a/charts", "oci://a/x", true},
		{encrypted, "oci://a/charts", "oci://a/x", true},
		{plain, "http://a/charts", "oci://a/x", true},
		{encrypted, "https://a/charts", "https://a:443/x.tgz", true},
		{encrypted, "https://a:443/charts", "oci://A/x", true},
		{plain, "http://a/charts", "http://A:80/x.tgz", true},
		{encrypted, "https://[::1]/charts", "https://[::1]:443/x.tgz", true},
		{encrypted, "https://a/charts", "https://a:80/x.tgz", false},
		{encrypted, "https://a/charts", "https://b/x.tgz", false},
		{encrypted, "https://a/charts", "https://a:8443/x.tgz", false},
		{encrypted, "https://a/charts", "http://a/x.tgz", false},
		{encrypted, "https://a/charts", "://", false},
		{plain, "https://a/charts", "oci://a/x", false},
	} {
		want := ServerAccess{CAs: row.access.CAs}
		if row.same {
			want = row.access
		}
		assert.Equal(t, want, row.access.forURL(row.own, row.other), "%v", row)
	}

	s, other := newServer(t, httptest.NewTLSServer), newServer(t, httptest.NewTLSServer)
	other.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	other.files["/index.yaml"] = []byte("entries: {db: [{version: 2.1.0, urls: [db.tgz]}]}")
	other.files["/db.tgz"] = chartArchiveOf(t, "db", "2.1.0", "")
	s.files["/app.tgz"] = chartArchiveOf(t, "app", "1.0.0", "dependencies: [{name: db, version: 2.x.x, repository: '"+other.URL+"'}]")
	s.files["/index.yaml"] = []byte("entries: {app: [{version: 1.0.0, urls: ['" + other.URL + "/db.tgz']}]}")
	for _, helm := range []fleet.HelmOptions{{Chart: s.URL + "/app.tgz"}, {Repo: s.URL, Chart: "app"}} {
		_, err := Chart(t.Context(), helm, ServerAccess{Insecure: true})
		require.ErrorContains(t, err, "certificate signed by unknown authority")
	}
}

func TestChart_dependencies(t *testing.T) {
	s, other := newServer(t, httptest.NewServer), newServer(t, httptest.NewServer)
	s.username = "joe"
	other.files["/index.yaml"] = []byte("apiVersion: v1\nentries: {db: [{version: 2.1.0, urls: [db.tgz]}]}")
	other.files["/db.tgz"] = chartArchiveOf(t, "db", "2.1.0", "")
	depends := func(repository string) []byte {
		return chartArchiveOf(t, "app", "1.0.0", "dependencies: [{name: db, version: 2.x.x, repository: '"+repository+"'}]")
	}
	s.files["/app.tgz"], s.files["/local.tgz"] = depends(other.URL), depends("file://../db")
	s.files["/complete.tgz"] = chartArchiveOf(t, "app", "1.0.0", "dependencies: [{name: db, version: 2.x.x, repository: 'https://nowhere.invalid'}]",
		"charts/db/Chart.yaml", "apiVersion: v2\nname: db\nversion: 2.0.0\n")
	credentials := ServerAccess{Username: "joe", Password: "secret"}

	resources, err := Chart(t.Context(), fleet.HelmOptions{Chart: s.URL + "/app.tgz"}, credentials)
	require.NoError(t, err)
	assert.Equal(t, []string{"Chart.yaml", "charts/db-0.tgz"}, names(resources))
	assert.Equal(t, []string{" /index.yaml", " /db.tgz"}, other.asked, "the credentials are not for another server")

	other.files["/index.yaml"] = []byte("apiVersion: v1\nentries: {db: [{version: 2.1.0, urls: [db.tgz]}, {version: 3.0.0, urls: [new.tgz]}]}")
	other.files["/new.tgz"] = chartArchiveOf(t, "db", "3.0.0", "")
	s.files["/aliases.tgz"] = chartArchiveOf(t, "app", "1.0.0", "dependencies:\n"+
		"- {name: db, alias: old, version: 2.x.x, repository: '"+other.URL+"'}\n- {name: db, alias: new, version: 3.x.x, repository: '"+other.URL+"'}")
	resources, err = Chart(t.Context(), fleet.HelmOptions{Chart: s.URL + "/aliases.tgz"}, credentials)
	require.NoError(t, err)
	assert.Equal(t, []string{"Chart.yaml", "charts/db-0.tgz", "charts/db-1.tgz"}, names(resources), "each has a file of its own")

	resources, err = Chart(t.Context(), fleet.HelmOptions{Chart: s.URL + "/complete.tgz"}, credentials)
	require.NoError(t, err)
	assert.Equal(t, []string{"charts/db/Chart.yaml", "Chart.yaml"}, names(resources))

	_, err = Chart(t.Context(), fleet.HelmOptions{Chart: s.URL + "/local.tgz"}, credentials)
	var unsupported *release.UnsupportedError
	require.ErrorAs(t, err, &unsupported)
	assert.ErrorContains(t, err, `chart app depends on db in "file://../db"`)
}

func TestChart_limits(t *testing.T) {
	s := newServer(t, httptest.NewServer)
	zeros, packed := string(make([]byte, 5<<20)), string(chartArchiveOf(t, "sub", "1.0.0", ""))
	bomb := string(chartArchiveOf(t, "bomb", "1.0.0", "", "a", zeros, "b", zeros, "c", zeros, "d", zeros, "e", zeros, "f", zeros, "g", zeros))
	nested := func(count int, archive string, folder string) (files []string) {
		for i := range count {
			files = append(files, fmt.Sprintf(folder, i), archive)
		}
		return files
	}
	depends := func(count int, names string) (text string) {
		for i := range count {
			text += fmt.Sprintf("- {name: "+names+", version: 1.0.0, repository: 'http://"+s.host()+"'}\n", i)
		}
		return "dependencies:\n" + text
	}
	var index strings.Builder
	for i := range 101 {
		fmt.Fprintf(&index, "  sub%d: [{version: 1.0.0, urls: [sub.tgz]}]\n  bomb%d: [{version: 1.0.0, urls: [half.tgz]}]\n", i, i)
	}
	s.files["/index.yaml"] = []byte("entries:\n" + index.String())
	s.files["/sub.tgz"], s.files["/half.tgz"] = []byte(packed), []byte(bomb)
	s.files["/large.tgz"] = make([]byte, sizeMax+1)
	s.files["/bomb.tgz"] = chartArchiveOf(t, "app", "1.0.0", "", "zeros", string(make([]byte, sizeMax)))
	s.files["/large-file.tgz"] = chartArchiveOf(t, "app", "1.0.0", "", "zeros", string(make([]byte, 6<<20)))
	s.files["/nested.tgz"] = chartArchiveOf(t, "app", "1.0.0", "", nested(2, bomb, "charts/bomb%d.tgz")...)
	s.files["/deep.tgz"] = chartArchiveOf(t, "app", "1.0.0", "", nested(1, string(chartArchiveOf(t, "a", "1.0.0", "", nested(2, bomb, "charts/b/charts/bomb%d.tgz")...)), "charts/a%d.tgz")...)
	s.files["/no-dependencies.tgz"] = chartArchiveOf(t, "app", "1.0.0", "", append(nested(2, bomb, "files/charts/bomb%d.tgz"), nested(2, bomb, "charts/_bomb%d.tgz")...)...)
	s.files["/many.tgz"] = chartArchiveOf(t, "app", "1.0.0", "", nested(101, packed, "charts/sub%d.tgz")...)
	s.files["/enough.tgz"] = chartArchiveOf(t, "app", "1.0.0", "", nested(100, packed, "charts/sub%d.tgz")...)
	s.files["/download-many.tgz"] = chartArchiveOf(t, "app", "1.0.0", depends(100, "sub%d"), nested(1, packed, "charts/sub%d.tgz")...)
	s.files["/download-large.tgz"] = chartArchiveOf(t, "app", "1.0.0", depends(2, "bomb%d"))
	for file, want := range map[string]string{
		"/large.tgz":           "/large.tgz is larger than 64 MiB",
		"/bomb.tgz":            "the unpacked chart with its dependencies is larger than 64 MiB",
		"/large-file.tgz":      "larger than the maximum file size",
		"/nested.tgz":          "dependency charts/bomb1.tgz: the unpacked chart with its dependencies is larger than 64 MiB",
		"/deep.tgz":            "dependency charts/a0.tgz: dependency charts/b/charts/bomb1.tgz: the unpacked chart with its dependencies is larger than 64 MiB",
		"/no-dependencies.tgz": "",
		"/many.tgz":            "the chart has more than 100 dependencies",
		"/enough.tgz":          "",
		"/download-many.tgz":   "dependency sub99 of chart app: the chart has more than 100 dependencies",
		"/download-large.tgz":  "dependency bomb1 of chart app: the unpacked chart with its dependencies is larger than 64 MiB",
	} {
		t.Run(file, func(t *testing.T) {
			_, err := Chart(t.Context(), fleet.HelmOptions{Chart: s.URL + file}, ServerAccess{})
			if want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, want)
		})
	}
}

func TestChart_largeAnswers(t *testing.T) {
	s := newServer(t, httptest.NewServer)
	s.files["/index.yaml"] = []byte("entries: {app: [" + strings.Repeat("{},", indexNodes/2) + "{version: 1.0.0, urls: [app.tgz]}]}")
	_, err := Chart(t.Context(), fleet.HelmOptions{Repo: s.URL, Chart: "app"}, ServerAccess{})
	require.ErrorContains(t, err, "the index of the repository: YAML that has more than 2000000 nodes")
	// The second anchor is none: a part of a key is not the start of a document.
	s.files["/index.yaml"] = []byte("a: &a " + strings.Repeat("x", 500_000) + "\n---&a x: 1\nb: [" + strings.Repeat("*a,", 1_000) + "*a]\n")
	_, err = Chart(t.Context(), fleet.HelmOptions{Repo: s.URL, Chart: "app"}, ServerAccess{})
	require.ErrorContains(t, err, "the index of the repository: YAML that has more than 2000000 nodes")

	tags, err := json.Marshal(map[string]any{"name": "app", "tags": strings.Split(strings.TrimSpace(strings.Repeat("1.0.0 ", tagsMax+1)), " ")})
	require.NoError(t, err)
	s.files["/v2/app/tags/list"] = tags
	access := ServerAccess{PlainHTTP: true}
	_, err = Chart(t.Context(), fleet.HelmOptions{Repo: "oci://" + s.host() + "/app", Version: "^1"}, access)
	require.ErrorContains(t, err, "the repository has more than 10000 tags; name an exact version")

	s.files["/v2/app/manifests/2.0.0"] = []byte(`{"layers":[` + strings.Repeat("{},", 20_000) + "{}]}")
	s.mediaType = ocispec.MediaTypeImageManifest
	_, err = Chart(t.Context(), fleet.HelmOptions{Repo: "oci://" + s.host() + "/app", Version: "2.0.0"}, access)
	require.ErrorContains(t, err, "the manifest has more than 10000 values")
}

// A registry can link each page of its tags to another one.
func TestChart_endlessTags(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "<"+r.URL.Path+`?last=x>; rel="next"`)
		_, _ = w.Write([]byte(`{"tags":[]}`))
	}))
	t.Cleanup(s.Close)
	_, err := Chart(t.Context(), fleet.HelmOptions{Repo: "oci://" + s.Listener.Addr().String() + "/app"}, ServerAccess{PlainHTTP: true})
	require.ErrorContains(t, err, "more than 10000 tags")
}

// All downloads of an agent share one limit.
func TestDownloads(t *testing.T) {
	const most = 4
	arrived, answer := make(chan struct{}, 3*most), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-answer
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(s.Close)
	host := s.Listener.Addr().String()
	var running sync.WaitGroup
	for range most {
		running.Go(func() {
			_, err := Chart(t.Context(), fleet.HelmOptions{Chart: s.URL + "/app.tgz"}, ServerAccess{})
			assert.ErrorContains(t, err, "404")
		})
	}
	for range most {
		<-arrived
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the agent stops"))
	_, err := Chart(ended, fleet.HelmOptions{Chart: s.URL + "/app.tgz"}, ServerAccess{})
	require.EqualError(t, err, "the agent stops")
	_, err = Artifact(ended, host+"/artifact", "s-1", ServerAccess{PlainHTTP: true})
	require.EqualError(t, err, "the agent stops")
	assert.False(t, downloads.TryAcquire(1))
	close(answer)
	running.Wait()
	assert.True(t, downloads.TryAcquire(most), "all have ended")
	downloads.Release(most)
}

func TestServerAccess_tls(t *testing.T) {
	s := newServer(t, httptest.NewTLSServer)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	s.username = "joe"
	s.files["/app.tgz"] = chartArchiveOf(t, "app", "1.0.0", "")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	helm := fleet.HelmOptions{Chart: s.URL + "/app.tgz"}
	for name, row := range map[string]struct {
		secret map[string]string
		env    string
		want   string // the error
	}{
		"the CA":                   {map[string]string{"username": "joe", "password": "secret", "cacerts": string(ca)}, "", ""},
		"credentials for agents":   {map[string]string{"username": "x", "password": "y", "agentUsername": "joe", "agentPassword": "secret", "cacerts": string(ca)}, "", ""},
		"any certificate":          {map[string]string{"username": "joe", "password": "secret", "insecureSkipVerify": "true"}, "", ""},
		"the CA of a proxy":        {map[string]string{"username": "joe", "password": "secret"}, string(ca), ""},
		"no CA":                    {map[string]string{"username": "joe", "password": "secret"}, "", "certificate signed by unknown authority"},
		"another password":         {map[string]string{"username": "joe", "password": "x", "cacerts": string(ca)}, "", "401 Unauthorized"},
		"a username only":          {map[string]string{"username": "joe"}, "", "only one of username and password"},
		"a CA that is not PEM":     {map[string]string{"cacerts": "x"}, "", "contain no PEM certificate"},
		"a file that is not there": {nil, "/nowhere", "PROXY_CA_BUNDLE: open /nowhere"},
		"a proxy's CA without PEM": {nil, "-----BEGIN x", "PROXY_CA_BUNDLE contains no PEM certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(proxyCAs, row.env)
			secret := map[string][]byte{}
			for key, value := range row.secret {
				secret[key] = []byte(value)
			}
			access, err := ServerAccessFrom(secret)
			if err == nil {
				_, err = Chart(t.Context(), helm, access)
			}
			if row.want == "" {
				require.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, row.want)
		})
	}
}

func TestArtifact(t *testing.T) {
	s := newServer(t, httptest.NewServer)
	want := []fleet.BundleResource{{Name: "a.yaml", Content: "kind: A"}}
	id, _, err := content.Digest(want)
	require.NoError(t, err)
	document := []byte(`{"resources":[{"name":"a.yaml","content":"kind: A"}]}` + "\n")
	marked := map[string]string{"id": id}
	s.push(t, "good/"+id, "latest", artifactType, marked, document)
	s.push(t, "changed/"+id, "latest", artifactType, marked, []byte(`{"resources":[{"name":"a.yaml","content":"kind: B"}]}`+"\n"))
	s.push(t, "unmarked/"+id, "latest", artifactType, nil, document)
	s.push(t, "type/"+id, "latest", "text/plain", marked, document)
	s.push(t, "two/"+id, "latest", artifactType, marked, document, []byte("{}"))
	for reference, says := range map[string]string{
		s.host() + "/good":            "",
		"oci://" + s.host() + "/good": "",
		s.host() + "/changed":         "is not the digest of its resources",
		s.host() + "/unmarked":        `has the annotation id=""`,
		s.host() + "/type":            "it has 0 layers of type application/fleet.file, not one",
		s.host() + "/two":             "it has 2 layers of type application/fleet.file, not one",
		s.host() + "/none":            "not found",
	} {
		t.Run(strings.ReplaceAll(reference, s.host(), "HOST"), func(t *testing.T) {
			got, err := Artifact(t.Context(), reference, id, ServerAccess{PlainHTTP: true})
			if says != "" {
				require.ErrorContains(t, err, says)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	s.username = "joe"
	_, err = Artifact(t.Context(), s.host()+"/good", id, ServerAccess{PlainHTTP: true})
	require.ErrorContains(t, err, "credential not found")
	_, err = Artifact(t.Context(), s.host()+"/good", id, ServerAccess{PlainHTTP: true, Username: "joe", Password: "secret"})
	require.NoError(t, err)
}
