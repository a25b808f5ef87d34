package evidence

import "regexp"

// secretFields are fields of objects that are credentials, or by which one could be guessed: who knows the identity of a
// cluster can ask to be it, and with the random part the name of its Secret is known. Contents and resources are as long as
// they are uninteresting.
var secretFields = map[string]bool{"clientID": true, "clientRandom": true, "token": true, "content": true}

// shown is how much of a secret field is left, to tell two of them apart.
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

// bearer is a JSON web token, which is what tokens of ServiceAccounts are.
var bearer = regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`)

// redactText is for text with no fields: nothing should write a token there, and if something does, it stops here.
func redactText(text string) string { return bearer.ReplaceAllString(text, "(redacted token)") }
