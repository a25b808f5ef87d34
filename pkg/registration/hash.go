package registration

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// StatusHash is the digest under which a Cluster's status remembers a setting: the hexadecimal SHA-224 of its JSON. A
// []byte counts as JSON does, as a base64 string, and nil differs from empty; callers bring "unset" into one form first.
func StatusHash(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("hashing a setting of type %T: %w", v, err)
	}
	sum := sha256.Sum224(data)
	return hex.EncodeToString(sum[:]), nil
}

// CAHash is StatusHash of a CA bundle. An absent and an empty bundle mean the same and hash alike.
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
