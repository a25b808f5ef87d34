package credential

import (
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// signedWith returns a token with a key ID, issued at a time after now.
func signedWith(t *testing.T, key string, at time.Duration) Token {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"iat": now.Add(at).Unix(), "exp": now.Add(LongLived).Unix()})
	if key != "" {
		token.Header["kid"] = key
	}
	signed, err := token.SignedString([]byte("key"))
	require.NoError(t, err)
	return Token(signed)
}

func TestSigningKeys(t *testing.T) {
	changes := 0
	keys := &SigningKeys{OnChange: func() { changes++ }}
	outdated := func(key string, at time.Duration) bool {
		claims, err := Inspect(signedWith(t, key, at))
		require.NoError(t, err)
		return keys.IsOutdated(claims)
	}
	assert.False(t, outdated("a", 0), "no key is known")
	keys.Observe("no token")
	keys.Observe(signedWith(t, "", 0))
	assert.Equal(t, 0, changes)

	keys.Observe(signedWith(t, "b", time.Hour))
	keys.Observe(signedWith(t, "b", 2*time.Hour))
	assert.Equal(t, 1, changes)
	assert.True(t, outdated("a", 0))
	assert.False(t, outdated("b", 0))
	assert.False(t, outdated("c", 2*time.Hour), "it was issued after the key was seen, so its key may be newer")
	assert.False(t, outdated("", 0))

	keys.Observe(signedWith(t, "c", 3*time.Hour))
	assert.Equal(t, 2, changes)
	assert.True(t, outdated("b", 2*time.Hour))
	for range 3 { // two API servers sign with a key each
		keys.Observe(signedWith(t, "b", 4*time.Hour))
		keys.Observe(signedWith(t, "c", 4*time.Hour))
	}
	assert.Equal(t, 2, changes)
	assert.False(t, outdated("b", 0))
	assert.False(t, outdated("c", 0))
	assert.True(t, outdated("a", 0))

	keys.Observe(signedWith(t, "d", 5*time.Hour))
	assert.Equal(t, 3, changes)
	assert.True(t, outdated("b", 0))
	assert.True(t, outdated("c", 0))

	var none *SigningKeys
	none.Observe(signedWith(t, "a", 0))
	assert.False(t, none.IsOutdated(Claims{KeyID: "a", Issued: now}))
}
