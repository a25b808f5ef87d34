package register

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	fakefleet "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestParseIdentity(t *testing.T) {
	ca := agenttest.CA(t)
	document := "apiServerURL: " + agenttest.HubURL + "\napiServerCA: |\n  " + strings.ReplaceAll(ca, "\n", "\n  ") +
		"\nclusterNamespace: fleet-default\ntoken: " + agenttest.RegistrationToken + "\ntokenName: import-token-one\n" +
		"systemRegistrationNamespace: cattle-fleet-clusters-system\nlabels: {env: prod}\nregistration: uid/1\n"
	want := &BootstrapIdentity{
		Access: hubclient.Access{
			Endpoint: hubclient.Endpoint{
				Server: agenttest.HubURL, CA: []byte(strings.TrimSpace(ca)),
				Source: "Secret fleet-agent-bootstrap", CASource: "key apiServerCA of Secret fleet-agent-bootstrap",
			},
			Token: agenttest.RegistrationToken, Namespace: "fleet-default",
		},
		TokenName: "import-token-one", RegistrationKey: "uid/1", registrationNamespace: "cattle-fleet-clusters-system",
	}
	secretOf := func(data map[string]string) *corev1.Secret {
		return agenttest.Secret(registration.BootstrapSecret, data)
	}
	for name, secret := range map[string]*corev1.Secret{
		"keys":       agenttest.BootstrapSecret(agenttest.HubURL, ca, "registration", "uid/1"),
		"a document": secretOf(map[string]string{registration.ValuesKey: document}),
		"a key wins over the document": secretOf(map[string]string{
			registration.ValuesKey:             strings.ReplaceAll(document, agenttest.HubURL, "https://other.example.com"),
			registration.BootstrapAPIServerURL: agenttest.HubURL + "\n",
		}),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseIdentity(secret)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	edited := func(edits ...string) *corev1.Secret { return agenttest.BootstrapSecret(agenttest.HubURL, "", edits...) }
	for name, row := range map[string]struct {
		secret *corev1.Secret
		want   string
	}{
		"empty":                 {secretOf(nil), "key apiServerURL of Secret cattle-fleet-system/fleet-agent-bootstrap is unusable: it is empty"},
		"no token":              {edited("token", " \n"), "key token"},
		"no cluster namespace":  {edited("clusterNamespace", ""), "key clusterNamespace"},
		"no system namespace":   {edited("systemRegistrationNamespace", ""), "key systemRegistrationNamespace"},
		"a URL without scheme":  {edited("apiServerURL", "hub.example.com"), "it is not a URL like"},
		"a URL for files":       {edited("apiServerURL", "file:///etc/passwd"), "it is not a URL like"},
		"a URL with a password": {edited("apiServerURL", "https://user:"+agenttest.RegistrationToken+"@hub"), "user name"},
		"a URL of garbage":      {edited("apiServerURL", "https://%zz"+agenttest.RegistrationToken), "it is not a URL like"},
		"a CA of garbage":       {edited("apiServerCA", "-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----"), "key apiServerCA"},
		"a document of garbage": {secretOf(map[string]string{"values": "token: {" + agenttest.RegistrationToken}), "key values"},
		"a document of a list":  {secretOf(map[string]string{"values": "- " + agenttest.RegistrationToken}), "key values"},
		"a document of numbers": {secretOf(map[string]string{"values": "token: 42"}), "key token"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseIdentity(row.secret)
			require.ErrorContains(t, err, row.want)
			assert.NotContains(t, err.Error(), agenttest.RegistrationToken)
		})
	}
}

func TestIdentityDigest(t *testing.T) {
	original, err := ParseIdentity(agenttest.BootstrapSecret(agenttest.HubURL, ""))
	require.NoError(t, err)
	seen := map[string]string{original.digest("client"): "the original", original.digest("other client"): "another clientID"}
	for _, key := range []string{"apiServerURL", "clusterNamespace", "token", "tokenName", "systemRegistrationNamespace", "registration"} {
		changed, err := ParseIdentity(agenttest.BootstrapSecret(agenttest.HubURL, "", key, agenttest.HubURL+"/x"))
		require.NoError(t, err)
		assert.NotContains(t, seen, changed.digest("client"), key)
		seen[changed.digest("client")] = key
	}
	again, err := ParseIdentity(agenttest.BootstrapSecret(agenttest.HubURL, agenttest.CA(t)))
	require.NoError(t, err)
	assert.Equal(t, original.digest("client"), again.digest("client"), "a new CA does not need a new request")
	assert.NotContains(t, original.digest("client"), agenttest.RegistrationToken)
}

func TestClusterRegistration(t *testing.T) {
	identity := &BootstrapIdentity{Access: hubclient.Access{Namespace: "fleet-default"}, TokenName: "token"}
	labels := map[string]string{"env": "prod"}
	object := clusterRegistration(pendingRequest{name: "request-x", clientRandom: "random"}, identity, "client", labels, "pod-0")
	assert.Equal(t, "fleet-default", object.Namespace)
	assert.Equal(t, "request-x", object.Name)
	assert.Equal(t, "request-", object.GenerateName)
	assert.Equal(t, fleet.ClusterRegistrationSpec{
		ClientID: "client", ClientRandom: "random",
		ClusterLabels: map[string]string{"env": "prod", "fleet.cattle.io/created-by-agent-pod": "pod-0"},
	}, object.Spec)
	assert.Equal(t, map[string]string{"fleet.cattle.io/registration-token": "token"}, object.Labels)
	assert.Equal(t, map[string]string{"muster.fleet.cattle.io/credential-renewal": "true"}, object.Annotations)
	assert.Equal(t, map[string]string{"env": "prod"}, labels, "the configuration does not change")

	long := strings.Repeat("a", 253)
	for name, row := range map[string]struct{ token, want string }{
		"no token name": {"", ""}, "short": {"token", "token"}, "as long as a name can be": {long, registration.LabelValue(long)}, "no label value": {"no/label", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := tokenLabel(row.token)["fleet.cattle.io/registration-token"]
			assert.Equal(t, row.want, got)
			assert.True(t, isLabelValue(got))
		})
	}
	for _, pod := range []string{"", "no label!", strings.Repeat("a", 64)} {
		assert.Empty(t, clusterRegistration(pendingRequest{}, identity, "client", nil, pod).Spec.ClusterLabels, "Pod %q", pod)
	}
}

func TestNewRequest(t *testing.T) {
	first, err := newRequest("f", nil)
	require.NoError(t, err)
	second, err := newRequest("f", nil)
	require.NoError(t, err)
	assert.NotEqual(t, first.name, second.name)
	assert.NotEqual(t, first.clientRandom, second.clientRandom)
	assert.Equal(t, registration.RequestName(first.clientRandom), first.name)
	assert.Len(t, first.clientRandom, 54)
}

func TestParseAnswer(t *testing.T) {
	complete := map[string]string{"token": "t", "deploymentNamespace": "d", "clusterNamespace": "n", "clusterName": "c", "systemNamespace": "s"}
	without := func(key string) map[string]string {
		data := map[string]string{}
		for k, v := range complete {
			if k != key {
				data[k] = v
			}
		}
		return data
	}
	withLease := without("")
	withLease["heartbeatLease"] = "l"
	incomplete := answer{missing: "the credential is not complete yet", fromHub: true}
	for name, row := range map[string]struct {
		data map[string]string
		want answer
	}{
		"complete":                      {complete, answer{grant: &grant{"t", "d", "n", "c", ""}, fromHub: true}},
		"with a Lease":                  {withLease, answer{grant: &grant{"t", "d", "n", "c", "l"}, fromHub: true}},
		"no token":                      {without("token"), incomplete},
		"no deployment namespace":       {without("deploymentNamespace"), incomplete},
		"no cluster namespace":          {without("clusterNamespace"), incomplete},
		"no cluster name":               {without("clusterName"), incomplete},
		"empty":                         {nil, incomplete},
		"a refusal":                     {map[string]string{"refusalReason": "R", "refusalMessage": "m"}, answer{refusal: "m (R)", fromHub: true}},
		"a refusal without message":     {map[string]string{"refusalReason": "R"}, answer{refusal: " (R)", fromHub: true}},
		"a message without reason":      {map[string]string{"refusalMessage": "m"}, incomplete},
		"a refusal replaced by a grant": {map[string]string{"token": "t", "refusalReason": "R"}, incomplete},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, row.want, parseAnswer(agenttest.Secret("c-1", row.data)))
		})
	}
}

func TestRequestTracker(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	complete := func(tracker *requestTracker, request string) bool {
		_, complete := tracker.polledSince(request)
		return complete
	}
	tracker := &requestTracker{}
	assert.False(t, complete(tracker, "request-1"), "the request may be from before a restart")
	tracker.responded(noon, time.Minute)
	assert.False(t, complete(tracker, "request-1"))
	tracker.sent("request-1", noon)
	for n := range 5 {
		tracker.responded(noon.Add(time.Duration(n)*time.Minute), time.Minute)
	}
	assert.True(t, complete(tracker, "request-1"))
	assert.False(t, complete(tracker, "request-2"))
	tracker.responded(noon.Add(6*time.Minute), time.Minute)
	tracker.responded(noon.Add(6*time.Minute), time.Minute)
	assert.False(t, complete(tracker, "request-1"), "after a gap")

	now := agenttest.NewClock(noon)
	for _, suspended := range []time.Duration{10 * time.Second, time.Hour} {
		tracker.sent("request-1", now.Now())
		now.StepWall(suspended)
		tracker.responded(now.Now(), time.Minute)
		assert.Equal(t, suspended < time.Minute, complete(tracker, "request-1"), "after the machine was suspended for %s", suspended)
	}
	tracker.sent("request-1", now.Now())
	now.StepWall(-24 * time.Hour)
	now.Step(2 * time.Minute)
	tracker.responded(now.Now(), time.Minute)
	assert.False(t, complete(tracker, "request-1"), "after a gap in which the clock was set back")

	const hubKeepsCredential = 40 * time.Minute
	d := timing.Default()
	assert.Less(t, d.MaxResponseGap+d.PollSlowMax*12/10, hubKeepsCredential)
	assert.Less(t, d.RefusedMax*12/10, d.MaxResponseGap, "polling a refused request leaves no gap")
}

func TestAwaitPollsLessOftenWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := agenttest.Log(t)
		hub := kubefake.NewClientset()
		r := &Registrar{
			Member: &member.Member{Namespace: agenttest.Namespace, Core: kubefake.NewClientset()},
			Clock:  clock.RealClock{}, Timing: timing.Default(), Log: log,
		}
		identity := &BootstrapIdentity{registrationNamespace: "sys"}
		// await lets the attempt time out, half an hour after it began, and returns how often it polled.
		await := func(request string) int {
			hub.ClearActions()
			object := clusterRegistration(pendingRequest{name: request, clientRandom: "r"}, identity, "id", nil, "")
			_, err := r.await(t.Context(), &hubclient.Connection{Core: hub}, Input{Identity: identity}, pendingRequest{name: request}, object)
			require.ErrorContains(t, err, "did not grant")
			return len(hub.Actions())
		}
		r.tracker.sent("request-1", time.Now())
		first := await("request-1")
		assert.Greater(t, first, 5*60/3, "in the first minutes the credential may come at any moment")
		assert.Less(t, first, 5*60/2+30+25*60/25)
		assert.Less(t, await("request-1"), 30*60/25, "the same request goes on at the slow pace")
		assert.Greater(t, await("request-2"), 5*60/3, "another request begins at the fast pace")
	})
}

// newAttempt returns a Registrar on a member with the objects, and the arguments of one attempt.
func newAttempt(t *testing.T, clientID string, objects ...runtime.Object) (*Registrar, Input, pendingRequest, *fleet.ClusterRegistration) {
	t.Helper()
	log, _ := agenttest.Log(t)
	bootstrap := agenttest.BootstrapSecret(agenttest.HubURL, agenttest.CA(t))
	identity, err := ParseIdentity(bootstrap)
	require.NoError(t, err)
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "uid"}}
	r := &Registrar{
		Member: &member.Member{Namespace: agenttest.Namespace, Core: kubefake.NewClientset(append(objects, bootstrap, system)...)},
		Clock:  clock.RealClock{}, Timing: timing.Default(), Log: log,
		OnState: func(string) {}, Event: func(context.Context, string, string, string) {},
	}
	request, err := newRequest(identity.digest(clientID), nil)
	require.NoError(t, err)
	return r, Input{Identity: identity}, request, clusterRegistration(request, identity, clientID, nil, "")
}

// answerTo returns the Secret with which the hub answers the request.
func answerTo(in Input, object *fleet.ClusterRegistration, data map[string]string) *corev1.Secret {
	secret := agenttest.Secret(registration.AnswerSecretName(object.Spec.ClientID, object.Spec.ClientRandom), data)
	secret.Namespace = in.Identity.registrationNamespace
	return secret
}

// replace creates the object, or replaces the one with its name.
func replace(t *testing.T, core *kubefake.Clientset, object runtime.Object) {
	t.Helper()
	resource := corev1.SchemeGroupVersion.WithResource("configmaps")
	if _, isSecret := object.(*corev1.Secret); isSecret {
		resource.Resource = "secrets"
	}
	_ = core.Tracker().Delete(resource, agenttest.Namespace, object.(metav1.Object).GetName())
	require.NoError(t, core.Tracker().Create(resource, object, agenttest.Namespace))
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: agenttest.Namespace, Name: name}, Data: data}
}

func settings(document string) *corev1.ConfigMap {
	return configMap(registration.AgentConfigMap, map[string]string{registration.ConfigKey: document})
}

// The signal of a change may come before the refusal, at a time at which the objects cannot be read.
func TestAwaitNoticesAChangeAfterTheRefusal(t *testing.T) {
	for name, row := range map[string]struct {
		there []runtime.Object
		want  error
	}{
		"another clientID": {[]runtime.Object{settings(`{"clientID":"new"}`)}, ErrInputChanged},
		"no ConfigMap: somebody may be about to create it again": {nil, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, in, request, object := newAttempt(t, "old", row.there...)
				refusal := answerTo(in, object, map[string]string{registration.RefusalReason: "R"})
				hub := &hubclient.Connection{Core: kubefake.NewClientset(refusal), Fleet: fakefleet.NewSimpleClientset()}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				_, err := r.await(ctx, hub, in, request, object)
				require.ErrorIs(t, err, row.want)
			})
		})
	}
}

func TestAwaitNoticesAChangeWhileItWaits(t *testing.T) {
	bootstrap := func(edits ...string) runtime.Object {
		return agenttest.BootstrapSecret(agenttest.HubURL, agenttest.CA(t), edits...)
	}
	otherHub := configMap(registration.AgentHubConfigMap, map[string]string{registration.BootstrapAPIServerURL: "https://other"})
	const atFirst = `{"clientID":"id"}`
	for name, row := range map[string]struct {
		change        runtime.Object
		alone, atWork bool // whether the attempt starts over, without and with a credential in use
	}{
		"nothing":                         {settings(atFirst), false, false},
		"another token":                   {bootstrap("token", "another"), true, true},
		"another clientID":                {settings(`{"clientID":"new"}`), true, true},
		"another CA":                      {bootstrap("apiServerCA", ""), true, true},
		"another TLS mode":                {settings(`{"clientID":"id","agentTLSMode":"strict"}`), true, true},
		"other labels":                    {settings(`{"clientID":"id","labels":{"a":"b"}}`), false, false},
		"another interval of comparisons": {settings(`{"clientID":"id","garbageCollectionInterval":"1h"}`), false, true},
		"another hub for the credential":  {otherHub, false, true},
		"a bootstrap Secret of garbage":   {bootstrap("apiServerURL", ""), false, false},
		"a ConfigMap of garbage":          {settings("["), false, false},
	} {
		for _, atWork := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, a credential in use: %t", name, atWork), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, in, request, object := newAttempt(t, "id", settings(atFirst))
					changed := make(chan struct{}, 1)
					r.Changed = changed
					changed <- struct{}{}
					core, hub := r.Member.Core.(*kubefake.Clientset), &hubclient.Connection{Core: kubefake.NewClientset()}
					want := row.alone
					if atWork {
						in.ProvePossession, want = func(context.Context, string) {}, row.atWork
					}
					in.Settings.ClientID = "id"
					replace(t, core, row.change)
					_, err := r.await(t.Context(), hub, in, request, object)
					assert.Equal(t, want, errors.Is(err, ErrInputChanged), "%v", err)
				})
			})
		}
	}
}

func TestAwaitForgetsTheRefusalOfADeletedRequest(t *testing.T) {
	for name, row := range map[string]struct {
		answer map[string]string // to the request that is sent again
		within time.Duration
		want   string // an error; none means that the request is granted
	}{
		"granted soon": {map[string]string{"token": "t", "deploymentNamespace": "d", "clusterNamespace": "n", "clusterName": "c"}, 15 * time.Second, ""},
		"no answer":    {nil, 31 * time.Minute, "did not grant"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, in, request, object := newAttempt(t, "id")
				core, fleets := kubefake.NewClientset(answerTo(in, object, map[string]string{registration.RefusalReason: "R"})), fakefleet.NewSimpleClientset()
				var sentAgain time.Time
				fleets.PrependReactor("create", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
					assert.Zero(t, sentAgain, "sent once")
					sentAgain = time.Now()
					answer := answerTo(in, object, row.answer)
					assert.NoError(t, core.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), answer.Namespace, answer.Name))
					if row.answer != nil {
						time.AfterFunc(10*time.Second, func() { assert.NoError(t, core.Tracker().Add(answer)) })
					}
					return false, nil, nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
				defer cancel()
				_, err := r.await(ctx, &hubclient.Connection{Core: core, Fleet: fleets}, in, request, object)
				if row.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, row.want)
				}
				assert.LessOrEqual(t, time.Since(sentAgain), row.within)
			})
		})
	}
}

// A hub keeps only some hundred refused requests. More agents than that delete each other's requests, and must not poll faster and faster.
func TestAwaitSlowsDownAfterEachRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, in, request, object := newAttempt(t, "id")
		core, fleets := kubefake.NewClientset(answerTo(in, object, map[string]string{registration.RefusalReason: "R"})), fakefleet.NewSimpleClientset()
		sent := 0
		fleets.PrependReactor("create", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
			sent++ // and the hub deletes it again
			return true, action.(kubetesting.CreateAction).GetObject(), nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		_, err := r.await(ctx, &hubclient.Connection{Core: core, Fleet: fleets}, in, request, object)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Greater(t, sent, 5)
		assert.Less(t, sent, 30)
	})
}

// marker is what no error may quote.
const marker = "MARKER-5d1c"

func FuzzParseIdentity(f *testing.F) {
	f.Add("https://hub", "", "fleet-default", "token", "import", "sys", "")
	f.Add("", "x", "", "", "", "", "apiServerURL: https://hub\ntoken: a\nclusterNamespace: b\nsystemRegistrationNamespace: c")
	f.Add("ftp://hub", agenttest.CA(f), " ", "\n", "", "", "[]")
	f.Add("https://u:"+marker+"@hub", "", "n", "t", "", "s", "token: [")
	f.Add("https://[::1", "-----BEGIN CERTIFICATE-----", "n", "t", "", "s", "token: {a: b}")
	f.Fuzz(func(t *testing.T, url, ca, namespace, token, name, system, document string) {
		secret := agenttest.Secret("name", map[string]string{
			registration.BootstrapAPIServerURL: url, registration.BootstrapAPIServerCA: ca,
			registration.BootstrapWorkspace: namespace, registration.BootstrapToken: token + marker, registration.BootstrapTokenName: name,
			registration.BootstrapSystemRegistrationNamespace: system, registration.ValuesKey: document,
		})
		identity, err := ParseIdentity(secret)
		if err != nil {
			assert.NotContains(t, err.Error(), marker)
			return
		}
		assert.NotEmpty(t, identity.Workspace())
		assert.NotEmpty(t, identity.registrationNamespace)
		assert.Equal(t, strings.TrimSpace(token+marker), identity.Token)
		assert.Empty(t, config.CheckServerURL(identity.Server), "the agent can connect to it")
		assert.True(t, hubclient.ValidCA(identity.CA))
		again, err := ParseIdentity(secret)
		require.NoError(t, err)
		assert.Equal(t, identity.digest("id"), again.digest("id"))
		assert.NotEqual(t, identity.digest("id"), identity.digest("id2"))
		assert.NotContains(t, identity.digest("id"), marker)
	})
}

func FuzzParseAnswer(f *testing.F) {
	f.Add("token", "a", "b", "c")
	f.Add("", "a", "b", "c")
	f.Add("token", "", "", "")
	f.Fuzz(func(t *testing.T, token, deployment, namespace, name string) {
		got := parseAnswer(agenttest.Secret("name", map[string]string{
			registration.CredentialToken: token, registration.CredentialDeploymentNamespace: deployment,
			registration.CredentialWorkspace: namespace, registration.CredentialClusterName: name,
		}))
		assert.Equal(t, token != "" && deployment != "" && namespace != "" && name != "", got.grant != nil)
	})
}

func FuzzParseRequest(f *testing.F) {
	f.Add("request-x", "random", "digest", "digest")
	f.Add("", "random", "digest", "digest")
	f.Add("request-x", "random", "digest", "other")
	f.Fuzz(func(t *testing.T, name, clientRandom, digest, other string) {
		request := pendingRequest{name: name, clientRandom: clientRandom, identityDigest: digest}
		assert.Equal(t, request, parseRequest(request.secret("ns")))
		assert.Equal(t, name != "" && clientRandom != "" && digest == other, request.madeWith(other))
	})
}

// The API server accepts what the agent sends: an unusual label or token name must not fail the registration.
func FuzzClusterRegistration(f *testing.F) {
	f.Add("import", "k", "v", "fleet-agent-0")
	f.Add(strings.Repeat("t", 253), "a b", "", strings.Repeat("p", 64))
	f.Add("", "", "\x00", "é")
	f.Fuzz(func(t *testing.T, token, key, value, pod string) {
		request, err := newRequest("digest", nil)
		require.NoError(t, err)
		identity := &BootstrapIdentity{Access: hubclient.Access{Namespace: "ns"}, TokenName: token}
		sent := clusterRegistration(request, identity, "id", map[string]string{key: value}, pod)
		assert.Empty(t, validation.IsDNS1123Subdomain(sent.Name))
		for name, value := range sent.Labels {
			assert.Empty(t, validation.IsValidLabelValue(value), name)
		}
		assert.NotContains(t, sent.Name, request.clientRandom)
		if key == fleet.CreatedByAgentPodLabel {
			return
		}
		assert.Equal(t, value, sent.Spec.ClusterLabels[key])
		assert.Empty(t, validation.IsValidLabelValue(sent.Spec.ClusterLabels[fleet.CreatedByAgentPodLabel]))
	})
}
