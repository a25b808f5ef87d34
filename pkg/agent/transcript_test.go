package agent

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/pkg/registration"
)

// transcript lists, in order, the requests that the agent sends to the hub and its writes on the member. Values that differ between
// runs are replaced by their names. Heartbeats are listed separately, because their order relative to the other requests is random.
// Repeated polling is one entry.
type transcript struct {
	mutex   sync.Mutex
	entries []string
	beats   []string
}

func (tr *transcript) add(list *[]string, entry string) {
	tr.mutex.Lock()
	defer tr.mutex.Unlock()
	entry = stable(entry)
	if n := len(*list); n > 0 && strings.HasPrefix((*list)[n-1], entry) {
		(*list)[n-1] = entry + "        ... until it is there\n"
		return
	}
	*list = append(*list, entry)
}

func (tr *transcript) String() string {
	tr.mutex.Lock()
	defer tr.mutex.Unlock()
	return strings.Join(tr.entries, "") + "\nheartbeats beside it\n\n" + strings.Join(tr.beats, "")
}

var unstable = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`request-[a-z2-7]{16}`), "request-<digest of clientRandom>"},
	{regexp.MustCompile(`secrets/c-[0-9a-f]{61}`), "secrets/c-<hash of clientID and clientRandom>"},
	{regexp.MustCompile(`"clientRandom":"[a-z0-9]{54}"`), `"clientRandom":"<54 random>"`},
	{regexp.MustCompile(`"instance":"[a-z0-9.-]+_[0-9a-f]{32}"`), `"instance":"<of this process>"`},
	{regexp.MustCompile(`"apiServer":null(.*)"vouches":(null|"request-<digest of clientRandom>")`), `"apiServer":null$1"vouches":<the request under way, or null>`},
	{regexp.MustCompile(`"lastSeen":"[0-9TZ:-]{20}"`), `"lastSeen":"<now>"`},
	{regexp.MustCompile(`https://127\.0\.0\.1:[0-9]+`), "<hub>"},
	{regexp.MustCompile(testToken), "<registration token>"},
	{regexp.MustCompile(newToken), "<new credential>"},
	{regexp.MustCompile(oldToken), "<old credential>"},
}

func stable(line string) string {
	for _, u := range unstable {
		line = u.pattern.ReplaceAllString(line, u.name)
	}
	return line
}

func (tr *transcript) hubRequest(r *http.Request, body []byte) {
	entry := fmt.Sprintf("hub     %s %s\n        Authorization: %s\n", r.Method, r.URL.RequestURI(), r.Header.Get("Authorization"))
	if len(body) > 0 {
		entry += fmt.Sprintf("        Content-Type: %s\n        %s\n", r.Header.Get("Content-Type"), strings.TrimSpace(string(body)))
	}
	list := &tr.entries
	if r.Method == http.MethodPatch && strings.Contains(string(body), "lastSeen") {
		list = &tr.beats
	}
	tr.add(list, entry)
}

// memberWrites records every request that is not a read.
func (tr *transcript) memberWrites(core *kubefake.Clientset) {
	core.PrependReactor("*", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
		switch a := action.(type) {
		case kubetesting.CreateAction: // an update is one too
			tr.add(&tr.entries, fmt.Sprintf("member  %s %s\n", a.GetVerb(), describeSecret(a.GetObject())))
		case kubetesting.DeleteAction:
			tr.add(&tr.entries, fmt.Sprintf("member  delete secret %s/%s\n", a.GetNamespace(), a.GetName()))
		}
		return false, nil, nil
	})
}

func describeSecret(object runtime.Object) string {
	secret := object.(*corev1.Secret)
	return fmt.Sprintf("secret %s/%s with %s", secret.Namespace, secret.Name, strings.Join(slices.Sorted(maps.Keys(secret.Data)), ", "))
}

func TestTranscript(t *testing.T) {
	rows := map[string]func(t *testing.T, hub *stubHub) []runtime.Object{
		"fresh.txt": func(_ *testing.T, hub *stubHub) []runtime.Object {
			return []runtime.Object{agenttest.BootstrapSecret(hub.server.URL, hub.ca()), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentConfigMap},
				Data:       map[string]string{"config": `{"clientID":"my-client","labels":{"env":"prod"},"agentTLSMode":"strict"}`},
			}}
		},
		"again.txt": func(t *testing.T, hub *stubHub) []runtime.Object {
			t.Helper()
			hub.grantAfterHeartbeat = true
			return []runtime.Object{
				agenttest.BootstrapSecret(hub.server.URL, hub.ca(), "registration", "uid/2"),
				agenttest.StoredSecret(t, hub.server.URL, hub.ca(), oldToken, "registration", "uid/1"),
			}
		},
		"restart.txt": func(t *testing.T, hub *stubHub) []runtime.Object {
			t.Helper()
			return []runtime.Object{agenttest.StoredSecret(t, hub.server.URL, hub.ca(), oldToken)}
		},
	}
	for name, objects := range rows {
		t.Run(name, func(t *testing.T) {
			f := newTestAgent(t)
			for _, object := range objects(t, f.hub) {
				require.NoError(t, f.core.Tracker().Add(object))
			}
			f.config.Pod = "fleet-agent-0"
			tr := &transcript{}
			f.hub.record = tr.hubRequest
			tr.memberWrites(f.core)
			f.runUntil(f.isSettled)
			golden.Equal(t, "testdata/"+name, tr.String())
		})
	}
}
