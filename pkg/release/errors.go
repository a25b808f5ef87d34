package release

import (
	"fmt"
	"regexp"
	"strings"
)

// UnsupportedError says that the options or the resources ask for something this agent does not do. Nothing was deployed,
// and trying again is of no use until somebody changes what it names.
type UnsupportedError struct {
	// Field is what asks for it, as a person wrote it: "helm.repo".
	Field string
	// Why says what to do instead.
	Why string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is not supported: %s", e.Field, e.Why)
}

// InvalidError says that the resources cannot be deployed as they are, whatever the cluster. Trying again is of no use.
type InvalidError struct{ Why string }

func (e *InvalidError) Error() string { return e.Why }

func invalid(format string, args ...any) error {
	return &InvalidError{Why: fmt.Sprintf(format, args...)}
}

// ConflictError says that a Helm release of that name is not this deployment's.
type ConflictError struct{ Namespace, Name, Owner string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("Helm release %s/%s exists and belongs to %s; set helm.releaseName to another name, or helm.takeOwnership to take it over",
		e.Namespace, e.Name, e.Owner)
}

// LeftoverError says that the release is what was asked for, but that something could not be removed that attempts before it had
// made. Sweep removes it.
type LeftoverError struct{ Err error }

func (e *LeftoverError) Error() string {
	return fmt.Sprintf("removing what earlier attempts left behind: %v", e.Err)
}

// Unwrap is why.
func (e *LeftoverError) Unwrap() error { return e.Err }

// messageMax bounds what of an error is shown on an object.
const messageMax = 1024

var (
	localPort = regexp.MustCompile(`:\d+->`)
	spaces    = regexp.MustCompile(`\s+`)
)

// Explain is the text of an error for a status: of one line, bounded, and the same each time for the same cause, because a
// status that changes with every attempt would be written with every attempt. It shows no values of objects: they may be
// of a Secret.
func Explain(err error) string {
	text := spaces.ReplaceAllString(localPort.ReplaceAllString(withoutValues(err.Error()), "->"), " ")
	if len(text) > messageMax {
		text = strings.ToValidUTF8(text[:messageMax], "") + "…"
	}
	return strings.TrimSpace(text)
}

// dumped is how the library that compares objects shows a value it did not expect.
const dumped = "valueUnstructured{Value:"

// withoutValues hides the values in a text.
func withoutValues(text string) string {
	var shown strings.Builder
	for {
		before, after, found := strings.Cut(text, dumped)
		shown.WriteString(before)
		if !found {
			return shown.String()
		}
		shown.WriteString(dumped + "(hidden)}")
		text = afterValue(after)
	}
}

// afterValue is what follows the brace that closes a value written as Go source; nothing when there is none.
func afterValue(text string) string {
	depth, quoted, escaped := 1, false, false
	for i, r := range text {
		switch {
		case escaped:
			escaped = false
		case quoted:
			escaped, quoted = r == '\\', r != '"'
		case r == '"':
			quoted = true
		case r == '{':
			depth++
		case r == '}':
			if depth--; depth == 0 {
				return text[i+1:]
			}
		}
	}
	return ""
}
