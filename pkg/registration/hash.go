package registration

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// StatusHash is the digest of a setting in a Cluster's status: the hexadecimal SHA-224 of its JSON. JSON encodes a []byte as a base64
// string, and distinguishes nil from empty; callers normalise unset values first.
func StatusHash(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("hashing a setting of type %T: %w", v, err)
	}
	sum := sha256.Sum224(data)
	return hex.EncodeToString(sum[:]), nil
}

// CAHash is StatusHash of a CA bundle. An absent and an empty bundle have the same hash.
func CAHash(pem []byte) string {
	if len(pem) == 0 {
		pem = nil
	}
	hash, err := StatusHash(pem)
	if err != nil {
		panic(err) // bytes always marshal
	}
	return hash
}

// IsCABundle reports whether a CA bundle has a certificate that TLS connections can use. Like them, it skips blocks of other types, and blocks
// with headers.
func IsCABundle(pem []byte) bool { return x509.NewCertPool().AppendCertsFromPEM(pem) }
