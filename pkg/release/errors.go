package release

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// UnsupportedError means that this agent does not support an option or a resource. Nothing was deployed, and a
// retry does not help.
type UnsupportedError struct {
	// Field is the option or file, such as "helm.repo".
	Field string
	// Why is the reason, and what to do instead.
	Why string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is not supported: %s", e.Field, e.Why)
}

// InvalidError means that the resources cannot be deployed as they are, on any cluster. A retry does not help.
type InvalidError struct{ Why string }

func (e *InvalidError) Error() string { return e.Why }

func invalid(format string, args ...any) error {
	return &InvalidError{Why: fmt.Sprintf(format, args...)}
}

// ConflictError means that a Helm release of that name has another owner.
type ConflictError struct{ Namespace, Name, Owner string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("Helm release %s/%s exists and belongs to %s; set helm.releaseName to another name, or helm.takeOwnership to take it over",
		e.Namespace, e.Name, e.Owner)
}

// LeftoverError means that the release is deployed, but objects that only failed attempts created could not be removed. Sweep tries again.
type LeftoverError struct{ Err error }

func (e *LeftoverError) Error() string {
	return fmt.Sprintf("removing what earlier attempts left behind: %v", e.Err)
}

// Unwrap returns the cause.
func (e *LeftoverError) Unwrap() error { return e.Err }

// NamespaceError means that the release is deployed, but its identity may not set the namespaceLabels and namespaceAnnotations of its namespace.
// LabelNamespace tries again.
type NamespaceError struct{ Err error }

func (e *NamespaceError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *NamespaceError) Unwrap() error { return e.Err }

// messageMax bounds the text of an error or a difference in a status.
const messageMax = 1024

// shortened reduces the Status in an error of an API server to its code, its reason and the beginning of its message. A
// status can be as large as an answer, and the errors of many objects are kept until all of them are deleted.
func shortened(err error) error {
	var answer *apierrors.StatusError
	if !errors.As(err, &answer) {
		return err
	}
	status := answer.ErrStatus
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: status.Status, Code: status.Code, Reason: metav1.StatusReason(beginning(string(status.Reason))), Message: beginning(status.Message),
	}}
}

// beginning returns a text that is longer than messageMax bytes cut to that length, with an ellipsis, in memory of its own; a shorter one as it is.
func beginning(text string) string {
	if len(text) <= messageMax {
		return text
	}
	return strings.ToValidUTF8(text[:messageMax], "") + "…"
}

var (
	localPort = regexp.MustCompile(`:\d+->`)
	spaces    = regexp.MustCompile(`\s+`)
)

// Explain formats an error for a status. The text is one bounded line, and equal for equal causes: a text that differs at each attempt would be
// written at each attempt. It contains no values of objects, which may come from a Secret.
func Explain(err error) string {
	text := spaces.ReplaceAllString(localPort.ReplaceAllString(withoutValues(err.Error()), "->"), " ")
	return strings.TrimSpace(beginning(text))
}

// dumped is the beginning of a value of an unexpected type, as structured-merge-diff prints it.
const dumped = "valueUnstructured{Value:"

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

// afterValue returns what follows the brace that closes a value in Go syntax; "" if there is none.
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
