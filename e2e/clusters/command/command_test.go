package command

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	output, err := Run(t.Context(), strings.NewReader("input"), "cat")
	require.NoError(t, err)
	require.Equal(t, "input", string(output))
}

func TestRunError(t *testing.T) {
	_, err := Run(t.Context(), nil, "sh", "-c", "echo the reason >&2; exit 3")
	require.ErrorContains(t, err, "exit 3: exit status 3: the reason")
}

func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Run(ctx, nil, "sleep", "300")
	require.ErrorIs(t, err, context.Canceled)
}

func TestBuildOutsideOfTheRepository(t *testing.T) {
	t.Chdir(t.TempDir())
	require.ErrorContains(t, Build(t.Context(), Run, t.TempDir(), "github.com/muster-fleet/muster/e2e/clusters/front"), "inside the repository")
}
