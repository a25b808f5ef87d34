package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the picture that the test expects")

func charts() []Chart {
	return []Chart{
		{Title: "Memory of the hub", X: "clusters", Y: "MiB", Lines: []Line{
			{Name: "most", Points: []Point{{100, 88}, {300, 96}, {1000, 118}, {3000, 190}, {10000, 390}}},
			{Name: "at rest", Points: []Point{{100, 60}, {300, 66}, {1000, 91}, {3000, 150}, {10000, 310}}},
		}},
		{Title: "CPU of one more registration", X: "clusters", Y: "ms", Lines: []Line{{Points: []Point{{100, 8.5}, {300, 8.2}, {1000, 8.8}}}}},
		{Title: "Requests of an idle hub", X: "clusters", Y: "in 10 s", Lines: []Line{{Points: []Point{{100, 0}, {300, 0}, {1000, 0}}}}},
	}
}

func TestDraw(t *testing.T) {
	drawn, err := Draw(charts())
	require.NoError(t, err)
	again, err := Draw(charts())
	require.NoError(t, err)
	assert.Equal(t, string(drawn), string(again))

	golden := filepath.Join("testdata", "charts.svg")
	if *rewrite {
		require.NoError(t, os.WriteFile(golden, drawn, 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(drawn), "if the change is intended: go test -rewrite")
}

func TestDrawErrors(t *testing.T) {
	for name, test := range map[string]struct {
		charts []Chart
		says   string
	}{
		"no charts":              {nil, "there are no charts"},
		"a line that goes back":  {[]Chart{{Title: "c", Lines: []Line{{Name: "l", Points: []Point{{2, 1}, {1, 1}}}}}}, `chart "c": line "l" does not go from left to right`},
		"a line without a point": {[]Chart{{Title: "c", Lines: []Line{{Name: "l"}}}}, `chart "c": line "l" has no points`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Draw(test.charts)
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "picture.svg")
	require.NoError(t, run(strings.NewReader(`[{"title":"a chart","x":"clusters","y":"MiB","lines":[{"points":[{"x":1,"y":2},{"x":2,"y":3}]}]}]`), file))
	picture, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(picture), "a chart")
	require.ErrorContains(t, run(strings.NewReader("no charts"), file), "reading charts")
}
