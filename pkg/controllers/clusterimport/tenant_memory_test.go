//go:build !race

// The race detector needs memory of its own for each object, so its build measures something else.

package clusterimport

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/internal/testenv/hostile"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/config"
)

// A tenant has all the calls that the hub permits for one workspace, to members that answer with all that the hub accepts.
func TestHostileMembersOfAWorkspace(t *testing.T) {
	sample.Long(t)
	const limit = 50 << 20
	workspace, err := hostile.New("ws", func(int) string { return "m" })
	require.NoError(t, err)
	server := serve(t, workspace.ServeHTTP)
	large := semaphore.NewWeighted(largeResponses)
	connect := func(n int) *memberClient {
		kubeconfig := with(t, func(c *clientcmdapi.Config) {
			to(server)(c)
			c.Clusters["cluster"].Server += fmt.Sprintf("/m%d", n)
		})
		parsed, err := parseKubeconfig(kubeconfigSecret(kubeconfig))
		require.NoError(t, err)
		m, err := newMemberClient(parsed, config.TLSModeStrict, loopback, large)
		require.NoError(t, err)
		return m
	}
	var calls memberCalls
	var failures sync.Map
	imported := wholePlan(t)
	grown := heap.Growth(func() {
		var running sync.WaitGroup
		for n := range firstPerWorkspace + retriesPerWorkspace + removalsPerWorkspace {
			m := connect(n)
			running.Go(func() {
				failed := calls.onMember(t.Context(), m, "ws", calls.members.shared, func(ctx context.Context) *failure {
					if n >= removalsPerWorkspace {
						_, problem := m.install(ctx, imported.installPlan, imported.objects)
						return problem
					}
					u := removal{member: m, cluster: deletedCluster(), namespaces: []string{system}, releases: m.openReleases, deployments: deploymentsOf()}
					return u.run(ctx)
				})
				text := "none"
				if failed != nil {
					text = failed.reason + ": " + strings.ReplaceAll(failed.message, fmt.Sprintf("/m%d:", n), "/m:")
				}
				kind := "import"
				if n < removalsPerWorkspace {
					kind = fmt.Sprintf("removal %d", n%12)
				}
				failures.Store(kind+" "+text, true)
			})
		}
		running.Wait()
	})
	var all strings.Builder
	failures.Range(func(key, _ any) bool { fmt.Fprintln(&all, key); return true })
	t.Log(all.String())
	t.Logf("the heap grew by %d MiB", grown>>20)
	assert.Less(t, grown, limit)
	assert.Regexp(t, "removal [0-9]+ Forbidden: removing what the agent deployed at ", all.String(), "the objects of a history were read and deleted")
	assert.Regexp(t, "removal [0-9]+ MemberError: removing what the agent deployed at .* 431", all.String(), "the object with a long name was read")
	assert.Regexp(t, "import MemberError: installing Namespace .* is not a Kubernetes API server", all.String(), "the answer to the first object of an import was read")
	assert.Positive(t, workspace.LongPages())
}
