package admin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

var clusterResource = schema.GroupResource{Group: "fleet.cattle.io", Resource: "clusters"}

func conditions(kind string, status corev1.ConditionStatus, reason string) []genericcondition.GenericCondition {
	return []genericcondition.GenericCondition{{Type: kind, Status: status, Reason: reason, Message: "because of " + reason}}
}

func TestExplain(t *testing.T) {
	noKind := apierrors.NewGenericServerResponse(404, "get", clusterResource, "", "", 0, true)
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"no namespace":     {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"), "create it with `kubectl --context=c create namespace ns`"},
		"no kind":          {noKind, "is this a hub?"},
		"no object":        {apierrors.NewNotFound(clusterResource, "c"), `clusters.fleet.cattle.io "c" not found`},
		"no API server":    {errors.New("connection refused"), "connection refused"},
		"another response": {apierrors.NewForbidden(clusterResource, "c", errors.New("no")), "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&Hub{Flags: " --context=c"}).Explain(test.err, "ns")
			assert.ErrorContains(t, err, test.want)
			assert.ErrorIs(t, err, test.err)
		})
	}
	_, err := Connect(&rest.Config{Host: "://"})
	require.Error(t, err)
}

func TestAwait(t *testing.T) {
	broken, forbidden := apierrors.NewInternalError(errors.New("etcd is down")), apierrors.NewForbidden(clusterResource, "east", errors.New("no get"))
	unauthorized, missing := apierrors.NewUnauthorized("unknown token"), apierrors.NewNotFound(clusterResource, "east")
	for name, test := range map[string]struct {
		responses []any // errors or statuses; the last one is repeated
		mayAppear bool
		problem   string
		took      time.Duration
	}{
		"ready":                      {responses: []any{"ready"}},
		"later ready":                {responses: []any{"importing", "importing", "ready"}, took: 2 * pollInterval},
		"appears":                    {responses: []any{missing, "ready"}, mayAppear: true, took: pollInterval},
		"does not exist":             {responses: []any{missing}, problem: "Cluster ns/east: it was deleted"},
		"is deleted":                 {responses: []any{"importing", missing}, mayAppear: true, problem: "Cluster ns/east: it was deleted", took: pollInterval},
		"check fails":                {responses: []any{"refused"}, problem: "Cluster ns/east: the hub refuses it"},
		"not allowed":                {responses: []any{broken, forbidden}, problem: "no get", took: pollInterval},
		"unknown credential":         {responses: []any{unauthorized}, problem: "Cluster ns/east: unknown token"},
		"temporary error":            {responses: []any{broken, "ready"}, took: pollInterval},
		"never appears":              {responses: []any{missing}, mayAppear: true, problem: "Cluster ns/east: gave up waiting: new", took: time.Minute},
		"waits":                      {responses: []any{"importing", ""}, problem: "Cluster ns/east: gave up waiting: importing", took: time.Minute},
		"error until the end":        {responses: []any{"importing", broken}, problem: "gave up waiting, and its state is not known: Internal error occurred: etcd is down", took: time.Minute},
		"error and then no object":   {responses: []any{broken, missing}, mayAppear: true, problem: "waiting: new", took: time.Minute},
		"error and then an old wait": {responses: []any{broken, "importing"}, problem: "waiting: importing", took: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				status, err := awaited[string]{
					what: "Cluster ns/east", name: "east", mayAppear: test.mayAppear, status: "new",
					get: func(_ context.Context, name string, _ metav1.GetOptions) (string, error) {
						require.Equal(t, "east", name)
						response := test.responses[0]
						if len(test.responses) > 1 {
							test.responses = test.responses[1:]
						}
						if err, failed := response.(error); failed {
							return "", err
						}
						return response.(string), nil
					},
					check: func(status string) (bool, string, error) {
						if status == "refused" {
							return false, "", errors.New("the hub refuses it")
						}
						return status == "ready", status, nil
					},
				}.wait(ctx)
				assert.Equal(t, test.took, time.Since(began))
				if test.problem == "" {
					require.NoError(t, err)
					assert.Equal(t, "ready", status)
					return
				}
				require.ErrorContains(t, err, test.problem)
			})
		})
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err := awaited[string]{what: "Cluster ns/east", get: func(ctx context.Context, _ string, _ metav1.GetOptions) (string, error) { return "", ctx.Err() }}.wait(stopped)
	require.EqualError(t, err, "stopped waiting for Cluster ns/east: context canceled")
}

func TestAwaitRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := &Hub{Fleet: fake.NewSimpleClientset().FleetV1alpha1()}
		clusters := hub.Fleet.Clusters("ns")
		go func() {
			cluster, err := clusters.Create(t.Context(), &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}}, metav1.CreateOptions{})
			assert.NoError(t, err)
			for _, said := range [][]genericcondition.GenericCondition{
				conditions(fleet.ConditionImported, corev1.ConditionFalse, "Unreachable"),
				conditions(fleet.ConditionRegistered, corev1.ConditionUnknown, "WaitingForAgent"),
				conditions(fleet.ConditionRegistered, corev1.ConditionTrue, "Registered"),
			} {
				time.Sleep(time.Second)
				cluster.Status.Conditions = said
				cluster, err = clusters.UpdateStatus(t.Context(), cluster, metav1.UpdateOptions{})
				assert.NoError(t, err)
			}
		}()
		var states []string
		cluster, err := hub.AwaitRegistered(t.Context(), "ns", "east", func(v view.Cluster) { states = append(states, v.State) })
		require.NoError(t, err)
		assert.Equal(t, "east", cluster.Name)
		assert.Equal(t, []string{view.StateNew, view.StateImportFailed, view.StateWaitingForAgent, view.StateRegistered}, states, "each state once")
	})
}

func TestAwaitRegistered_failureThatLasts(t *testing.T) {
	east := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "east"}}
	east.Status.Conditions = conditions(fleet.ConditionImported, corev1.ConditionFalse, fleet.ReasonAddressNotAllowed)
	_, err := (&Hub{Fleet: fake.NewSimpleClientset(east).FleetV1alpha1()}).AwaitRegistered(t.Context(), "ns", "east", func(view.Cluster) {})
	require.EqualError(t, err, "Cluster ns/east: ImportFailed: AddressNotAllowed: because of AddressNotAllowed")
}

func TestAwaitQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		east := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "east"}}
		hub := &Hub{Fleet: fake.NewSimpleClientset(east).FleetV1alpha1()}
		clusters := hub.Fleet.Clusters("ns")
		require.NoError(t, hub.Quarantine(t.Context(), "ns", "east", true, ""))
		east, err := clusters.Get(t.Context(), "east", metav1.GetOptions{})
		require.NoError(t, err)
		require.True(t, east.Spec.Quarantined)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.EqualError(t, hub.AwaitQuarantine(ctx, "ns", "east", true), "Cluster ns/east: gave up waiting: the hub has not answered: is a fleet-controller running?")

		east.Status.Conditions = conditions(fleet.ConditionRegistered, corev1.ConditionFalse, fleet.ReasonQuarantined)
		_, err = clusters.UpdateStatus(t.Context(), east, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, hub.AwaitQuarantine(t.Context(), "ns", "east", true))
	})
}

func TestAwaitNoRights(t *testing.T) {
	agents := registration.ClusterNamespace("ns", "east")
	binding := func(namespace, name string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue}}, Subjects: subjects,
		}
	}
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: agents, Name: "request-a"}
	other := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: registration.ClusterNamespace("ns", "west"), Name: "request-b"}
	group := rbacv1.Subject{Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + agents}
	gone := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: agents, Name: "request-revoked"}
	for name, row := range map[string]struct {
		binding *rbacv1.RoleBinding
		want    string
	}{
		"of a ServiceAccount that was revoked": {binding(agents, "own", gone), ""},
		"of the agent":                         {binding(agents, "own", account), "RoleBinding " + agents + "/own"},
		"of all agents of a Cluster":           {binding(agents, "secrets", group), "RoleBinding " + agents + "/secrets"},
		"in the workspace":                     {binding("ns", "heartbeat", account), "RoleBinding ns/heartbeat"},
		"of another Cluster":                   {binding("ns", "heartbeat", other), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kubernetes := kubernetesfake.NewSimpleClientset(row.binding, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: agents, Name: account.Name}})
				hub := &Hub{Kubernetes: kubernetes}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := hub.AwaitNoRights(ctx, "ns", "east")
				if row.want == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, "the hub has not deleted "+row.want)
				require.NoError(t, kubernetes.RbacV1().RoleBindings(row.binding.Namespace).Delete(t.Context(), row.binding.Name, metav1.DeleteOptions{}))
				require.NoError(t, hub.AwaitNoRights(t.Context(), "ns", "east"))
			})
		})
	}
}

func TestQuarantineRecordsTheReason(t *testing.T) {
	kubernetes := kubernetesfake.NewSimpleClientset()
	hub := &Hub{Fleet: fake.NewSimpleClientset(&fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "east"}}).FleetV1alpha1(), Kubernetes: kubernetes}
	recorded := func(quarantined bool, reason string) string {
		require.NoError(t, hub.Quarantine(t.Context(), "ns", "east", quarantined, reason))
		east, err := hub.Fleet.Clusters("ns").Get(t.Context(), "east", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, quarantined, east.Spec.Quarantined)
		return east.Annotations[fleet.QuarantineReasonAnnotation]
	}
	require.Equal(t, "stolen", recorded(true, "stolen"), "the API server does not say who asks")
	kubernetes.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		review := &authenticationv1.SelfSubjectReview{}
		review.Status.UserInfo.Username = "alice"
		return true, review, nil
	})
	require.Equal(t, `alice: "lost"`, recorded(true, `"lost"`))
	require.Empty(t, recorded(false, ""))
}

func TestAwaitGranted(t *testing.T) {
	for name, row := range map[string]struct {
		status corev1.ConditionStatus
		reason string
		want   string
	}{
		"granted":                            {corev1.ConditionTrue, fleet.ReasonGranted, ""},
		"refused for another reason":         {corev1.ConditionFalse, fleet.ReasonTokenUsedUp, "ClusterRegistration ns/r: Refused: TokenUsedUp: because of TokenUsedUp"},
		"the hub has not seen the approval":  {corev1.ConditionFalse, fleet.ReasonClientIDInUse, "gave up waiting: Refused: ClientIDInUse"},
		"it waits for something else, still": {corev1.ConditionUnknown, fleet.ReasonTooManyUnconnected, "gave up waiting: Waiting: TooManyUnconnected"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				request := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"}}
				request.Status.Conditions = conditions(fleet.ConditionGranted, row.status, row.reason)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := (&Hub{Fleet: fake.NewSimpleClientset(request).FleetV1alpha1()}).AwaitGranted(ctx, request)
				if row.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, row.want)
				}
			})
		})
	}
}

func TestAwaitToken(t *testing.T) {
	for name, test := range map[string]struct {
		status          corev1.ConditionStatus
		reason, problem string
	}{
		"ready":   {corev1.ConditionTrue, "Ready", ""},
		"refused": {corev1.ConditionFalse, "TTLRequired", "ClusterRegistrationToken ns/tok: the hub refuses it: TTLRequired: because of TTLRequired"},
		"waiting": {corev1.ConditionUnknown, "WaitingForCredential", "gave up waiting: because of WaitingForCredential"},
		"no hub":  {"", "", "is a fleet-controller running?"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hub := &Hub{Fleet: fake.NewSimpleClientset().FleetV1alpha1()}
				require.NoError(t, hub.CreateToken(t.Context(), "ns", "tok", fleet.ClusterRegistrationTokenSpec{TTL: TTL(time.Hour)}))
				tokens := hub.Fleet.ClusterRegistrationTokens("ns")
				token, err := tokens.Get(t.Context(), "tok", metav1.GetOptions{})
				require.NoError(t, err)
				if test.status != "" {
					token.Status.Conditions = conditions(fleet.ConditionReady, test.status, test.reason)
					_, err = tokens.UpdateStatus(t.Context(), token, metav1.UpdateOptions{})
					require.NoError(t, err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err = hub.AwaitToken(ctx, "ns", "tok")
				if test.problem == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, test.problem)
			})
		})
	}
}

func TestValues(t *testing.T) {
	kube := kubernetesfake.NewSimpleClientset()
	hub := &Hub{Kubernetes: kube}
	token := &fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tok"}, Status: fleet.ClusterRegistrationTokenStatus{SecretName: "tok"},
	}
	_, err := hub.Values(t.Context(), token)
	require.ErrorContains(t, err, "read Secret ns/tok of the token")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tok"}}
	require.NoError(t, kube.Tracker().Add(secret))
	_, err = hub.Values(t.Context(), token)
	require.EqualError(t, err, `Secret ns/tok has no key "values": delete it, and the hub creates it again`)
	secret.Data = map[string][]byte{"values": []byte("token: x\n")}
	_, err = kube.CoreV1().Secrets("ns").Update(t.Context(), secret, metav1.UpdateOptions{})
	require.NoError(t, err)
	values, err := hub.Values(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, "token: x\n", string(values))
}

// Deleting a Cluster removes what runs on the member, so the message does not propose it to those who want the agent installed again.
func TestImport_existingCluster(t *testing.T) {
	for secret, want := range map[string]string{
		"east-kubeconfig": "Cluster ns/east already exists: to have the hub install its agent again, run `muster --context=hub -n ns rotate east`; " +
			"to import another cluster, choose another name",
		"": "Cluster ns/east already exists, for an agent that registers with a token: choose another name",
	} {
		east := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "east"}, Spec: fleet.ClusterSpec{KubeConfigSecret: secret}}
		hub := &Hub{Fleet: fake.NewSimpleClientset(east).FleetV1alpha1(), Flags: " --context=hub"}
		assert.EqualError(t, hub.Import(t.Context(), Import{Namespace: "ns", Name: "east"}), want)
	}
}

// The response to a create can be lost, whether the Cluster was created or not. The program can be interrupted at the same moment.
func TestUndoImport(t *testing.T) {
	lost, away := apierrors.NewTimeoutError("the response was lost", 0), errors.New("connection refused")
	created := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "east"}, Spec: fleet.ClusterSpec{KubeConfigSecret: "east-kubeconfig"}}
	another := created.DeepCopy()
	another.Spec.KubeConfigSecret = "elsewhere"
	for name, test := range map[string]struct {
		exists  *fleet.Cluster // after the create has failed
		getErr  error          // after the create has failed
		secret  bool           // whether the Secret remains
		problem string
	}{
		"not created":        {nil, nil, false, "create Cluster ns/east: "},
		"created":            {created, nil, true, "Cluster ns/east exists with Secret east-kubeconfig, and the hub imports it"},
		"created by another": {another, nil, false, "create Cluster ns/east: "},
		"not known":          {nil, away, true, "whether the Cluster exists is not known (connection refused), so Secret ns/east-kubeconfig was not deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			clusters, kube := fake.NewSimpleClientset(), kubernetesfake.NewSimpleClientset()
			hub := &Hub{Kubernetes: kube, Fleet: clusters.FleetV1alpha1()}
			ctx, interrupt := context.WithCancel(t.Context())
			clusters.PrependReactor("create", "clusters", func(clienttesting.Action) (bool, runtime.Object, error) {
				if test.exists != nil {
					require.NoError(t, clusters.Tracker().Add(test.exists))
				}
				interrupt()
				return true, nil, lost
			})
			clusters.PrependReactor("get", "clusters", func(clienttesting.Action) (bool, runtime.Object, error) {
				return test.getErr != nil && ctx.Err() != nil, nil, test.getErr
			})
			err := hub.Import(ctx, Import{Namespace: "ns", Name: "east", Kubeconfig: []byte("k")})
			require.ErrorIs(t, err, lost)
			assert.ErrorContains(t, err, test.problem)
			_, err = kube.CoreV1().Secrets("ns").Get(t.Context(), "east-kubeconfig", metav1.GetOptions{})
			assert.Equal(t, !test.secret, apierrors.IsNotFound(err), "%v", err)
		})
	}
}

// contextRecorder is a client of Clusters that records the error of the context at each Get.
type contextRecorder struct {
	fleetclient.FleetV1alpha1Interface
	fleetclient.ClusterInterface
	errs *[]error
}

func (c contextRecorder) Clusters(string) fleetclient.ClusterInterface { return c }

func (c contextRecorder) Get(ctx context.Context, name string, _ metav1.GetOptions) (*fleet.Cluster, error) {
	*c.errs = append(*c.errs, ctx.Err())
	return nil, apierrors.NewNotFound(clusterResource, name)
}

func TestUndoImportAfterAnInterruption(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var errs []error
	failed := errors.New("failed")
	hub := &Hub{Kubernetes: kubernetesfake.NewSimpleClientset(), Fleet: contextRecorder{errs: &errs}}
	require.ErrorIs(t, hub.undoImport(ctx, Import{Namespace: "ns", Name: "east"}, "uid", failed), failed)
	assert.Equal(t, []error{nil}, errs)
}

// Another import has created the Secret again.
func TestUndoImport_uid(t *testing.T) {
	kube := kubernetesfake.NewSimpleClientset()
	failed := errors.New("failed")
	hub := &Hub{Kubernetes: kube, Fleet: contextRecorder{errs: &[]error{}}}
	require.ErrorIs(t, hub.undoImport(t.Context(), Import{Namespace: "ns", Name: "east"}, "uid", failed), failed)
	require.Len(t, kube.Actions(), 1)
	deletion, ok := kube.Actions()[0].(clienttesting.DeleteAction)
	require.True(t, ok)
	assert.Equal(t, types.UID("uid"), *deletion.GetDeleteOptions().Preconditions.UID)
}

func TestHubSilence(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for silence, want := range map[time.Duration]time.Duration{
		-time.Minute: 0, time.Second: 0, 24 * time.Second: 0, 25 * time.Second: 25 * time.Second, time.Hour: time.Hour,
	} {
		kube := kubernetesfake.NewSimpleClientset(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: registration.DefaultSystemNamespace, Name: registration.HubLease},
			Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now.Add(-silence)}, LeaseDurationSeconds: ptr.To[int32](15)},
		})
		assert.Equal(t, want, (&Hub{Kubernetes: kube}).HubSilence(t.Context(), now), silence)
	}
	assert.Zero(t, (&Hub{Kubernetes: kubernetesfake.NewSimpleClientset()}).HubSilence(t.Context(), now), "there is no Lease")
}
