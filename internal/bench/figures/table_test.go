package figures

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the texts that the tests expect")

// golden holds a text against a file of testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), text, "when this is meant: go test -rewrite")
}

func TestTheTable(t *testing.T) {
	limits := parsed(t, `{targets: {storm/rate: {atLeast: 48}, storm/writes: {atMost: 15}, storm/failed: {atMost: 0}}}`).Targets
	var out bytes.Buffer
	require.NoError(t, Table(&out, []Figure{
		{Row: "storm/rate", Title: "registrations a second", Value: 51.234, Unit: "1/s", Kind: Time, MoreIsBetter: true},
		{Row: "storm/writes", Title: "writes for each", Value: 16.51, Kind: Count, Note: "create roles 3.00"},
		{Row: "storm/failed", Title: "requests that failed", Value: 0, Kind: Count},
		{Row: "storm/memory", Title: "most memory", Value: 133.1, Unit: "MiB", Kind: Size},
		{Row: "machine", Title: "not in the table", Kind: Text, Note: "two CPUs"},
	}, limits))
	golden(t, "table.txt", out.String())
}

func TestNumbersHaveThreeDigitsThatSaySomething(t *testing.T) {
	for want, value := range map[string]float64{"0": 0, "0.50": .5, "7": 7, "9.87": 9.871, "16.5": 16.51, "133": 133.1, "-2.50": -2.5, "12346": 12345.6} {
		assert.Equal(t, want, number(value), "%v", value)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no paper") }

func TestATableThatCannotBeWrittenIsAnError(t *testing.T) {
	require.ErrorContains(t, Table(broken{}, []Figure{{Row: "a", Note: "n", Kind: Text}}, nil), "no paper")
	require.ErrorContains(t, ChangeTable(broken{}, nil), "no paper")
}
