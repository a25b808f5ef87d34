package bundle

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSeveralProblemsAreToldInTheirOrderAndNotWithoutEnd(t *testing.T) {
	require.NoError(t, joined(nil, nil))
	assert.EqualError(t, joined(errors.New("a"), nil, errors.New("b")), "a; b")
	many := make([]error, 12)
	for i := range many {
		many[i] = errors.New("x")
	}
	assert.EqualError(t, joined(many...), strings.Repeat("x; ", 10)+"and 2 more")
}

func TestOneErrorThatPassesIsWorthARetryBesideNamesThatAreTaken(t *testing.T) {
	foreign := &foreignError{"ns", "n"}
	assert.True(t, onlyForeign(joined(foreign, foreign)))
	assert.False(t, onlyForeign(joined(foreign, errors.New("500"))))
	assert.False(t, onlyForeign(errors.New("500")))
	assert.False(t, onlyForeign(nil))
}
