package credential

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const secret = "c2VjcmV0"

func TestTokenIsNotPrinted(t *testing.T) {
	token := Token(secret)
	inside := Issued{Token: token}
	// Not %p and %w, for which fmt asks no type; go vet, which runs with every test, refuses both.
	for _, verb := range "vtbcoOqxXUeEfFgGsdkz" {
		for _, flags := range []string{"", "+", "#", "-40", "040", " ", ".3"} {
			format := "%" + flags + string(verb)
			for _, printed := range []any{token, &token, inside, &inside, []Token{token}, map[string]Token{"k": token}, any(token)} {
				assert.NotContains(t, fmt.Sprintf(format, printed), secret[:4], "%s of %T", format, printed)
				assert.NotContains(t, fmt.Sprintf(format, printed), fmt.Sprintf("%x", secret[:4]), "%s of %T", format, printed)
			}
		}
	}
	assert.Equal(t, "[redacted]", fmt.Sprint(token))
	assert.Equal(t, "[redacted]", fmt.Sprintf("%#v", token))
	assert.Equal(t, "[redacted]", fmt.Sprintf("%q", token))
	assert.Equal(t, secret, token.Reveal())
}

func TestTokenIsNotEncoded(t *testing.T) {
	data, err := json.Marshal(map[string]any{"token": Token(secret), "issued": Issued{Token: secret}})
	require.NoError(t, err)
	assert.NotContains(t, string(data), secret)
	assert.Contains(t, string(data), `"token":"[redacted]"`)

	document, err := yaml.Marshal(Issued{Token: secret})
	require.NoError(t, err)
	assert.NotContains(t, string(document), secret)
}

func TestTokenIsNotLogged(t *testing.T) {
	for _, formatter := range []logrus.Formatter{&logrus.TextFormatter{}, &logrus.JSONFormatter{}} {
		var out bytes.Buffer
		log := logrus.New()
		log.Out, log.Formatter = &out, formatter
		log.WithField("token", Token(secret)).WithField("issued", Issued{Token: secret}).
			WithError(errors.New("x")).Errorf("%s %v %+v", Token(secret), Token(secret), Issued{Token: secret})
		assert.NotContains(t, out.String(), secret)
		assert.Contains(t, out.String(), "[redacted]")
	}
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "token", Token(secret))
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "token", Token(secret))
	assert.NotContains(t, out.String(), secret)
}

// signed returns a token as an API server issues it. Its signature is not verified.
func signed(t *testing.T, claims jwt.MapClaims) Token {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("key"))
	require.NoError(t, err)
	return Token(text)
}

func bound(t *testing.T, uid string, expires time.Time) Token {
	t.Helper()
	return signed(t, jwt.MapClaims{
		"exp": expires.Unix(), "aud": []string{"https://kubernetes.default.svc"},
		"kubernetes.io": map[string]any{"namespace": "ns", "serviceaccount": map[string]any{"name": "account", "uid": uid}},
	})
}

func legacy(t *testing.T, uid string) Token {
	t.Helper()
	return signed(t, jwt.MapClaims{
		"kubernetes.io/serviceaccount/namespace":            "ns",
		"kubernetes.io/serviceaccount/service-account.name": "account",
		"kubernetes.io/serviceaccount/service-account.uid":  uid,
	})
}

func TestInspect(t *testing.T) {
	expires := time.Unix(2_000_000_000, 0)
	claims, err := Inspect(bound(t, "uid", expires))
	require.NoError(t, err)
	assert.Equal(t, Claims{Namespace: "ns", ServiceAccount: "account", UID: "uid", Expires: expires}, claims)

	claims, err = Inspect(legacy(t, "uid"))
	require.NoError(t, err)
	assert.Equal(t, Claims{Namespace: "ns", ServiceAccount: "account", UID: "uid"}, claims)
}

func TestInspectErrorsOmitTheToken(t *testing.T) {
	for _, token := range []Token{"", "text", "a.b", "a.b.c", "....", "secretpart.secretpart.secretpart", "e30.c2VjcmV0cGFydA.x"} {
		_, err := Inspect(token)
		require.ErrorContains(t, err, "not a ServiceAccount token", token.Reveal())
		assert.NotContains(t, err.Error(), "secretpart")
	}
}

func TestClaimsServesUntil(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, row := range []struct {
		name   string
		claims Claims
		serves bool
	}{
		{"one that lives on", Claims{UID: "uid", Expires: now.Add(time.Second)}, true},
		{"one without an end", Claims{UID: "uid"}, true},
		{"one that ends now", Claims{UID: "uid", Expires: now}, false},
		{"one that has ended", Claims{UID: "uid", Expires: now.Add(-time.Second)}, false},
		{"one of the ServiceAccount before", Claims{UID: "old"}, false},
		{"one of nobody", Claims{}, false},
	} {
		assert.Equal(t, row.serves, row.claims.ServesUntil("uid", now), row.name)
	}
}
