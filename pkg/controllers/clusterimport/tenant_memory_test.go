//go:build !race

// The race detector needs memory of its own for each object, so its build measures something else.

package clusterimport

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/config"
)

// packedRelease returns the Secret of a revision of release shop with that manifest, as JSON.
func packedRelease(t *testing.T, version int, manifest, chart string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"name": "shop", "namespace": "apps", "version": version, "info": map[string]string{"status": "deployed"}, "manifest": manifest,
		"chart": map[string]any{"metadata": map[string]string{"name": "shop"}, "files": []any{map[string]any{"name": "f", "data": []byte(chart)}}},
	})
	require.NoError(t, err)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err = zip.Write(text)
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	release := base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString(packed.Bytes())))
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"sh.helm.release.v1.shop.v%d","namespace":"apps",`+
		`"labels":{"owner":"helm","name":"shop","version":"%d","status":"deployed"}},"data":{"release":"%s"}}`, version, version, release)
}

// longNamesPages is the number of pages of a history whose Secrets have names that are together larger than the limit.
const longNamesPages = 40

// hostileWorkspace answers as many members, each with a path of its own, and each hostile in one way.
type hostileWorkspace struct {
	histories []string // lists of Secrets
	// manyObjects is a history with about as many objects as the limit, of one member.
	manyObjects string
	manyKinds   string
	longNames   string // of a Secret; a part of an answer
	longPages   atomic.Int32
	large       string // more than 4 MiB with fewer values than the limit; a part of an answer
	many        string // about as many values as the limit, which counts the commas too
}

func newHostileWorkspace(t *testing.T) *hostileWorkspace {
	t.Helper()
	list := func(secrets ...string) string {
		return `{"apiVersion":"v1","kind":"SecretList","items":[` + strings.Join(secrets, ",") + `]}`
	}
	objects := func(count int) string {
		var manifest strings.Builder
		for i := range count {
			fmt.Fprintf(&manifest, "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x%d\n", i)
		}
		return manifest.String()
	}
	var kinds strings.Builder
	for i := range 3900 {
		fmt.Fprintf(&kinds, `{"name":"k%d","singularName":"","namespaced":true,"kind":"K%d","verbs":["get","list"]},`, i, i)
	}
	return &hostileWorkspace{
		histories: []string{
			list(packedRelease(t, 1, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x0}\ndata:\n"+strings.Repeat("  - [1,2,3]\n", 15_000), strings.Repeat("x", 9<<20))),
			list(packedRelease(t, 1, "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x"+strings.Repeat("1", 19<<16)+"\n", "")),
			list(packedRelease(t, 1, objects(80), "")),
		},
		manyObjects: list(packedRelease(t, 1, objects(2200), "")),
		manyKinds:   kinds.String(),
		longNames:   strings.Repeat("x", 3<<20),
		large:       strings.Repeat("x", 3<<20),
		many:        strings.Repeat("[],", 49_000) + "[]",
	}
}

func (h *hostileWorkspace) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var n int
	var path string
	if _, err := fmt.Sscanf(r.URL.Path, "/m%d", &n); err != nil {
		http.NotFound(w, r)
		return
	}
	path = strings.TrimPrefix(r.URL.Path, fmt.Sprintf("/m%d", n))
	write := func(format string, args ...any) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, format, args...)
	}
	raw := func(parts ...string) {
		w.Header().Set("Content-Type", "application/json")
		for _, part := range parts {
			_, _ = w.Write([]byte(part))
		}
	}
	agent := "/namespaces/" + system + "/"
	switch {
	case strings.HasSuffix(path, "/namespaces/kube-system"):
		write(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"9a0d6a35-2d0e-4e37-8b53-7f5d1c0a%04d"}}`, n)
	case strings.HasSuffix(path, agent+"secrets/fleet-agent"):
		write(`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"},"data":{"clusterNamespace":"d3M=","clusterName":"bQ=="}}`)
	case r.Method == http.MethodGet && strings.HasSuffix(path, agent+"configmaps/fleet-agent") && n%4 == 3:
		raw(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"},"data":{"a":"`, h.large, `"}}`)
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/pods"):
		write(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)
	case r.Method == http.MethodGet && path == "/api/v1/secrets":
		write(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata",` +
			`"metadata":{"name":"sh.helm.release.v1.shop.v1","namespace":"apps","labels":{"owner":"helm","name":"shop","version":"1","status":"deployed"}}}]}`)
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/namespaces/apps/secrets") && n == 1:
		raw(h.manyObjects)
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/namespaces/apps/secrets") && n == 5:
		h.longPages.Add(1)
		page, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		next := strconv.Itoa(page + 1)
		if page == longNamesPages {
			next = ""
		}
		raw(`{"apiVersion":"v1","kind":"SecretList","metadata":{"continue":"`, next, `"},"items":[{"metadata":{"name":"`, next, h.longNames, `","namespace":"apps"}}]}`)
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/namespaces/apps/secrets"):
		raw(h.histories[n%len(h.histories)])
	case path == "/api":
		write(`{"kind":"APIVersions","versions":["v1"]}`)
	case path == "/apis":
		write(`{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	case path == "/api/v1":
		raw(`{"kind":"APIResourceList","groupVersion":"v1","resources":[`, h.manyKinds, `{"name":"configmaps","kind":"ConfigMap","namespaced":true}]}`)
	case r.Method == http.MethodGet && strings.Contains(path, "/configmaps/x"):
		if strings.HasSuffix(path, "/x10") {
			raw(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"annotations":{"meta.helm.sh/release-name":"shop","meta.helm.sh/release-namespace":"apps"}},"x":[`, h.many, `]}`)
			return
		}
		raw(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"annotations":{"meta.helm.sh/release-name":"shop","meta.helm.sh/release-namespace":"apps"}}}`)
	case r.Method == http.MethodDelete && strings.Contains(path, "/configmaps/x"):
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		raw(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"`, h.large[:64<<10], `"}`)
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/namespaces/"+system): // the first request of an import
		raw(`{"kind":"List","apiVersion":"v1","items":[`, h.many, `]}`)
	case r.Method == http.MethodDelete:
		write(`{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		raw(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
}

// A tenant has all the calls that the hub permits for one workspace, to members that answer with all that the hub accepts.
func TestHostileMembersOfAWorkspace(t *testing.T) {
	sample.Long(t)
	const limit = 50 << 20
	hostile := newHostileWorkspace(t)
	server := serve(t, hostile.ServeHTTP)
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
						return m.install(ctx, imported.installPlan, imported.objects)
					}
					u := removal{member: m, cluster: deletedCluster(), namespaces: []string{system}, releases: m.openReleases}
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
	assert.Contains(t, all.String(), "import MemberError: installing Namespace ", "the first request of an import was answered")
	assert.Positive(t, hostile.longPages.Load())
}
