// Package hostile simulates the members of a tenant who wants the hub to use as much memory and time as it permits. Their Helm histories, objects,
// errors and lists of kinds are as large as the hub accepts.
package hostile

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// ManyObjects is the number of the member whose history has about as many objects as the hub accepts.
	ManyObjects = 1
	// LongNames is the number of the member whose history has many pages of Secrets with names that are together larger than the limit.
	LongNames = 5
	// longNamesPages is the number of these pages.
	longNamesPages = 40
)

// Workspace answers as the API servers of many members. Member 7 is at the path /m7.
type Workspace struct {
	// Namespace is the workspace of the Clusters, and ClusterName returns the name of the Cluster to which the agent on a member belongs.
	Namespace   string
	ClusterName func(member int) string
	// Stalls lets two of three imports stall: an answer that grows by one byte at a time, and an answer without an end.
	Stalls bool

	histories   []string // lists of Secrets
	manyObjects string
	manyKinds   string // a part of an answer
	large       string // more than half of the largest answer, with few values; a part of an answer
	many        string // about as many values as the limit, which counts the commas too
	// largeAgent and manyAgent are the same for the objects of an agent, of which the hub reads less.
	largeAgent, manyAgent string

	ended     chan struct{}
	end       sync.Once
	imports   sync.Map // the members that have got the first object of an import
	removals  sync.Map // the members that have been asked whose agent they have
	open      atomic.Int64
	longPages atomic.Int64
}

// New prepares the answers.
func New(namespace string, clusterName func(member int) string) (*Workspace, error) {
	var kinds strings.Builder
	for i := range 3900 {
		fmt.Fprintf(&kinds, `{"name":"k%d","singularName":"","namespaced":true,"kind":"K%d","verbs":["get","list"]},`, i, i)
	}
	w := &Workspace{
		Namespace: namespace, ClusterName: clusterName, ended: make(chan struct{}), manyKinds: kinds.String(),
		large: strings.Repeat("x", 3<<20), many: strings.Repeat("[],", 49_000) + "[]",
		largeAgent: strings.Repeat("x", 500<<10), manyAgent: strings.Repeat("[],", 24_000) + "[]",
	}
	for _, history := range []struct{ manifest, chart string }{
		{"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x0}\ndata:\n" + strings.Repeat("  - [1,2,3]\n", 15_000), strings.Repeat("x", 9<<20)},
		{"---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x" + strings.Repeat("1", 19<<16) + "\n", ""},
		{objects(80), ""},
		{objects(2200), ""},
	} {
		secret, err := packedRelease(history.manifest, history.chart)
		if err != nil {
			return nil, err
		}
		w.histories = append(w.histories, `{"apiVersion":"v1","kind":"SecretList","items":[`+secret+`]}`)
	}
	last := len(w.histories) - 1
	w.histories, w.manyObjects = w.histories[:last], w.histories[last]
	return w, nil
}

// objects returns a manifest.
func objects(count int) string {
	var manifest strings.Builder
	for i := range count {
		fmt.Fprintf(&manifest, "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x%d\n", i)
	}
	return manifest.String()
}

// packedRelease returns the Secret of the only revision of release shop, as JSON.
func packedRelease(manifest, chart string) (string, error) {
	text, err := json.Marshal(map[string]any{
		"name": "shop", "namespace": "apps", "version": 1, "info": map[string]string{"status": "deployed"}, "manifest": manifest,
		"chart": map[string]any{"metadata": map[string]string{"name": "shop"}, "files": []any{map[string]any{"name": "f", "data": []byte(chart)}}},
	})
	if err != nil {
		return "", err
	}
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if _, err := zip.Write(text); err != nil {
		return "", err
	}
	if err := zip.Close(); err != nil {
		return "", err
	}
	release := base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString(packed.Bytes())))
	return `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"sh.helm.release.v1.shop.v1","namespace":"apps",` +
		`"labels":{"owner":"helm","name":"shop","version":"1","status":"deployed"}},"data":{"release":"` + release + `"}}`, nil
}

// End ends the answers that stall. From then on the members have no releases and answer at once, so that the Clusters can be removed.
func (w *Workspace) End() { w.end.Do(func() { close(w.ended) }) }

func (w *Workspace) hasEnded() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// Imports is the number of members that have got the first object of an import.
func (w *Workspace) Imports() int { return length(&w.imports) }

// Removals is the number of members whose removal has begun.
func (w *Workspace) Removals() int { return length(&w.removals) }

func length(set *sync.Map) (n int) {
	set.Range(func(any, any) bool { n++; return true })
	return n
}

// Open is the number of requests that are not answered yet.
func (w *Workspace) Open() int { return int(w.open.Load()) }

// LongPages is the number of pages with long names that have been read.
func (w *Workspace) LongPages() int { return int(w.longPages.Load()) }

const agentSecret = "/secrets/fleet-agent"

// ServeHTTP implements http.Handler.
func (w *Workspace) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.open.Add(1)
	defer w.open.Add(-1)
	var member int
	if _, err := fmt.Sscanf(r.URL.Path, "/m%d/", &member); err != nil {
		http.NotFound(out, r)
		return
	}
	path := strings.TrimPrefix(r.URL.Path, fmt.Sprintf("/m%d", member))
	isGet, hasEnded := r.Method == http.MethodGet, w.hasEnded()
	const owned = `"metadata":{"annotations":{"meta.helm.sh/release-name":"shop","meta.helm.sh/release-namespace":"apps"}}`
	switch {
	case strings.HasSuffix(path, "/namespaces/kube-system"):
		reply(out, fmt.Sprintf(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"9a0d6a35-2d0e-4e37-8b53-7f5d1c0a%04d"}}`, member))
	case r.Method == http.MethodPatch && strings.HasPrefix(path, "/api/v1/namespaces/"):
		w.imports.Store(member, true)
		w.answerImport(out, r, member)
	case isGet && strings.HasSuffix(path, agentSecret):
		w.removals.Store(member, true)
		encoded := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
		reply(out, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"},"data":{"clusterNamespace":"`, encoded(w.Namespace),
			`","clusterName":"`, encoded(w.ClusterName(member)), `"}}`)
	case isGet && strings.HasSuffix(path, "/configmaps/fleet-agent") && member%4 == 3 && !hasEnded:
		reply(out, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"},"data":{"a":"`, w.largeAgent, `"}}`)
	case isGet && strings.HasSuffix(path, "/pods"):
		reply(out, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)
	case isGet && path == "/api/v1/secrets" && hasEnded:
		reply(out, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[]}`)
	case isGet && path == "/api/v1/secrets":
		reply(out, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata",`,
			`"metadata":{"name":"sh.helm.release.v1.shop.v1","namespace":"apps","labels":{"owner":"helm","name":"shop","version":"1","status":"deployed"}}}]}`)
	case isGet && strings.HasSuffix(path, "/namespaces/apps/secrets"):
		w.answerHistory(out, r, member)
	case path == "/api":
		reply(out, `{"kind":"APIVersions","versions":["v1"]}`)
	case path == "/apis":
		reply(out, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	case path == "/api/v1":
		reply(out, `{"kind":"APIResourceList","groupVersion":"v1","resources":[`, w.manyKinds, `{"name":"configmaps","kind":"ConfigMap","namespaced":true}]}`)
	case isGet && strings.HasSuffix(path, "/configmaps/x10"):
		reply(out, `{"apiVersion":"v1","kind":"ConfigMap",`, owned, `,"x":[`, w.many, `]}`)
	case isGet && strings.Contains(path, "/configmaps/x"):
		reply(out, `{"apiVersion":"v1","kind":"ConfigMap",`, owned, `}`)
	case r.Method == http.MethodDelete && strings.Contains(path, "/configmaps/x"):
		replyWith(out, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"`, w.large[:64<<10], `"}`)
	case r.Method == http.MethodDelete:
		reply(out, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	default:
		replyWith(out, http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
}

// answerImport answers the first object of an import.
func (w *Workspace) answerImport(out http.ResponseWriter, r *http.Request, member int) {
	const kinds, trickle, endless = 3, 1, 2
	write := func(text string) bool {
		_, err := out.Write([]byte(text))
		return err == nil && http.NewResponseController(out).Flush() == nil && !w.hasEnded()
	}
	switch kind := member % kinds; {
	case w.Stalls && kind == trickle:
		out.Header().Set("Content-Type", "application/json")
		const every = 100 * time.Millisecond
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for write(" ") {
			select {
			case <-r.Context().Done():
				return
			case <-w.ended:
				return
			case <-ticker.C:
			}
		}
	case w.Stalls && kind == endless:
		out.Header().Set("Content-Type", "application/json")
		for text := `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"`; write(text); text = w.large[:64<<10] {
		}
	default:
		reply(out, `{"kind":"List","apiVersion":"v1","items":[`, w.manyAgent, `]}`)
	}
}

// answerHistory answers with the revisions of the release.
func (w *Workspace) answerHistory(out http.ResponseWriter, r *http.Request, member int) {
	switch member {
	case ManyObjects:
		reply(out, w.manyObjects)
	case LongNames:
		w.longPages.Add(1)
		page, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		next := strconv.Itoa(page + 1)
		if page == longNamesPages {
			next = ""
		}
		reply(out, `{"apiVersion":"v1","kind":"SecretList","metadata":{"continue":"`, next, `"},"items":[{"metadata":{"name":"`, next, w.large, `","namespace":"apps"}}]}`)
	default:
		reply(out, w.histories[member%len(w.histories)])
	}
}

func reply(out http.ResponseWriter, parts ...string) { replyWith(out, http.StatusOK, parts...) }

func replyWith(out http.ResponseWriter, code int, parts ...string) {
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(code)
	for _, part := range parts {
		_, _ = out.Write([]byte(part))
	}
}
