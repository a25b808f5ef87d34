package view

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func condition(kind string, status corev1.ConditionStatus, reason string) genericcondition.GenericCondition {
	return genericcondition.GenericCondition{Type: kind, Status: status, Reason: reason, Message: "because of " + reason}
}

func TestClusterState(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	with := func(all ...genericcondition.GenericCondition) func(*fleet.Cluster) {
		return func(c *fleet.Cluster) { c.Status.Conditions = all }
	}
	tests := map[string]struct {
		change        func(*fleet.Cluster)
		state, reason string
	}{
		"new":                             {with(), StateNew, ""},
		"an earlier namespace is deleted": {with(condition("Processed", unknown, "NamespaceDeleting")), StateNew, "NamespaceDeleting"},
		"the import has begun": {func(c *fleet.Cluster) {
			c.Spec.KubeConfigSecret, c.Finalizers = "k", []string{fleet.ClusterFinalizer}
		}, StateImporting, ""},
		"the kubeconfig is missing":      {with(condition("Imported", unknown, "WaitingForKubeconfig"), condition("Registered", unknown, "WaitingForAgent")), StateImporting, "WaitingForKubeconfig"},
		"importing":                      {with(condition("Imported", unknown, "Importing")), StateImporting, "Importing"},
		"unreachable":                    {with(condition("Imported", no, "Unreachable"), condition("Registered", unknown, "WaitingForAgent")), StateImportFailed, "Unreachable"},
		"waiting for the agent":          {with(condition("Imported", yes, "Imported"), condition("Registered", unknown, "WaitingForAgent")), StateWaitingForAgent, "WaitingForAgent"},
		"the agent was refused":          {with(condition("Imported", yes, "Imported"), condition("Registered", no, "Refused")), StateRefused, "Refused"},
		"the pass failed":                {with(condition("Processed", no, "Error"), condition("Registered", unknown, "WaitingForAgent")), StateFailed, "Error"},
		"it is registered":               {with(condition("Processed", yes, ""), condition("Imported", yes, "Imported"), condition("Registered", yes, "Registered")), StateRegistered, ""},
		"registered, re-import fails":    {with(condition("Imported", no, "Unreachable"), condition("Registered", yes, "Registered")), StateRegistered, "Unreachable"},
		"registered, no heartbeat":       {with(condition("Registered", yes, "Registered"), condition("Connected", no, "HeartbeatMissed")), StateOffline, "HeartbeatMissed"},
		"releases without a Bundle":      {with(condition("Registered", yes, "Registered"), condition("ReleasesManaged", no, "BundlesMissing")), StateRegistered, "BundlesMissing"},
		"registered, deploys nothing":    {with(condition("Registered", yes, "Registered"), condition("Ready", no, "DeploymentsStalled")), StateRegistered, "DeploymentsStalled"},
		"a Bundle is not ready":          {with(condition("Registered", yes, "Registered"), condition("Ready", no, "NotReady")), StateRegistered, "NotReady"},
		"no Bundle, and one not ready":   {with(condition("Registered", yes, "Registered"), condition("Ready", no, "NotReady"), condition("ReleasesManaged", no, "BundlesMissing")), StateRegistered, "BundlesMissing"},
		"registered and connected":       {with(condition("Registered", yes, "Registered"), condition("Connected", yes, "Heartbeat")), StateRegistered, ""},
		"assigned to another controller": {func(c *fleet.Cluster) { c.Labels = map[string]string{fleet.ClusterManagementLabel: "x"} }, StateManaged, ""},
		"quarantined": {func(c *fleet.Cluster) {
			c.Spec.Quarantined = true
			c.Status.Conditions = []genericcondition.GenericCondition{condition("Registered", no, "Quarantined")}
		}, StateQuarantined, "Quarantined"},
		"quarantined, not applied yet": {func(c *fleet.Cluster) {
			c.Spec.Quarantined = true
			c.Status.Conditions = []genericcondition.GenericCondition{condition("Registered", yes, "Registered")}
		}, StateQuarantined, ""},
		"clone": {with(condition("Imported", yes, "Imported"), condition("Registered", no, "CloneDetected")), StateRefused, "CloneDetected"},
		"deleting": {func(c *fleet.Cluster) {
			c.DeletionTimestamp = &metav1.Time{}
			c.Status.Conditions = []genericcondition.GenericCondition{condition("Registered", yes, "Registered")}
		}, StateDeleting, ""},
		"deletion that fails": {func(c *fleet.Cluster) {
			c.DeletionTimestamp = &metav1.Time{}
			c.Status.Conditions = []genericcondition.GenericCondition{condition("Processed", no, "Error")}
		}, StateDeleting, "Error"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
			test.change(c)
			v := OfCluster(c)
			assert.Equal(t, test.state, v.State)
			assert.Equal(t, test.reason, v.Reason)
			if test.reason != "" {
				assert.Equal(t, "because of "+test.reason, v.Message)
			}
		})
	}
}

// The hub may know why an agent is silent: it cannot reach the member either.
func TestOfCluster_offlineImport(t *testing.T) {
	c := &fleet.Cluster{Status: fleet.ClusterStatus{Conditions: []genericcondition.GenericCondition{
		condition("Registered", corev1.ConditionTrue, "Registered"), condition("Connected", corev1.ConditionFalse, "Disconnected"),
		condition("Imported", corev1.ConditionFalse, "CertificateUntrusted"),
	}}}
	v := OfCluster(c)
	assert.Equal(t, StateOffline, v.State)
	assert.Equal(t, "CertificateUntrusted", v.Reason)
	assert.Equal(t, "because of Disconnected; because of CertificateUntrusted", v.Message)
	c.Status.Conditions[2].Status = corev1.ConditionTrue
	assert.Equal(t, "Disconnected", OfCluster(c).Reason)
}

func TestNotReady(t *testing.T) {
	for status, want := range map[corev1.ConditionStatus]bool{corev1.ConditionTrue: false, corev1.ConditionUnknown: false, corev1.ConditionFalse: true} {
		c := &fleet.Cluster{Status: fleet.ClusterStatus{Conditions: []genericcondition.GenericCondition{condition("Ready", status, "R")}}}
		assert.Equal(t, want, OfCluster(c).NotReady, status)
	}
}

func TestWayIn(t *testing.T) {
	tests := map[string]struct {
		cluster fleet.Cluster
		want    string
	}{
		"a kubeconfig":             {fleet.Cluster{Spec: fleet.ClusterSpec{KubeConfigSecret: "s"}}, WayManager},
		"none":                     {fleet.Cluster{Spec: fleet.ClusterSpec{ClientID: "id"}}, WayAgent},
		"local in its usual place": {fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-local", Name: "local"}, Spec: fleet.ClusterSpec{KubeConfigSecret: "s"}}, WayLocal},
		"local where the hub says": {fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "local", Annotations: map[string]string{setIDAnnotation: bootstrapSet}}}, WayLocal},
		"only the name is local":   {fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "local"}}, WayAgent},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, OfCluster(&test.cluster).WayIn) })
	}
}

func TestLastSeen(t *testing.T) {
	require.Nil(t, OfCluster(&fleet.Cluster{}).LastSeen)
	seen := metav1.Now()
	c := &fleet.Cluster{Status: fleet.ClusterStatus{Agent: fleet.AgentStatus{LastSeen: seen}}}
	require.Equal(t, &seen, OfCluster(c).LastSeen)
}

func TestTokenState(t *testing.T) {
	ready := func(status corev1.ConditionStatus, reason string) func(*fleet.ClusterRegistrationToken) {
		return func(token *fleet.ClusterRegistrationToken) {
			token.Status.Conditions = []genericcondition.GenericCondition{condition("Ready", status, reason)}
		}
	}
	tests := map[string]struct {
		change        func(*fleet.ClusterRegistrationToken)
		state, reason string
	}{
		"new": {func(*fleet.ClusterRegistrationToken) {}, StateNew, ""},
		"of an import": {func(token *fleet.ClusterRegistrationToken) {
			token.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", UID: "c"}}
		}, StateReady, ""},
		"usable": {ready(corev1.ConditionTrue, "Ready"), StateReady, ""},
		"a request was refused": {func(token *fleet.ClusterRegistrationToken) {
			token.Status.Conditions = []genericcondition.GenericCondition{
				{Type: "Ready", Status: corev1.ConditionTrue}, {Type: "RequestsAccepted", Status: corev1.ConditionFalse, Reason: "ClientIDNotAllowed"},
			}
		}, StateReady, "ClientIDNotAllowed"},
		"waiting":            {ready(corev1.ConditionUnknown, "WaitingForCredential"), StateWaiting, "WaitingForCredential"},
		"refused":            {ready(corev1.ConditionFalse, "TTLRequired"), StateFailed, "TTLRequired"},
		"without conditions": {func(token *fleet.ClusterRegistrationToken) { token.Status.SecretName = "s" }, StateReady, ""},
		"used up": {func(token *fleet.ClusterRegistrationToken) {
			token.Spec.UsageLimit, token.Status.Uses = ptr.To(int32(2)), 2
			token.Status.SecretName = "s"
		}, StateUsedUp, "TokenUsedUp"},
		"not used up": {func(token *fleet.ClusterRegistrationToken) {
			token.Spec.UsageLimit, token.Status.Uses = ptr.To(int32(2)), 1
			token.Status.SecretName = "s"
		}, StateReady, ""},
		"undecodable": {func(token *fleet.ClusterRegistrationToken) {
			token.Undecodable, token.Status.SecretName = "spec.ttl", "s"
		}, StateFailed, "TokenInvalid"},
		"deleted, but not gone": {func(token *fleet.ClusterRegistrationToken) { token.DeletionTimestamp = &metav1.Time{} }, StateDeleting, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			token := &fleet.ClusterRegistrationToken{}
			test.change(token)
			v := OfToken(token)
			assert.Equal(t, test.state, v.State)
			assert.Equal(t, test.reason, v.Reason)
		})
	}
}

// The summary shows every limit of a token, under the name that it has in the spec.
func TestOfToken_hasEveryFieldOfTheSpec(t *testing.T) {
	spec := fleet.ClusterRegistrationTokenSpec{
		TTL: &metav1.Duration{Duration: time.Hour}, UsageLimit: ptr.To(int32(2)), ClientIDs: []string{"a"}, ClientIDPattern: "a-*", Labels: map[string]string{"env": "prod"},
		AllowedLabelKeys: &[]string{"region"}, LongLivedCredentials: fleet.LongLivedRefuse, Approval: fleet.ApprovalManual,
	}
	fields := reflect.ValueOf(spec)
	for i := range fields.NumField() {
		assert.False(t, fields.Field(i).IsZero(), "this test does not set %s", fields.Type().Field(i).Name)
	}
	inJSON := func(value any) (decoded map[string]any) {
		encoded, err := json.Marshal(value)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(encoded, &decoded))
		return decoded
	}
	want := inJSON(spec)
	want["ttl"] = "1h0m0s"
	assert.Subset(t, inJSON(OfToken(&fleet.ClusterRegistrationToken{Spec: spec})), want)
}

func TestTokenExpires_importTokenWithoutStatus(t *testing.T) {
	token := &fleet.ClusterRegistrationToken{Spec: fleet.ClusterRegistrationTokenSpec{TTL: &metav1.Duration{Duration: time.Hour}}}
	token.CreationTimestamp = metav1.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	assert.Nil(t, OfToken(token).Expires)
	token.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", UID: "c"}}
	require.NotNil(t, OfToken(token).Expires)
	assert.Equal(t, 13, OfToken(token).Expires.Hour())
}

func TestTokenTTL(t *testing.T) {
	of := func(d time.Duration) string {
		return OfToken(&fleet.ClusterRegistrationToken{Spec: fleet.ClusterRegistrationTokenSpec{TTL: &metav1.Duration{Duration: d}}}).TTL
	}
	assert.Equal(t, "24h0m0s", of(24*time.Hour))
	assert.Empty(t, of(0), "0 means that it does not expire")
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, PrintTable(&b, []string{"NAME", "STATE"}, [][]string{{"ä", "Registered"}, {"longer", ""}, {"two\nlines", "\x1b[31mred\u009b"}}))
	require.Equal(t, "NAME        STATE\nä           Registered\nlonger      -\ntwo lines   [31mred\n", b.String())
}

func TestAgoAndUntil(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(d)} }
	assert.Equal(t, "90s ago", Ago(at(-90*time.Second), now))
	assert.Equal(t, "0s ago", Ago(at(time.Second), now), "the clock of the member is ahead")
	assert.Equal(t, "-", Ago(nil, now))
	assert.Equal(t, "in 24h", Until(at(24*time.Hour), now))
	assert.Equal(t, "now", Until(at(-time.Hour), now))
	assert.Equal(t, "never", Until(nil, now))
}

func TestRequestState(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	says := func(status corev1.ConditionStatus, reason string) func(*fleet.ClusterRegistration) {
		return func(r *fleet.ClusterRegistration) {
			r.Status.Conditions = []genericcondition.GenericCondition{condition("Granted", status, reason)}
		}
	}
	for name, test := range map[string]struct {
		change        func(*fleet.ClusterRegistration)
		state, reason string
	}{
		"new":                {func(*fleet.ClusterRegistration) {}, StateNew, ""},
		"waiting":            {says(unknown, "WaitingForApproval"), StateWaiting, "WaitingForApproval"},
		"refused":            {says(no, "ClientIDInUse"), StateRefused, "ClientIDInUse"},
		"decided again":      {says(no, "Error"), StateWaiting, "Error"},
		"granted":            {says(yes, "Granted"), StateGranted, ""},
		"without conditions": {func(r *fleet.ClusterRegistration) { r.Status.Granted = true }, StateGranted, ""},
		"granted and void": {func(r *fleet.ClusterRegistration) {
			r.Status.Granted = true
			says(no, "CredentialRevoked")(r)
		}, StateRefused, "CredentialRevoked"},
		"deleting": {func(r *fleet.ClusterRegistration) { r.DeletionTimestamp = &metav1.Time{} }, StateDeleting, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := &fleet.ClusterRegistration{}
			test.change(r)
			v := OfRequest(r)
			assert.Equal(t, test.state, v.State)
			assert.Equal(t, test.reason, v.Reason)
		})
	}
}

func TestRequestCluster(t *testing.T) {
	r := &fleet.ClusterRegistration{Spec: fleet.ClusterRegistrationSpec{ClientID: "id"}}
	assert.Equal(t, registration.ClusterName("id"), OfRequest(r).Cluster, "the one that the hub would create")
	r.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", Name: "x"}, {Kind: "Cluster", Name: "east"}}
	assert.Equal(t, "east", OfRequest(r).Cluster)
	r.Status.ClusterName = "west"
	assert.Equal(t, "west", OfRequest(r).Cluster)
}

func TestOfRequest(t *testing.T) {
	created := metav1.Now()
	v := OfRequest(&fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "r", CreationTimestamp: created,
		Labels:      map[string]string{fleet.RegistrationTokenLabel: "tok"},
		Annotations: map[string]string{fleet.CreatorAnnotation: "system:serviceaccount:ns:tok-1"},
	}, Spec: fleet.ClusterRegistrationSpec{ClientID: "id", ClientRandom: "secret", ClusterLabels: map[string]string{"a": "b"}}})
	assert.Equal(t, Request{
		Namespace: "ns", Name: "r", Cluster: registration.ClusterName("id"), ClientID: "id", Token: "tok",
		Creator: "system:serviceaccount:ns:tok-1", Labels: map[string]string{"a": "b"}, State: StateNew, Message: notProcessed, Created: &created,
	}, v)
}

// Only the hub can name the user for whom it created a request.
func TestOfRequestForClusternet(t *testing.T) {
	const hub, agent = "system:serviceaccount:cattle-fleet-system:fleet-controller", "system:bootstrap:abcdef"
	r := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{fleet.CreatorAnnotation: hub, fleet.RequesterAnnotation: agent},
	}}
	for message, want := range map[string]string{"": hub, "created by " + agent: agent, "created by " + hub: hub, "created by " + agent + "2": hub} {
		r.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionOriginProved, Status: corev1.ConditionTrue, Message: message}}
		assert.Equal(t, want, OfRequest(r).Creator, message)
	}
}

func TestSettings(t *testing.T) {
	agent := func(generation string) *fleet.Cluster {
		c := &fleet.Cluster{}
		c.Status.Agent = fleet.AgentStatus{LastSeen: metav1.Now(), Generation: generation}
		c.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionReconciled, Status: corev1.ConditionTrue, Reason: fleet.ReasonReconciled}}
		return c
	}
	for name, row := range map[string]struct {
		want   string
		change func(*fleet.Cluster)
	}{
		"no heartbeat yet":              {"", func(c *fleet.Cluster) { c.Status.Agent = fleet.AgentStatus{} }},
		"as wanted":                     {"Applied", func(*fleet.Cluster) {}},
		"an agent that reports nothing": {"Applied", func(c *fleet.Cluster) { c.Status.Agent.Generation = "" }},
		"an agent that nobody manages": {"Applied", func(c *fleet.Cluster) {
			c.Status.Conditions[0].Reason = fleet.ReasonAgentNotManaged
			c.Status.Agent.Generation = "x"
		}},
		"before the Bundle of the agent": {"Pending", func(c *fleet.Cluster) { c.Status.Agent.Generation = "import" }},
		"a Bundle that cannot be made":   {"Pending", func(c *fleet.Cluster) { c.Status.Conditions[0].Status = corev1.ConditionFalse }},
		"an agent to be installed again": {"Pending", func(c *fleet.Cluster) {
			c.Spec.RedeployAgentGeneration = 1
			c.Status.AgentDeployedGeneration = new(int64)
		}},
		"settings that need an import":    {"Pending", func(c *fleet.Cluster) { c.Status.AgentConfigChanged = true }},
		"a connection that does not work": {"Pending", func(c *fleet.Cluster) { c.Status.Agent.Hub = &fleet.AgentHub{Pending: "no route"} }},
	} {
		c := agent(registration.ManagedGeneration(0))
		row.change(c)
		assert.Equal(t, row.want, OfCluster(c).Settings, name)
	}
}
