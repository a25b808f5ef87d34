package agent

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	"github.com/muster-fleet/muster/pkg/agent/member"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

const (
	agentNamespace = agenttest.Namespace
	testToken      = agenttest.RegistrationToken
	newToken       = agenttest.NewToken
	oldToken       = agenttest.OldToken
	patience       = agenttest.Patience
	certainly      = 3 // the rejections in a row after which the agent is certain
)

// fixture is an agent on a member (a fake client), with a hub that answers.
type fixture struct {
	*testing.T
	hub    *stubHub
	config Config
	member *member.Member
	core   *kubefake.Clientset
	log    *logtest.Hook
}

// newFixture returns an agent whose member has the objects.
func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	log, hook := agenttest.Log(t)
	kubeSystem := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "the-uid"}}
	core := kubefake.NewClientset(append(objects, kubeSystem)...)
	version := 100 // the Secrets of agenttest have lower ones
	core.PrependReactor("update", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
		update := action.(kubetesting.UpdateAction)
		version++ // an API server gives each update another version
		must(meta.Accessor(update.GetObject())).SetResourceVersion(strconv.Itoa(version))
		return true, update.GetObject(), core.Tracker().Update(update.GetResource(), update.GetObject(), update.GetNamespace())
	})
	metadata := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	metadata.PrependReactor("*", "*", func(action kubetesting.Action) (bool, runtime.Object, error) { // the clients share their objects
		_, err := core.Invokes(action, nil)
		return true, &metav1.PartialObjectMetadata{}, err
	})
	return &fixture{
		T: t, hub: newStubHub(t), core: core, log: hook,
		member: &member.Member{Namespace: agentNamespace, Core: core, Watching: core, Metadata: metadata},
		config: Config{
			Namespace: agentNamespace, Version: "test", CheckinInterval: time.Hour, Log: log, Clock: clock.RealClock{},
			Member: &rest.Config{}, Timing: agenttest.Quick(), OnState: func(string) {},
		},
	}
}

// has stores Secrets on the member, and replaces those that exist.
func (f *fixture) has(secrets ...*corev1.Secret) {
	f.Helper()
	for _, secret := range secrets {
		_, err := f.core.CoreV1().Secrets(agentNamespace).Create(f.Context(), secret, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = f.core.CoreV1().Secrets(agentNamespace).Update(f.Context(), secret, metav1.UpdateOptions{})
		}
		require.NoError(f, err)
	}
}

func (f *fixture) hasConfigMap(configMap *corev1.ConfigMap) {
	f.Helper()
	client := f.core.CoreV1().ConfigMaps(agentNamespace)
	_, err := client.Create(f.Context(), configMap, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.Update(f.Context(), configMap, metav1.UpdateOptions{})
	}
	require.NoError(f, err)
}

// hasSettings writes ConfigMap fleet-agent.
func (f *fixture) hasSettings(document string) {
	f.Helper()
	f.hasConfigMap(settings(document))
}

func settings(document string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentConfigMap},
		Data:       map[string]string{registration.ConfigKey: document},
	}
}

func (f *fixture) lacks(name string) {
	f.Helper()
	require.NoError(f, f.core.CoreV1().Secrets(agentNamespace).Delete(f.Context(), name, metav1.DeleteOptions{}))
}

func (f *fixture) bootstrap(edits ...string) *corev1.Secret {
	return agenttest.BootstrapSecret(f.hub.server.URL, f.hub.ca(), edits...)
}

func (f *fixture) stored(edits ...string) *corev1.Secret {
	f.Helper()
	return agenttest.StoredSecret(f.T, f.hub.server.URL, f.hub.ca(), oldToken, edits...)
}

// starts runs the agent until the test ends.
func (f *fixture) starts() {
	f.Helper()
	f.startsDeploying(deploysNothing)
}

// deploysNothing replaces deploy.Run.
func deploysNothing(ctx context.Context, _ deploy.Config) error {
	<-ctx.Done()
	return nil
}

func (f *fixture) startsDeploying(deploying deployFunc) (stop func()) {
	f.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); runLoop(ctx, f.config, f.member, deploying) }()
	stop = func() { cancel(); <-ended }
	f.Cleanup(stop)
	return stop
}

// runsUntil runs the agent until the condition holds.
func (f *fixture) runsUntil(condition func() bool) {
	f.Helper()
	stop := f.startsDeploying(deploysNothing)
	require.Eventually(f, condition, patience, time.Millisecond)
	stop()
}

func (f *fixture) eventually(condition func() bool, what string) {
	f.Helper()
	require.Eventually(f, condition, patience, 2*time.Millisecond, what)
}

// says waits for a line of the log.
func (f *fixture) says(text string) {
	f.Helper()
	f.eventually(func() bool { return f.said(text) > 0 }, "log line with: "+text)
}

func (f *fixture) said(text string) int { return count(f.log, text) }

func count(log *logtest.Hook, text string) (n int) {
	for _, entry := range log.AllEntries() {
		if strings.Contains(entry.Message, text) {
			n++
		}
	}
	return n
}

// settles waits until the agent works with the token that is stored, and everything of a registration is gone.
func (f *fixture) settles(token string) {
	f.Helper()
	f.eventually(func() bool { return f.isSettled() && f.storedToken() == token && f.watches() }, "settled with "+token)
}

// watches reports whether the agent watches the objects that configure its registration. The fake client, unlike an API server, loses events between
// the list and the watch of an informer.
func (f *fixture) watches() bool {
	watched := 0
	for _, action := range f.core.Actions() {
		if action.GetVerb() == "watch" {
			watched++
		}
	}
	return watched >= 4 // two Secrets and two ConfigMaps
}

// isSettled: a heartbeat arrived with the credential that is stored now, and nothing of a registration is left.
func (f *fixture) isSettled() bool {
	f.Helper()
	token := f.storedToken()
	return token != "" && f.secret(registration.BootstrapSecret) == nil && f.secret(registration.PendingSecret) == nil &&
		f.hub.count("/status as "+token) > 0
}

// secret is nil if there is none.
func (f *fixture) secret(name string) *corev1.Secret {
	f.Helper()
	secret, err := f.member.Secret(context.Background(), name)
	require.NoError(f, err)
	return secret
}

func (f *fixture) storedToken() string {
	f.Helper()
	if secret := f.secret(registration.CredentialSecret); secret != nil {
		if s, err := credential.Parse(secret); err == nil {
			return s.Token
		}
	}
	return ""
}

func (f *fixture) storedNow() *credential.Stored {
	f.Helper()
	secret := f.secret(registration.CredentialSecret)
	require.NotNil(f, secret)
	s, err := credential.Parse(secret)
	require.NoError(f, err)
	return s
}

// writes are the verbs and names of what the agent wrote on the member since the given action.
func (f *fixture) writes(since int) []string {
	var writes []string
	for _, action := range f.core.Actions()[since:] {
		switch a := action.(type) {
		case kubetesting.CreateAction:
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(a.GetObject())
			require.NoError(f, err)
			name, _ := object["metadata"].(map[string]any)["name"].(string)
			writes = append(writes, a.GetVerb()+" "+name)
		case kubetesting.DeleteAction:
			writes = append(writes, "delete "+a.GetName())
		}
	}
	return writes
}

// events are those of a reason on the member.
func (f *fixture) events(reason string) []corev1.Event {
	f.Helper()
	list, err := f.core.CoreV1().Events(agentNamespace).List(f.Context(), metav1.ListOptions{})
	require.NoError(f, err)
	var found []corev1.Event
	for _, event := range list.Items {
		if event.Reason == reason {
			found = append(found, event)
		}
	}
	return found
}

// eventOf is nil if there is none.
func (f *fixture) eventOf(reason string) *corev1.Event {
	f.Helper()
	if found := f.events(reason); len(found) > 0 {
		return &found[0]
	}
	return nil
}

// lastBeat is the status.agent of the latest heartbeat.
func (f *fixture) lastBeat() (status fleet.AgentStatus) {
	f.hub.mutex.Lock()
	defer f.hub.mutex.Unlock()
	for _, beat := range f.hub.beats {
		if strings.Contains(beat, "lastSeen") {
			var cluster fleet.Cluster
			require.NoError(f, json.Unmarshal([]byte(beat), &cluster))
			status = cluster.Status.Agent
		}
	}
	return status
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
