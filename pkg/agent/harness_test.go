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
	agentNamespace         = agenttest.Namespace
	testToken              = agenttest.RegistrationToken
	newToken               = agenttest.NewToken
	oldToken               = agenttest.OldToken
	patience               = agenttest.Patience
	rejectionsUntilCertain = 3 // hubclient.RejectionThreshold: rejections in a row
)

// testAgent is an agent whose member is a fake client, and whose hub is a stubHub.
type testAgent struct {
	*testing.T
	hub    *stubHub
	config Config
	member *member.Member
	core   *kubefake.Clientset
	log    *logtest.Hook
}

// newTestAgent returns an agent whose member has the objects.
func newTestAgent(t *testing.T, objects ...runtime.Object) *testAgent {
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
		object, err := core.Invokes(action, nil)
		found := &metav1.PartialObjectMetadata{}
		if accessor, accessErr := meta.Accessor(object); accessErr == nil {
			found.Name, found.UID = accessor.GetName(), accessor.GetUID()
		}
		return true, found, err
	})
	return &testAgent{
		T: t, hub: newStubHub(t), core: core, log: hook,
		member: &member.Member{Namespace: agentNamespace, Core: core, Watching: core, Metadata: metadata},
		config: Config{
			Namespace: agentNamespace, Version: "test", CheckinInterval: time.Hour, Log: log, Clock: clock.RealClock{},
			Member: &rest.Config{}, Timing: agenttest.Quick(), OnState: func(string) {},
		},
	}
}

// putSecrets stores Secrets on the member, and replaces those that exist.
func (f *testAgent) putSecrets(secrets ...*corev1.Secret) {
	f.Helper()
	for _, secret := range secrets {
		_, err := f.core.CoreV1().Secrets(agentNamespace).Create(f.Context(), secret, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = f.core.CoreV1().Secrets(agentNamespace).Update(f.Context(), secret, metav1.UpdateOptions{})
		}
		require.NoError(f, err)
	}
}

func (f *testAgent) putConfigMap(configMap *corev1.ConfigMap) {
	f.Helper()
	client := f.core.CoreV1().ConfigMaps(agentNamespace)
	_, err := client.Create(f.Context(), configMap, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.Update(f.Context(), configMap, metav1.UpdateOptions{})
	}
	require.NoError(f, err)
}

// putSettings writes ConfigMap fleet-agent.
func (f *testAgent) putSettings(document string) {
	f.Helper()
	f.putConfigMap(settings(document))
}

func settings(document string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentConfigMap},
		Data:       map[string]string{registration.ConfigKey: document},
	}
}

// deleteSecret deletes a Secret on the member.
func (f *testAgent) deleteSecret(name string) {
	f.Helper()
	require.NoError(f, f.core.CoreV1().Secrets(agentNamespace).Delete(f.Context(), name, metav1.DeleteOptions{}))
}

// bootstrap returns a bootstrap Secret for the stubHub; edits as of agenttest.BootstrapSecret.
func (f *testAgent) bootstrap(edits ...string) *corev1.Secret {
	return agenttest.BootstrapSecret(f.hub.server.URL, f.hub.ca(), edits...)
}

// stored returns Secret fleet-agent with oldToken; edits as of agenttest.StoredSecret.
func (f *testAgent) stored(edits ...string) *corev1.Secret {
	f.Helper()
	return agenttest.StoredSecret(f.T, f.hub.server.URL, f.hub.ca(), oldToken, edits...)
}

// start runs the agent until the test ends.
func (f *testAgent) start() {
	f.Helper()
	f.startWith(deployNothing)
}

// deployNothing is used in place of deploy.Run.
func deployNothing(ctx context.Context, _ deploy.Config) error {
	<-ctx.Done()
	return nil
}

// startWith runs the agent with a replacement of deploy.Run until stop is called or the test ends.
func (f *testAgent) startWith(deploying deployFunc) (stop func()) {
	f.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); runLoop(ctx, f.config, f.member, deploying) }()
	stop = func() { cancel(); <-ended }
	f.Cleanup(stop)
	return stop
}

// runUntil runs the agent until the condition holds, and stops it.
func (f *testAgent) runUntil(condition func() bool) {
	f.Helper()
	stop := f.startWith(deployNothing)
	require.Eventually(f, condition, patience, time.Millisecond)
	stop()
}

func (f *testAgent) eventually(condition func() bool, what string) {
	f.Helper()
	require.Eventually(f, condition, patience, 2*time.Millisecond, what)
}

// waitForLog waits for a log message that contains the text.
func (f *testAgent) waitForLog(text string) {
	f.Helper()
	f.eventually(func() bool { return f.countLogs(text) > 0 }, "log line with: "+text)
}

// countLogs counts the log messages that contain the text.
func (f *testAgent) countLogs(text string) (n int) {
	for _, entry := range f.log.AllEntries() {
		if strings.Contains(entry.Message, text) {
			n++
		}
	}
	return n
}

// waitUntilSettled waits until the agent has stored the token, isSettled, and isWatching.
func (f *testAgent) waitUntilSettled(token string) {
	f.Helper()
	f.eventually(func() bool { return f.isSettled() && f.storedToken() == token && f.isWatching() }, "settled with "+token)
}

// isWatching reports whether the agent watches the objects that configure its registration. A test waits for that before it changes one of them:
// the fake client, unlike an API server, loses events between the list and the watch of an informer.
func (f *testAgent) isWatching() bool {
	watched := map[string]bool{} // a watch that is opened again counts once
	for _, action := range f.core.Actions() {
		if watch, ok := action.(kubetesting.WatchAction); ok {
			watched[watch.GetResource().Resource+" "+watch.GetWatchRestrictions().Fields.String()] = true
		}
	}
	return len(watched) >= 4 // two Secrets and two ConfigMaps
}

// isSettled reports whether a heartbeat has arrived with the stored credential, and the Secrets of the registration are deleted.
func (f *testAgent) isSettled() bool {
	f.Helper()
	token := f.storedToken()
	return token != "" && f.secret(registration.BootstrapSecret) == nil && f.secret(registration.PendingSecret) == nil &&
		f.hub.count("/status as "+token) > 0
}

// secret returns a Secret of the member; nil if it does not exist.
func (f *testAgent) secret(name string) *corev1.Secret {
	f.Helper()
	secret, err := f.member.Secret(context.Background(), name)
	require.NoError(f, err)
	return secret
}

// storedToken returns the token in Secret fleet-agent; "" if there is none.
func (f *testAgent) storedToken() string {
	f.Helper()
	if secret := f.secret(registration.CredentialSecret); secret != nil {
		if s, err := credential.Parse(secret); err == nil {
			return s.Token
		}
	}
	return ""
}

// storedNow returns the content of Secret fleet-agent.
func (f *testAgent) storedNow() *credential.Stored {
	f.Helper()
	secret := f.secret(registration.CredentialSecret)
	require.NotNil(f, secret)
	s, err := credential.Parse(secret)
	require.NoError(f, err)
	return s
}

// writes returns the verb and the name of each write on the member from the action with index since.
func (f *testAgent) writes(since int) []string {
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

// events returns the events with the reason on the member.
func (f *testAgent) events(reason string) []corev1.Event {
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

// eventOf returns the first event with the reason; nil if there is none.
func (f *testAgent) eventOf(reason string) *corev1.Event {
	f.Helper()
	if found := f.events(reason); len(found) > 0 {
		return &found[0]
	}
	return nil
}

// lastHeartbeat returns status.agent from the last heartbeat.
func (f *testAgent) lastHeartbeat() (status fleet.AgentStatus) {
	f.hub.mutex.Lock()
	defer f.hub.mutex.Unlock()
	for _, beat := range f.hub.heartbeats {
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
