package controlplane

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTestsOfABinaryShareAControlPlaneByName(t *testing.T) {
	require.Same(t, Shared(t, "plane"), Shared(t, "plane", func(o *Options) { o.Name = "plane" }))
	require.Contains(t, shared.planes, "plane")
}

func TestConcurrentFirstUsersGetTheSameAnswer(t *testing.T) {
	s := &sharedPlanes{planes: map[string]*sharedPlane{}}
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = s.get(Options{Name: "broken", Binaries: "/nowhere"})
		})
	}
	wg.Wait()
	require.ErrorContains(t, errs[0], "/nowhere/etcd")
	for _, err := range errs {
		require.Same(t, errs[0], err, "started once for all")
	}
	require.NoError(t, s.stop(), "what never started is not stopped")
	require.Empty(t, s.planes)
}

func TestStoppingTheSharedOnesStopsThem(t *testing.T) {
	s := &sharedPlanes{planes: map[string]*sharedPlane{}}
	plane, err := s.get(Options{Name: "stopped"})
	require.NoError(t, err)
	pids := pidsOf(plane)
	require.NoError(t, s.stop())
	requireGone(t, pids...)
}
