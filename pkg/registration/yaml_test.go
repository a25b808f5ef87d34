package registration

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bomb is a document of 200 kB that takes 10 GB as JSON.
func bomb() []byte {
	return []byte("a: &a " + strings.Repeat("x", 100_000) + "\ntoken: [" + strings.Repeat("*a,", 100_000/3) + "]\n")
}

func TestRefuseAliases(t *testing.T) {
	for name, row := range map[string]struct{ document, says string }{
		"nothing":                  {"", ""},
		"plain":                    {"a: 1\nb: [x, y]\n", ""},
		"JSON":                     {`{"a": "b&c*d"}`, ""},
		"an ampersand in a string": {"server: https://hub/?a=1&b=*\n", ""},
		"an anchor that is unused": {"a: &x 1\n", ""},
		"an alias":                 {"a: &x 1\nb:\n  - c: *x\n", "line 3 has a YAML alias"},
		"a merge":                  {"a: &x {b: 1}\nc:\n  <<: *x\n", "line 3 has a YAML alias"},
		"an alias as a key":        {"a: &x b\n*x : c\n", "line 2 has a YAML alias"},
		"invalid":                  {"a: &secret [\n", "it is not valid YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			err := RefuseAliases([]byte(row.document))
			if row.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, row.says)
			require.NotContains(t, err.Error(), "secret")
		})
	}
	require.Error(t, RefuseAliases(bomb()))
	require.NoError(t, RefuseAliases(bytes.Repeat([]byte("*"), 1000)))
}

func TestDecodeValues_aliases(t *testing.T) {
	_, err := DecodeValues(bomb())
	require.ErrorContains(t, err, "or contain an alias")
}
