package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// example is a program with each kind of module.
var example = &program{
	sha256: strings.Repeat("ab", 32),
	build: &debug.BuildInfo{
		GoVersion: "go1.26.8",
		Path:      "example.com/fleet/cmd/hub",
		Main:      debug.Module{Path: "example.com/fleet", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.com/library", Version: "v1.2.3", Sum: "h1:sum"},
			{Path: "example.com/old", Version: "v2.0.0+incompatible"},
			{Path: "example.com/ours", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.1"}},
		},
	},
}

var exampleRoots = &debug.Module{Path: rootsPath, Version: "v0.1.0"}

func TestWriteSBOM(t *testing.T) {
	bom := decode(t, exampleSBOM(t))
	require.Equal(t, string(exampleSBOM(t)), string(exampleSBOM(t)), "reproducible")
	require.Equal(t, "2001-09-09T01:46:40Z", bom.Metadata.Timestamp)
	require.Equal(t, "hub", bom.Metadata.Component.Name)
	require.Equal(t, "pkg:golang/example.com/fleet@v3#cmd/hub", bom.Metadata.Component.PackageURL)
	require.Equal(t, example.sha256, (*bom.Metadata.Component.Hashes)[0].Value)

	var urls []string
	for _, component := range *bom.Components {
		urls = append(urls, component.PackageURL)
	}
	require.Equal(t, []string{
		"pkg:golang/std@1.26.8",
		"pkg:golang/example.com/library@v1.2.3",
		"pkg:golang/example.com/old@v2.0.0%2Bincompatible",
		"pkg:golang/example.com/fork@v1.0.1", // the replacement, which is linked
		"pkg:golang/" + rootsPath + "@v0.1.0",
	}, urls)
	require.Equal(t, []cdx.Property{{Name: "go.sum", Value: "h1:sum"}}, *(*bom.Components)[1].Properties)
}

func TestSBOM_schema(t *testing.T) {
	schema := schemaOfTheSpecification(t)
	list, err := jsonschema.UnmarshalJSON(bytes.NewReader(exampleSBOM(t)))
	require.NoError(t, err)
	require.NoError(t, schema.Validate(list))

	list.(map[string]any)["components"].([]any)[0].(map[string]any)["type"] = "nonsense"
	require.Error(t, schema.Validate(list), "the schema checks nothing")
}

func TestSBOMOfARealProgram(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	inside, err := inspect(self)
	require.NoError(t, err)
	require.Len(t, inside.sha256, 64)
	var out bytes.Buffer
	require.NoError(t, writeSBOM(&out, inside, exampleRoots, "v3", time.Unix(0, 0)))
	require.Contains(t, out.String(), "pkg:golang/github.com/CycloneDX/cyclonedx-go@v")

	out.Reset()
	require.NoError(t, run([]string{"sbom", "-program", self, "-version", "v3", "-roots=false"}, &out))
	require.Contains(t, out.String(), "pkg:golang/github.com/CycloneDX/cyclonedx-go@v")
	require.NotContains(t, out.String(), "/etc/ssl", "a program outside of an image comes without authorities")
}

func TestRunErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("no program"), 0o600))
	tests := map[string]struct {
		arguments []string
		want      string
	}{
		"nothing to do":       {nil, "usage:"},
		"an unknown command":  {[]string{"licences"}, `"licences" is unknown`},
		"no program":          {[]string{"sbom"}, "-program FILE"},
		"a missing program":   {[]string{"sbom", "-program", "/nowhere"}, "/nowhere"},
		"a file of text":      {[]string{"sbom", "-program", text}, "has no build information"},
		"a time in words":     {[]string{"sbom", "-created", "today"}, "today"},
		"an unknown argument": {[]string{"sbom", "-licences"}, "licences"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.ErrorContains(t, run(test.arguments, &out), test.want)
			require.Empty(t, out.String())
		})
	}
}

func exampleSBOM(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, writeSBOM(&out, example, exampleRoots, "v3", time.Unix(1e9, 0)))
	return out.Bytes()
}

func decode(t *testing.T, data []byte) *cdx.BOM {
	t.Helper()
	bom := &cdx.BOM{}
	require.NoError(t, cdx.NewBOMDecoder(bytes.NewReader(data), cdx.BOMFileFormatJSON).Decode(bom))
	return bom
}

// schemaOfTheSpecification is the schema in the module of the library, with the two that it references.
func schemaOfTheSpecification(t *testing.T) *jsonschema.Schema {
	t.Helper()
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	for name, file := range map[string]string{
		"bom-1.6.schema.json":  "bom-1.6.schema.json",
		"spdx.schema.json":     "spdx.schema.json",
		"jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(folder)), "schema", file))
		require.NoError(t, err)
		schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		require.NoError(t, err)
		require.NoError(t, compiler.AddResource("http://cyclonedx.org/schema/"+name, schema))
	}
	compiled, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	require.NoError(t, err)
	return compiled
}
