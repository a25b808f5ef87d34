package registration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

var someValues = Values{
	Workspace: "fleet-default", APIServerURL: "https://hub:6443", APIServerCA: "pem\n", Token: "bearer",
	TokenName: "token", SystemRegistrationNamespace: "cattle-fleet-clusters-system",
}

func TestEncodeValues(t *testing.T) {
	data, err := EncodeValues(someValues)
	require.NoError(t, err)
	var keys map[string]string
	require.NoError(t, yaml.Unmarshal(data, &keys), "all are strings")
	assert.Equal(t, map[string]string{
		"clusterNamespace": "fleet-default", "apiServerURL": "https://hub:6443", "apiServerCA": "pem\n", "token": "bearer",
		"tokenName": "token", "systemRegistrationNamespace": "cattle-fleet-clusters-system",
	}, keys)
}

func TestEncodeValuesWithAnotherSystemNamespace(t *testing.T) {
	with := someValues
	with.Internal = &ValuesInternal{SystemNamespace: "elsewhere"}
	data, err := EncodeValues(with)
	require.NoError(t, err)
	assert.Contains(t, string(data), "internal:\n  systemNamespace: elsewhere\n")
}

func TestDecodeValuesErrorsOmitTheText(t *testing.T) {
	for _, data := range []string{"secret-token", "token: [secret-token]", "\tsecret-token: x", "- secret-token", "token: {secret-token: 1}"} {
		_, err := DecodeValues([]byte(data))
		require.Error(t, err, data)
		assert.NotContains(t, err.Error(), "secret-token")
	}
}

func TestDecodeEmptyValues(t *testing.T) {
	for _, data := range []string{"", "null", "{}", "other: key"} {
		values, err := DecodeValues([]byte(data))
		require.NoError(t, err, data)
		assert.Equal(t, Values{}, values)
	}
}

// The decoder would take hundreds of bytes for each element.
func TestDecodeLimitedValues(t *testing.T) {
	const size = 60_000 // less than maxValuesSize
	for name, text := range map[string]string{
		"maps":       "[" + strings.Repeat("{},", size/3) + "]",
		"lists":      "token: [" + strings.Repeat("[],", size/3) + "]",
		"lines":      strings.Repeat("-\n", size/2),
		"keys":       "{" + strings.Repeat("a,", size/2) + "}",
		"an anchor":  "a: &a [" + strings.Repeat("{},", size/3) + "]",
		"one string": "token: " + strings.Repeat("a", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			data := []byte(text)
			allocations := testing.AllocsPerRun(1, func() {
				_, err := DecodeLimitedValues(data, nil)
				assert.EqualError(t, err, "the values are larger than those of a token")
			})
			assert.Less(t, allocations, 100.0)
		})
	}

	t.Run("the CA of the hub is not limited", func(t *testing.T) {
		values := someValues
		certificate := "# Issuer: CN=x, O=y\r\n-----BEGIN CERTIFICATE-----\r\n" + strings.Repeat("YWJj", 400) + "\n-----END CERTIFICATE-----\n"
		values.APIServerCA = strings.Repeat(certificate, 1000)
		data, err := EncodeValues(values)
		require.NoError(t, err)
		decoded, err := DecodeLimitedValues(data, []byte(values.APIServerCA))
		require.NoError(t, err)
		assert.Equal(t, values, decoded)
		_, err = DecodeLimitedValues(data, nil)
		require.Error(t, err)
	})
}

// FuzzDecodeValues requires that nothing panics, and that values that were decoded are decoded again to the same values.
func FuzzDecodeValues(f *testing.F) {
	f.Add([]byte("token: x\napiServerCA: |\n  pem\n"))
	f.Add([]byte(`{"token":"x","internal":{"systemNamespace":"y"}}`))
	f.Add([]byte("&a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := DecodeValues(data)
		if err != nil {
			assert.Equal(t, "the values are not valid YAML, or contain an alias", err.Error())
			return
		}
		again, err := EncodeValues(values)
		require.NoError(t, err)
		back, err := DecodeValues(again)
		require.NoError(t, err)
		assert.Equal(t, values, back)
	})
}
