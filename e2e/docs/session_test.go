package docs

import (
	"bytes"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func newSession(t *testing.T) (*Session, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	return &Session{Dir: t.TempDir(), Env: os.Environ(), Log: log}, log
}

func TestSessionKeepsVariables(t *testing.T) {
	s, log := newSession(t)
	require.NoError(t, s.Run(t.Context(), Block{Script: "NAME='two words'\n"}))
	require.NoError(t, s.Run(t.Context(), Block{Script: `bash -c 'echo "$NAME"'` + "\n", Prints: []*regexp.Regexp{regexp.MustCompile(`^two words\n$`)}}))
	assert.Equal(t, "two words\n", log.String())
}

func TestSessionReportsTheOutputOfAFailure(t *testing.T) {
	for name, script := range map[string]string{
		"at its end":                        "echo said; false",
		"before its end":                    "echo said; false; true",
		"in a pipe":                         "echo said; false | cat",
		"by a variable that nobody has set": `echo said; echo "$NOBODY"`,
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newSession(t)
			err := s.Run(t.Context(), Block{Page: "docs/p.md", Line: 7, Script: script})
			require.ErrorContains(t, err, "docs/p.md:7")
			require.ErrorContains(t, err, "said\n")
		})
	}
}

func TestSessionChecksTheOutput(t *testing.T) {
	s, _ := newSession(t)
	err := s.Run(t.Context(), Block{Script: "echo this", Prints: []*regexp.Regexp{regexp.MustCompile("this"), regexp.MustCompile("that")}})
	require.ErrorContains(t, err, `must match "that", and is`)
}

func TestSessionTimeout(t *testing.T) {
	sample.Long(t)
	s, _ := newSession(t)
	s.Timeout = 50 * time.Millisecond
	err := s.Run(t.Context(), Block{Script: "read -r < <(sleep 60)"})
	require.ErrorContains(t, err, "deadline exceeded after 50ms")
}
