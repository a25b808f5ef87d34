// Package credential issues and inspects the ServiceAccount credentials of agents.
package credential

import (
	"fmt"
	"io"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Token is a bearer token. It prints as "[redacted]" whatever verb prints it, so that no log line, error or event can
// carry it by accident; only Reveal gives the value. fmt does not ask the type for %p and %w, which go vet refuses, nor in
// unexported fields, so a struct that may be printed keeps its Token in an exported one.
type Token string

const redacted = "[redacted]"

// Reveal returns the value, for the one place that stores or sends it.
func (t Token) Reveal() string { return string(t) }

// String hides the value.
func (t Token) String() string { return redacted }

// Format hides the value from every verb; with String alone, a wrong one such as %d would print it.
func (t Token) Format(out fmt.State, _ rune) { _, _ = io.WriteString(out, redacted) }

// MarshalText hides the value from encoders; a Secret is built from Reveal.
func (t Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Claims is what a ServiceAccount token says of itself. It is not verified: the hub only uses it to recognise tokens it
// issued itself.
type Claims struct {
	// Namespace, ServiceAccount and UID are of the ServiceAccount. A ServiceAccount that was deleted and created again has
	// another UID, and the API server refuses the old token.
	Namespace      string
	ServiceAccount string
	UID            string
	// Expires is the end of the token's life; zero for one that has none, as those of token Secrets.
	Expires time.Time
	// Issued is when the API server issued the token, by its own clock; zero where the token does not say.
	Issued time.Time
}

type boundClaims struct {
	jwt.RegisteredClaims
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
	LegacyNamespace string `json:"kubernetes.io/serviceaccount/namespace"`
	LegacyName      string `json:"kubernetes.io/serviceaccount/service-account.name"`
	LegacyUID       string `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// Inspect reads the claims of a ServiceAccount token of either kind, bound (TokenRequest) or legacy (token Secret).
func Inspect(token Token) (Claims, error) {
	var c boundClaims
	if _, _, err := jwt.NewParser().ParseUnverified(token.Reveal(), &c); err != nil {
		return Claims{}, fmt.Errorf("not a ServiceAccount token: %w", err)
	}
	claims := Claims{
		Namespace:      firstOf(c.Kubernetes.Namespace, c.LegacyNamespace),
		ServiceAccount: firstOf(c.Kubernetes.ServiceAccount.Name, c.LegacyName),
		UID:            firstOf(c.Kubernetes.ServiceAccount.UID, c.LegacyUID),
	}
	if c.ExpiresAt != nil {
		claims.Expires = c.ExpiresAt.Time
	}
	if c.IssuedAt != nil {
		claims.Issued = c.IssuedAt.Time
	}
	return claims, nil
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Lifetime is how long the token was issued for; 0 for one that has no end, or does not say when it began.
func (c Claims) Lifetime() time.Duration {
	if c.Expires.IsZero() || c.Issued.IsZero() {
		return 0
	}
	return c.Expires.Sub(c.Issued)
}

// ServesUntil says whether the token is one of the ServiceAccount with that UID and still good at the given moment.
func (c Claims) ServesUntil(uid string, moment time.Time) bool {
	return c.UID == uid && (c.Expires.IsZero() || c.Expires.After(moment))
}
