package clusterimport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/access"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/credentialstatus"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Forget cancels the calls to the member of a deleted Cluster and drops its kubeconfig.
func (i *Importer) Forget(key string) {
	namespace, name := kv.RSplit(key, "/")
	cluster := types.NamespacedName{Namespace: namespace, Name: name}
	i.kubeconfigs.drop(cluster)
	for _, purpose := range purposes {
		i.calls.drop(callKey{cluster, purpose})
	}
}

// BeginPass implements cluster.AgentInstaller.
func (i *Importer) BeginPass(cluster *fleet.Cluster) (end func()) {
	return i.calls.beginPass(nameOf(cluster))
}

// Reconcile imports the Cluster if necessary. It keeps the kubeconfig in memory only while the import is under way.
func (i *Importer) Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	out := i.reconcile(ctx, cluster)
	i.calls.withdrawUnbegun(nameOf(cluster), out.Err == nil)
	underWay := out.IsWait() && out.Reason != fleet.ReasonWaitingForKubeconfig
	if !underWay && !i.calls.last(callKey{nameOf(cluster), installing}).state.isPending() {
		i.kubeconfigs.drop(nameOf(cluster))
	}
	return out
}

// reconcile runs one import, from the decision to the record in the status. It does not wait for the member: a call in i.calls sends the
// requests. The Cluster is enqueued when the call gets a slot and when it ends; the next pass then finds the state of the same call.
func (i *Importer) reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	hub := i.Config.Get()
	switch {
	case cluster.Labels[fleet.ClusterManagementLabel] != "":
		return result.Skip()
	case cluster.Spec.KubeConfigSecret == "":
		if by := i.replacedBy(cluster); by != nil {
			return i.replaced(cluster, by)
		}
		return result.Done(fleet.ReasonAgentInitiated, "")
	case cluster.Spec.Quarantined:
		return result.Skip() // an import would give the agent a new registration; condition Registered shows the quarantine
	case i.Config.Problem() != "":
		return result.Stalled(fleet.ReasonConfigInvalid, i.Config.Problem()).In(i.RecheckDelay())
	case agentspec.LocalDisabled(hub, cluster):
		return i.removeLocalAgent(ctx, hub, cluster)
	}

	if err := agentspec.CheckSize(cluster.Spec); err != nil {
		return settingsInvalid(err)
	}

	// Decide whether the Cluster requires an import. Otherwise a changed Secret or configuration may require one.
	requests, err := credentialstatus.Of(i.requests, cluster)
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	_, err = i.tokens.Get(cluster.Namespace, registration.ImportTokenName(cluster.Name))
	by, secretVersion := i.replacedBy(cluster), i.kubeconfigVersion(cluster)
	isChanged := isChangedByPerson(cluster, secretVersion)
	known := facts{
		agentNamespace: agentspec.Namespace(i.Context, cluster),
		tokenGone:      apierrors.IsNotFound(err),
		servedByBundle: agentspec.ServedByBundle(hub, cluster),
		manifestHash:   agentspec.ManifestHash(agentspec.Options(i.Context, cluster, "")),
		registrationID: registrationID(cluster, requests, i.Clock.Now()),
		agentLost:      by == nil && hasLostAgent(cluster) || by != nil && isChanged,
	}
	why := importReason(cluster, known)
	switch {
	case by != nil && !isChanged && known.agentNamespace == by.Status.Import.AgentNamespace:
		setAgentLost(cluster, cluster.Status.Agent.LastSeen)
		return i.replaced(cluster, by)
	case by == nil && !known.agentLost:
		setAgentLost(cluster, metav1.Time{}) // the agent has come back by itself
	}
	switch {
	case why == "" && secretVersion == "" && access.NeedsNoPermission(cluster) && hasSettings(cluster.Status.Import, settingsHash(hub)):
		// The Secret was deleted, and an installed agent does not need it until the settings change that an import delivers. A Cluster that needs a
		// permission for the Secret must not learn that it does not exist: readSecret reports that.
		return imported()
	case why == "" && secretVersion != "" && isRecorded(cluster.Status.Import, secretVersion, settingsHash(hub)):
		return i.maintain(ctx, hub, cluster, secretVersion)
	}

	// Read the kubeconfig Secret and decide which address, CA and TLS mode of the hub the agent gets.
	secret, out := i.readSecret(ctx, cluster, secretVersion)
	if secret == nil {
		return out
	}
	info, problem := decideHubInfo(hub, secret.Data)
	if problem != nil {
		return problem.stalled()
	}
	if why == "" && isInstalledWith(cluster.Status, info) {
		cluster.Status.Import = importStatus(cluster, hub, secret, info, known.agentNamespace)
		return imported()
	}
	if delay := i.missingKeysDelay(cluster.Status.Import, secret, info); delay > 0 {
		return result.Skip().In(delay)
	}

	// One namespace of a member has one agent: leave it to the Cluster that uses the kubeconfig already. Such a Cluster needs no token.
	if out := i.checkUnclaimed(cluster, secret); !out.IsDone() {
		i.calls.drop(callKey{nameOf(cluster), installing})
		return out
	}

	// Prepare the connection, get a token for the agent, and decide what to install.
	member, problem := i.clientFor(hub, cluster, secret, info.tlsMode)
	if problem != nil {
		return problem.stalled()
	}
	values, out := i.ensureToken(ctx, cluster)
	if values == nil {
		return out
	}
	pull, out := i.pullSecrets(ctx, hub, cluster)
	if !out.IsDone() {
		return out
	}
	plan, err := i.plan(hub, cluster, known, info, values, pull)
	if err != nil {
		return settingsInvalid(err)
	}
	if by != nil && !isRedeployed(cluster) {
		plan.replacedBy = by.UID
	}
	inputs, err := plan.inputs(member)
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}

	// Render the objects and install them on the member, unless a call with the same inputs has done so. While there is no slot for the call,
	// nothing is rendered.
	key := callKey{nameOf(cluster), installing}
	call, out := i.reserveUnclaimed(cluster, secret, key, inputs)
	if !out.IsDone() {
		i.calls.drop(key)
		return out
	}
	if call.state == preparing {
		copies, out := i.pullSecretCopies(ctx, pull.names, known.agentNamespace)
		if !out.IsDone() {
			return out
		}
		objects, err := plan.render(i.renderer, copies)
		if err != nil {
			return settingsInvalid(err)
		}
		logrus.WithField(registration.LogCluster, key.cluster.String()).Infof("Installing the agent, because %s",
			cmp.Or(why, "the address, the CA, the TLS mode or the comparison interval that it gets has changed"))
		i.calls.begin(key, i.measured(i.installCall(member, cluster, plan, objects)))
	}
	if out, failed := call.failed(i.Clock.Now()); failed {
		return out
	}
	if call.state != ended {
		// AgentConfigChanged causes another import. Without it, the Cluster would look up to date if its settings changed back while this
		// call runs.
		cluster.Status.AgentConfigChanged = cluster.Status.AgentDeployedGeneration != nil
		return importing()
	}

	i.record(hub, cluster, secret, info, plan)
	if last := cluster.Status.Import; call.replaced != nil {
		last.ReplacedCluster, last.ReplacedTime = *call.replaced, metav1.Time{}
		if last.ReplacedCluster != "" {
			last.ReplacedTime = last.Time
		}
	}
	return imported()
}

// reserveUnclaimed reserves the call that installs the agent, unless another Cluster has claimed the agent since checkUnclaimed: of two passes over Clusters
// with one kubeconfig Secret only one gets a call.
func (i *Importer) reserveUnclaimed(cluster *fleet.Cluster, secret *corev1.Secret, key callKey, inputs string) (memberCall, result.Result) {
	i.claiming.Lock()
	defer i.claiming.Unlock()
	if out := i.checkUnclaimed(cluster, secret); !out.IsDone() {
		return memberCall{}, out
	}
	return i.calls.reserve(key, inputs), result.Done("", "")
}

// checkUnclaimed returns Done unless another Cluster, which comes before this one, may use the same kubeconfig Secret for an agent in the same
// namespace of the member. The imports of the two would take the agent from each other. The Cluster that has the agent comes first, then one that
// installs it. Among equals a Cluster in the namespace of the Secret comes first, then the one that was created earlier. A Cluster that neither
// has the agent nor installs it does not count, nor does one whose import has failed, except while a retry of it may write to the member: it may
// never succeed. A Cluster that is being deleted does not count either: a management server moves a cluster by deleting one Cluster and creating
// another.
func (i *Importer) checkUnclaimed(cluster *fleet.Cluster, secret *corev1.Secret) result.Result {
	users, err := i.clusters.GetByIndex(index.ByKubeconfig, index.Key(secret.Namespace, secret.Name))
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	first, firstClaim := cluster, i.claimOf(cluster)
	for _, other := range users {
		if other.UID == cluster.UID || other.DeletionTimestamp != nil || other.Labels[fleet.ClusterManagementLabel] != "" ||
			agentspec.Namespace(i.Context, other) != agentspec.Namespace(i.Context, cluster) || !access.MayUse(other, secret) {
			continue
		}
		claim := i.claimOf(other)
		if claim > firstClaim || claim == firstClaim && claim != noAgent && claimsBefore(other, first, secret.Namespace) {
			first, firstClaim = other, claim
		}
	}
	if first == cluster {
		return result.Done("", "")
	}
	does := "has"
	if firstClaim == installsAgent {
		does = "installs"
	}
	return result.Stalled(fleet.ReasonKubeconfigInUse, fmt.Sprintf(
		"Cluster %s/%s uses the same kubeconfig Secret and %s its agent in the same namespace of the member; delete one of the two, or set another spec.agentNamespace",
		first.Namespace, first.Name, does)).In(i.RecheckDelay())
}

// agentClaim says how far a Cluster is with the import of an agent. Of two Clusters, the one with the greater claim gets the agent.
type agentClaim int

const (
	noAgent agentClaim = iota
	installsAgent
	importedAgent // according to the status; an import for another Cluster may have taken the agent since
)

// claimOf returns the claim to the agent in the namespace that the Cluster names now; its last import may have used another one.
func (i *Importer) claimOf(cluster *fleet.Cluster) agentClaim {
	status, call := cluster.Status, i.calls.last(callKey{nameOf(cluster), installing})
	isImported := status.AgentDeployedGeneration != nil
	mayWrite := call.state == preparing || call.state == running
	switch {
	case isImported && (status.Import == nil || status.Import.AgentNamespace == agentspec.Namespace(i.Context, cluster)):
		return importedAgent
	case mayWrite, call.failure == nil && (call.state.isPending() || call.state == ended && !isImported): // the status does not record the call yet
		return installsAgent
	}
	return noAgent
}

// claimsBefore reports whether Cluster a comes before b for an agent that both claim with a kubeconfig Secret in secretNamespace.
func claimsBefore(a, b *fleet.Cluster, secretNamespace string) bool {
	if own := a.Namespace == secretNamespace; own != (b.Namespace == secretNamespace) {
		return own
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}

// measured returns an install call that records its duration and result in the metrics, unless it was cancelled.
func (i *Importer) measured(install func(context.Context) *failure) func(context.Context) *failure {
	return func(ctx context.Context) *failure {
		started := i.Clock.Now()
		failure := install(ctx)
		if errors.Is(ctx.Err(), context.Canceled) {
			return failure
		}
		reason := ""
		if failure != nil {
			reason = failure.reason
		}
		i.Metrics.Imported(i.Clock.Since(started), reason)
		return failure
	}
}

// missingKeysPeriod is how long a new kubeconfig Secret may lack the optional keys that its predecessor had.
const missingKeysPeriod = 30 * time.Second

// missingKeysDelay returns how long to wait for optional keys that disappeared from the Secret. Management servers delete the Secret,
// create it again, and add the keys later; without the wait the agent would be sent to another address and back.
func (i *Importer) missingKeysDelay(last *fleet.ImportStatus, secret *corev1.Secret, info hubInfo) time.Duration {
	if last == nil || !(last.APIServerURLFromSecret && !info.urlFromSecret || last.APIServerCAFromSecret && !info.caFromSecret) {
		return 0
	}
	// The clock of the hub may be behind the one of the API server.
	return min(missingKeysPeriod, missingKeysPeriod-i.Clock.Since(secret.CreationTimestamp.Time))
}

const (
	// importTokenTTL is how long an installed agent has to register.
	importTokenTTL = 12 * time.Hour
	// reportTokenAfter is the age from which a token that is not ready is reported in the status. Most tokens are ready within
	// milliseconds, and a status write for each of hundreds of imports would delay them all.
	reportTokenAfter = 30 * time.Second
)

// ensureToken creates the ClusterRegistrationToken with which the agent will register, and returns its values once the controller of tokens
// has written them to its Secret. Until then values is nil, and the caller returns out.
func (i *Importer) ensureToken(ctx context.Context, cluster *fleet.Cluster) (values *registration.Values, out result.Result) {
	name := registration.ImportTokenName(cluster.Name)
	key := index.Key(cluster.Namespace, name)
	token, err := i.tokens.Get(cluster.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && i.createdTokens.IsExpected(key):
		return nil, importing().In(expectations.Timeout) // the token may be deleted before the cache contains it
	case apierrors.IsNotFound(err):
		_, err := i.FleetClient.ClusterRegistrationTokens(cluster.Namespace).Create(ctx, &fleet.ClusterRegistrationToken{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: cluster.Namespace,
				Name:      name,
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID,
				}},
			},
			Spec: fleet.ClusterRegistrationTokenSpec{TTL: &metav1.Duration{Duration: importTokenTTL}},
		}, metav1.CreateOptions{})
		if err == nil {
			i.createdTokens.Expect(key)
		} else if !apierrors.IsAlreadyExists(err) {
			return nil, result.Retry(fleet.ReasonError, fmt.Errorf("creating ClusterRegistrationToken %s: %w", key, err))
		}
		return nil, importing()
	case err != nil:
		return nil, result.Retry(fleet.ReasonError, err)
	}
	i.createdTokens.Observed(key)
	if !slices.ContainsFunc(token.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == cluster.UID }) {
		// The token may belong to a deleted Cluster of this name; Kubernetes will then delete it soon.
		return nil, result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
			"ClusterRegistrationToken %s/%s exists and does not belong to this Cluster; delete it", token.Namespace, token.Name)).In(i.RecheckDelay())
	}

	waiting := result.Wait(fleet.ReasonWaitingForToken, "waiting for the token with which the agent will register")
	if left := reportTokenAfter - i.Clock.Since(token.CreationTimestamp.Time); left > 0 {
		waiting = importing().In(min(left, reportTokenAfter)) // the clock of the API server may be ahead
	}
	if token.DeletionTimestamp != nil || fleetstatus.IsFalse(token.Status.Conditions, fleet.ConditionReady) {
		return nil, waiting
	}
	secret, err := i.secrets.Get(token.Namespace, token.Name)
	if err == nil && len(secret.Data) == 0 && registration.HoldsValuesOf(secret, token) { // the cache leaves out large values
		secret, err = i.Kubernetes.CoreV1().Secrets(token.Namespace).Get(ctx, token.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, waiting.In(result.Earliest(waiting.After, i.RecheckDelay()))
	case err != nil:
		return nil, result.Retry(fleet.ReasonError, err)
	case !registration.HoldsValuesOf(secret, token):
		return nil, waiting
	}
	decoded, err := registration.DecodeLimitedValues(secret.Data[registration.ValuesKey], i.Config.Get().APIServerCA)
	if err != nil || decoded.Token == "" {
		return nil, waiting
	}
	return &decoded, result.Done("", "")
}

// installCall is the call that installs the objects of the plan on the member.
func (i *Importer) installCall(m *memberClient, cluster *fleet.Cluster, plan *installPlan, objects []runtime.Object) func(context.Context) *failure {
	workspace, uid := cluster.Namespace, cluster.UID
	return func(ctx context.Context) *failure {
		return i.calls.onMember(ctx, m, workspace, i.calls.members.shared, func(ctx context.Context) *failure {
			if plan.mayBeTaken {
				if problem := i.checkNotTaken(ctx, m, plan.agent.namespace, workspace, uid, plan.replacedBy); problem != nil {
					return problem
				}
			}
			before, problem := m.install(ctx, plan, objects)
			switch owner := i.clusterOf(ctx, before.credential, before.token); {
			case !plan.reregister: // the agent on the member was not looked at
			case owner == nil:
				i.calls.foundAgentOf(nameOf(cluster), "")
			case owner.UID != uid:
				i.calls.foundAgentOf(nameOf(cluster), replacedKey(owner))
			}
			return problem
		})
	}
}

// replacementPeriod is how long after an import of another Cluster an agent may send heartbeats with its own credential: until the other one has registered,
// for which the member may have to pull an image.
const replacementPeriod = time.Hour

// replacedBy returns the Cluster whose import has replaced the agent of this one, nil if there is none, or if this Cluster has had an agent since: it was
// imported later, or sends heartbeats. While the other one is being deleted, it counts: its agent first removes what it has deployed.
func (i *Importer) replacedBy(cluster *fleet.Cluster) (by *fleet.Cluster) {
	if !agentspec.Disconnected(cluster) {
		return nil
	}
	others, _ := i.clusters.GetByIndex(index.ByReplacedCluster, replacedKey(cluster)) // fails only for an unknown index
	for _, other := range others {
		last := other.Status.Import
		isImportedLater := cluster.Status.Import != nil && last.ReplacedTime.Before(&cluster.Status.Import.Time)
		isSeenLater := cluster.Status.Agent.LastSeen.After(last.ReplacedTime.Add(replacementPeriod))
		if isImportedLater || isSeenLater || last.AgentNamespace != i.lastNamespace(cluster) {
			continue
		}
		if by == nil || by.Status.Import.ReplacedTime.Before(&last.ReplacedTime) {
			by = other
		}
	}
	return by
}

// replacedKey is the value of status.import.replacedCluster that names this Cluster. It has no UID, because the other Cluster may be in another workspace.
func replacedKey(cluster *fleet.Cluster) string {
	return index.Key(cluster.Namespace, index.Key(cluster.Name, digest(string(cluster.UID))))
}

// isChangedByPerson reports whether a person has asked for an import while another Cluster has the agent: for another registration, or with another
// kubeconfig, which may lead to another member. No other cause of an import must take the agent from the other Cluster, which may be disconnected
// for a moment.
func isChangedByPerson(cluster *fleet.Cluster, secretVersion string) bool {
	last := cluster.Status.Import
	return isRedeployed(cluster) || secretVersion != "" && last != nil && last.KubeConfigSecretVersion != secretVersion
}

// replaced is the result while another Cluster has the agent on the member. When that ends, the call that has installed the agent must be repeated.
func (i *Importer) replaced(cluster, by *fleet.Cluster) result.Result {
	i.calls.drop(callKey{nameOf(cluster), installing})
	remedy := "set another spec.agentNamespace"
	if cluster.Spec.KubeConfigSecret == "" {
		remedy = "install the agent of this one in another namespace"
	}
	return result.Stalled(fleet.ReasonKubeconfigInUse, fmt.Sprintf("%s has imported the same member later, and has replaced the agent in namespace %s there; "+
		"delete one of the two, or %s", nameFor(cluster.Namespace, by), by.Status.Import.AgentNamespace, remedy))
}

// hasLostAgent reports whether an earlier pass has found that another Cluster has the agent, and the agent has sent no heartbeat since.
func hasLostAgent(cluster *fleet.Cluster) bool {
	last := cluster.Status.Import
	return last != nil && !last.AgentLost.IsZero() && last.AgentLost.Equal(&cluster.Status.Agent.LastSeen)
}

// setAgentLost changes status.import.agentLost.
func setAgentLost(cluster *fleet.Cluster, lastSeen metav1.Time) {
	if last := cluster.Status.Import; last != nil && !last.AgentLost.Equal(&lastSeen) {
		changed := last.DeepCopy()
		changed.AgentLost = lastSeen
		cluster.Status.Import = changed
	}
}

// nameFor returns the name of another Cluster for a message in a workspace, in which nobody may learn the names of others.
func nameFor(workspace string, other *fleet.Cluster) string {
	if other.Namespace != workspace {
		return "a Cluster of another workspace"
	}
	return "Cluster " + index.Key(other.Namespace, other.Name)
}

// clusterOf returns the Cluster of this hub for which a credential on a member was issued, nil if there is none. Another hub may have a Cluster of the
// same name, but not with that registration key. An agent that no import has asked to register has no key. Then the token must be for a ServiceAccount
// in the namespace of the Cluster, with its UID: whoever controls a member can write the rest.
func (i *Importer) clusterOf(ctx context.Context, stored map[string]string, token credential.Token) *fleet.Cluster {
	owner, err := i.clusters.Get(stored[registration.CredentialWorkspace], stored[registration.CredentialClusterName])
	if err != nil {
		return nil
	}
	if key := stored[registration.BootstrapRegistrationKey]; key != "" {
		if !isKeyOf(owner, key) {
			return nil
		}
		return owner
	}
	claims, err := credential.Inspect(token)
	if err != nil || claims.UID == "" || claims.Namespace != registration.ClusterNamespace(owner.Namespace, owner.Name) {
		return nil
	}
	account, err := i.Kubernetes.CoreV1().ServiceAccounts(claims.Namespace).Get(ctx, claims.ServiceAccount, metav1.GetOptions{})
	if err != nil || string(account.UID) != claims.UID {
		return nil
	}
	return owner
}

// checkNotTaken fails if the agent on the member belongs to another Cluster of this hub and is connected, or if that is the Cluster by, which has replaced
// the agent: that Cluster has imported the same member with another kubeconfig Secret. Otherwise the two would take the agent from each other for ever. Only a Cluster that has lost its agent asks for this. A first
// import takes the agent: a person has asked for it, perhaps to delete the other Cluster next.
func (i *Importer) checkNotTaken(ctx context.Context, m *memberClient, agentNamespace, workspace string, uid, by types.UID) *failure {
	agent, err := m.installedAgent(ctx, agentNamespace)
	if err != nil {
		return diagnose(m.server, "checking which Cluster the agent belongs to", err)
	}
	other := i.clusterOf(ctx, agent.credential, "")
	if other == nil || other.UID == uid || other.DeletionTimestamp != nil || !agent.belongsTo(other) {
		return nil
	}
	if fleetstatus.Condition(other.Status.Conditions, fleet.ConditionConnected).Status != corev1.ConditionTrue && other.UID != by {
		return nil
	}
	return failuref(fleet.ReasonKubeconfigInUse,
		"%s has imported the same member with another kubeconfig Secret, and has its agent in namespace %s there; delete one of the two, or set another spec.agentNamespace",
		nameFor(workspace, other), agentNamespace)
}

// record writes what was installed into the status.
func (i *Importer) record(hub config.Hub, cluster *fleet.Cluster, secret *corev1.Secret, info hubInfo, plan *installPlan) {
	status := &cluster.Status
	generation, interval, namespace := cluster.Spec.RedeployAgentGeneration, info.gcInterval, plan.options.Namespace
	stale := staleNamespaces(status, namespace)

	status.AgentDeployedGeneration = &generation
	status.AgentMigrated, status.CattleNamespaceMigrated, status.AgentNamespaceMigrated = true, true, true
	status.AgentConfigChanged = false
	agentspec.WantedSettings(cluster.Spec).Record(status)
	status.APIServerURL = info.apiServerURL
	status.APIServerCAHash = registration.CAHash(info.apiServerCA)
	status.AgentTLSMode = string(info.tlsMode)
	status.GarbageCollectionInterval = &interval
	last := importStatus(cluster, hub, secret, info, namespace)
	if plan.reregister {
		last.UnlabelledReleases = hasUnlabelledReleases(status)
		status.Agent = fleet.AgentStatus{Namespace: cluster.Spec.AgentNamespace}
	}
	last.RegistrationKey, last.RegistrationID = plan.registrationKey, plan.registrationID
	last.AgentNamespace, last.Generation, last.ManifestHash = namespace, plan.generation, plan.manifestHash
	last.PullSecrets, last.PullSecretsHash = plan.pullSecrets.names, plan.pullSecrets.hash
	last.StaleAgentNamespaces = stale
	last.AgentLost = metav1.Time{}
	last.Time = metav1.NewTime(i.Clock.Now())
	status.Import = last
}

// staleNamespaces returns the namespaces of earlier agents that the last import recorded or, after an import by Fleet's hub, the namespace
// that the agent reported.
func staleNamespaces(status *fleet.ClusterStatus, current string) []string {
	var stale []string
	before := status.Agent.Namespace
	if last := status.Import; last != nil {
		stale = append(stale, last.StaleAgentNamespaces...)
		before = last.AgentNamespace
	}
	if before != "" {
		stale = append(stale, before)
	}
	slices.Sort(stale)
	stale = slices.Compact(stale)
	return slices.DeleteFunc(stale, func(ns string) bool { return ns == current })
}

// importStatus is a copy of status.import that records which Secret and settings were compared with the installed agent.
func importStatus(cluster *fleet.Cluster, hub config.Hub, secret *corev1.Secret, info hubInfo, agentNamespace string) *fleet.ImportStatus {
	last := cluster.Status.Import.DeepCopy()
	if last == nil {
		// Fleet's hub installed the agent, perhaps in another namespace, which the agent reported.
		last = &fleet.ImportStatus{AgentNamespace: cmp.Or(cluster.Status.Agent.Namespace, agentNamespace)}
	}
	last.KubeConfigSecretVersion = version(secret)
	last.SettingsHash = settingsHash(hub)
	last.APIServerURLFromSecret, last.APIServerCAFromSecret = info.urlFromSecret, info.caFromSecret
	return last
}

func nameOf(cluster *fleet.Cluster) types.NamespacedName {
	return types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
}

func imported() result.Result { return result.Done(fleet.ReasonImported, "") }

// importing is the result from the first pass of an import on, so that waiting for the token costs no status write.
func importing() result.Result {
	return result.Wait(fleet.ReasonImporting, "installing the agent on the member")
}

func settingsInvalid(err error) result.Result {
	return result.Stalled(fleet.ReasonSettingsInvalid, fmt.Sprintf("the agent cannot be installed with these settings: %s", err))
}
