package credential

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The claims of a token are untrusted input: another user may have written its Secret.
func FuzzInspect(f *testing.F) {
	for _, token := range []string{
		"", ".", "..", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9.c2ln",
		"eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjFlMzA4LCJpYXQiOi0xfQ.", "Bearer eyJhbGciOiJSUzI1NiJ9.e30.x", "eyJhbGciOiJSUzI1NiJ9.bnVsbA.",
	} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, text string) {
		claims, err := Inspect(Token(text))
		if err != nil {
			assert.Equal(t, Claims{}, claims)
			if len(text) > 40 {
				assert.NotContains(t, err.Error(), text)
			}
			return
		}
		again, err := Inspect(Token(text))
		require.NoError(t, err)
		assert.Equal(t, claims, again)
		assert.False(t, claims.ServesUntil(claims.UID+"x", time.Now()), "it is of another ServiceAccount")
	})
}

func FuzzInspectClaims(f *testing.F) {
	f.Add("cluster-ns", "request-1", "5a1f", int64(1_800_000_000))
	f.Add("", "", "", int64(0))
	f.Add("a", "b", "c", int64(-1))
	f.Fuzz(func(t *testing.T, namespace, account, uid string, expires int64) {
		const last = 253402300799 // the year 9999; nothing is issued for longer
		if len(validation.IsDNS1123Subdomain(account)) > 0 || len(validation.IsDNS1123Label(namespace)) > 0 || expires <= 0 || expires > last {
			return
		}
		kubernetes := map[string]any{"namespace": namespace, "serviceaccount": map[string]any{"name": account, "uid": uid}}
		signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"exp": expires, "kubernetes.io": kubernetes}).SignedString([]byte("key"))
		require.NoError(t, err)
		claims, err := Inspect(Token(signed))
		require.NoError(t, err)
		assert.Equal(t, namespace+"/"+account, claims.Namespace+"/"+claims.ServiceAccount)
		assert.Equal(t, expires, claims.Expires.Unix())
		assert.True(t, claims.ServesUntil(claims.UID, time.Unix(expires-1, 0)))
		assert.False(t, claims.ServesUntil(claims.UID, time.Unix(expires, 0)))
	})
}

// No verb, width or flag shows a token, and no encoder does.
func FuzzTokenIsNotPrinted(f *testing.F) {
	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q", "%x", "%X", "%d", "%10.3s", "%-5v", "%T", "%t", "%e", "%c", "%U", "%[1]s"} {
		f.Add(verb)
	}
	const secret = "MARKER-7f3a"
	f.Fuzz(func(t *testing.T, format string) {
		for _, held := range []any{Token(secret), []Token{secret}, map[string]Token{"a": secret}, struct{ T Token }{secret}} {
			printed := fmt.Sprintf(format, held)
			assert.NotContains(t, printed, secret)
			assert.NotContains(t, printed, fmt.Sprintf("%x", secret))
			assert.NotContains(t, printed, fmt.Sprintf("%X", secret))
		}
		data, err := json.Marshal(map[string]any{format: Token(secret)})
		require.NoError(t, err)
		assert.NotContains(t, string(data), secret)
	})
}
