package evidence

import "regexp"

// secretFields are fields that are credentials or help to get one: with a clientID, a client can request the identity of a cluster, and with
// the clientRandom it knows the name of the answer Secret. content is omitted because it is long.
var secretFields = map[string]bool{"clientID": true, "clientRandom": true, "token": true, "content": true}

// shown is the number of characters of a secret field that are kept, to distinguish two values.
const shown = 4

// redact returns a copy without the values of secret fields, at any depth.
func redact(value any) any {
	switch v := value.(type) {
	case map[string]any:
		copied := make(map[string]any, len(v))
		for key, item := range v {
			text, isText := item.(string)
			if secretFields[key] && isText {
				copied[key] = masked(text)
				continue
			}
			copied[key] = redact(item)
		}
		return copied
	case []any:
		copied := make([]any, len(v))
		for i, item := range v {
			copied[i] = redact(item)
		}
		return copied
	}
	return value
}

func masked(text string) string {
	if len(text) <= 2*shown {
		return "(redacted)"
	}
	return text[:shown] + "... (redacted)"
}

// bearer matches JSON web tokens, such as the tokens of ServiceAccounts.
var bearer = regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`)

// redactText removes tokens from text without fields. Logs and events should not contain any.
func redactText(text string) string { return bearer.ReplaceAllString(text, "(redacted token)") }
