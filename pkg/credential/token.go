// Package credential issues and inspects the ServiceAccount credentials of agents.
package credential

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Token is a bearer token. Every verb prints it as "[redacted]", so that no log line, error or event contains it by accident;
// only Reveal returns the value. fmt does not call the methods for %p and %w, which go vet refuses, nor for unexported
// fields: a struct that may be printed must have its Token in an exported field.
type Token string

const redacted = "[redacted]"

// Reveal returns the value. Call it only where the token is stored or sent.
func (t Token) Reveal() string { return string(t) }

// String hides the value.
func (t Token) String() string { return redacted }

// Format hides the value from every verb; with String alone, %d would print it.
func (t Token) Format(out fmt.State, _ rune) { _, _ = io.WriteString(out, redacted) }

// MarshalText hides the value from encoders; a Secret is built from Reveal.
func (t Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Claims are the unverified claims of a ServiceAccount token. The hub uses them only to recognise tokens that it issued itself, and an agent only
// to renew its own token.
type Claims struct {
	// Namespace, ServiceAccount and UID identify the ServiceAccount. After it was deleted and created again it has another UID,
	// and the API server refuses the old token.
	Namespace      string
	ServiceAccount string
	UID            string
	// Expires is zero for a token that does not expire, such as one of a token Secret.
	Expires time.Time
	// Issued is the time of issue by the API server's clock; zero if the token has none.
	Issued time.Time
	// CredentialID is the credential ID that an API server from Kubernetes 1.30 on gives the token, in the extra of its user; empty if the token
	// has no ID.
	CredentialID string
	// KeyID names the key with which the API server has signed the token; empty if the token does not say it.
	KeyID string
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
	parsed, _, err := jwt.NewParser().ParseUnverified(token.Reveal(), &c)
	if err != nil {
		return Claims{}, fmt.Errorf("not a ServiceAccount token: %w", err)
	}
	claims := Claims{
		Namespace:      cmp.Or(c.Kubernetes.Namespace, c.LegacyNamespace),
		ServiceAccount: cmp.Or(c.Kubernetes.ServiceAccount.Name, c.LegacyName),
		UID:            cmp.Or(c.Kubernetes.ServiceAccount.UID, c.LegacyUID),
	}
	if c.ID != "" {
		claims.CredentialID = "JTI=" + c.ID
	}
	claims.KeyID, _ = parsed.Header["kid"].(string)
	if c.ExpiresAt != nil {
		claims.Expires = c.ExpiresAt.Time
	}
	if c.IssuedAt != nil {
		claims.Issued = c.IssuedAt.Time
	}
	return claims, nil
}

// Lifetime is the time between issue and expiry; 0 if the token lacks one of them.
func (c Claims) Lifetime() time.Duration {
	if c.Expires.IsZero() || c.Issued.IsZero() {
		return 0
	}
	return c.Expires.Sub(c.Issued)
}

// ServesUntil reports whether the token belongs to the ServiceAccount with that UID and has not expired at the given moment.
func (c Claims) ServesUntil(uid string, moment time.Time) bool {
	return c.UID == uid && (c.Expires.IsZero() || c.Expires.After(moment))
}
