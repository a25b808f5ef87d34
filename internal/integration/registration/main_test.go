// Package registration tests how clusters come to be registered: tokens, requests, credentials, and what each of them may do.
package registration

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// stage has the verbs of this package.
type stage struct{ *testenv.Stage }

func newStage(t *testing.T, change ...func(*muster.Options)) *stage {
	t.Helper()
	return &stage{testenv.NewStage(t, change...)}
}

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
