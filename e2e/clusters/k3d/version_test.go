package k3d

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAServerThatIsTooOldIsRefused(t *testing.T) {
	for answer, want := range map[string]string{
		`{"gitVersion":"v1.31.5+k3s1"}`:       "its Kubernetes is v1.31.5+k3s1, and has to be 1.34.0-0 or later: choose another image",
		`{"gitVersion":"v1.34.0+k3s1"}`:       "",
		`{"gitVersion":"v1.36.3-rc1+k3s1"}`:   "",
		`{"gitVersion":"what"}`:               "could not parse",
		`Error from server: not ready yet...`: "version of the API server",
	} {
		t.Run(answer, func(t *testing.T) {
			s := newTools(t)
			s.answers["kubectl --kubeconfig"] = answer
			p, err := New(Options{Dir: t.TempDir(), Run: s.run, Least: "1.34.0-0"})
			require.NoError(t, err)
			_, err = p.Create(t.Context(), "hub")
			if want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, `cluster "hub": `)
			require.ErrorContains(t, err, want)
		})
	}
}
