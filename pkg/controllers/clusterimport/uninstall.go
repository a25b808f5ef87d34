package clusterimport

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Uninstall removes what the agent of a deleted Cluster deployed on the member, and then the agent. An attempt takes a minute at most and ends
// at the deadline; until then, another one follows a failure about which nobody has to act.
func (i *Importer) Uninstall(ctx context.Context, cluster *fleet.Cluster, deadline time.Time) (finalizing.Farewell, error) {
	if cluster.Spec.KubeConfigSecret == "" {
		return finalizing.NotNeeded(), nil
	}
	if !i.mayHaveTouched(cluster) { // an agent that registered itself may be on the member
		return finalizing.NotNeeded(), nil
	}

	// Find the removal that an earlier pass has asked for. This pass prepares it if there is none, or when it is offered a slot.
	install, key, inputs := callKey{nameOf(cluster), installing}, callKey{nameOf(cluster), removing}, "uninstall/"+string(cluster.UID)
	call := i.calls.last(key)
	isUnprepared := call.isUnprepared(inputs)
	now := i.Clock.Now()
	remaining := deadline.Sub(now)
	mayRepeat := func() bool { return call.failure != nil && call.failure.isTransient && remaining > 0 }
	if isUnprepared && remaining <= 0 {
		i.calls.drop(install)
		return finalizing.GivenUp(fleet.ReasonFarewellTimeout, "the hub did not begin to remove the agent in time"), nil
	}

	// Prepare the removal, or its next attempt, and begin it if there is a slot.
	if isUnprepared || mayRepeat() && call.due(now) {
		member, out := i.clientForInstalled(ctx, i.Config.Get(), cluster, i.kubeconfigVersion(cluster))
		if out.Err != nil {
			return finalizing.Farewell{}, out.Err // do not drop the installation yet: until a pass gets here without an error, mayHaveTouched must find its call
		}
		i.calls.drop(install)              // it would install the agent again
		if member == nil && out.IsWait() { // the kubeconfig Secret is gone, and may never be created again
			return finalizing.GivenUp(out.Reason,
				fmt.Sprintf("kubeconfig Secret %s/%s does not exist any more", index.KubeconfigNamespace(cluster), cluster.Spec.KubeConfigSecret)), nil
		} else if member == nil {
			return finalizing.GivenUp(out.Reason, out.Message), nil
		}
		u := removal{
			member: member, cluster: cluster, namespaces: []string{i.lastNamespace(cluster)},
			stopTimeout: min(stopTimeout, remaining*2/5), // removeStopped may wait a quarter longer; the removal of the objects needs the other half
			releases:    member.openReleases,
			accounts:    i.Kubernetes.CoreV1(), systemNamespace: i.SystemNamespace,
			deployments: i.FleetClient.BundleDeployments(registration.ClusterNamespace(cluster.Namespace, cluster.Name)),
		}
		if last := cluster.Status.Import; last != nil {
			u.namespaces = append(u.namespaces, last.StaleAgentNamespaces...)
			u.pullSecrets = last.PullSecrets
		}
		if call = i.calls.reserve(key, inputs); call.state == preparing {
			i.calls.begin(key, func(ctx context.Context) *failure {
				ctx, cancel := context.WithTimeout(ctx, remaining)
				defer cancel()
				return i.calls.onMember(ctx, member, cluster.Namespace, i.calls.members.alone(remaining/4), u.run)
			})
		}
	}

	// Wait until the call has ended, at the latest until the deadline.
	isPending := call.state.isPending()
	switch {
	case isPending && remaining > 0:
		return finalizing.Waiting(fleet.ReasonFarewell, fmt.Sprintf(
			"removing the agent and its Helm releases from the member, until %s at the latest", deadline.UTC().Format(time.RFC3339)), remaining), nil
	case isPending && call.state != running && call.failure == nil:
		return finalizing.GivenUp(fleet.ReasonFarewellTimeout,
			"the hub did not begin to remove the agent in time: it was removing those of other Clusters"), nil
	case isPending && call.failure == nil:
		return finalizing.GivenUp(fleet.ReasonFarewellTimeout, "the member did not answer in time"), nil
	case mayRepeat():
		return finalizing.Waiting(fleet.ReasonFarewell, fmt.Sprintf(
			"%s; retrying until %s at the latest", call.failure.message, deadline.UTC().Format(time.RFC3339)), min(call.retryAt.Sub(now), remaining)), nil
	case call.failure != nil:
		return finalizing.GivenUp(call.failure.reason, call.failure.message), nil
	}
	return finalizing.Removed(), nil
}

// AgentBelongsTo asks the member of a deleted Cluster, with the kubeconfig of that Cluster, whether the agent there belongs to one of the
// other Clusters. A failed call is retried. Without other Clusters it ends the call, which would keep its slot.
func (i *Importer) AgentBelongsTo(ctx context.Context, cluster *fleet.Cluster, others []*fleet.Cluster) (belongs, canAsk bool, err error) {
	if len(others) == 0 { // the Clusters of an earlier pass claim the agent no longer
		i.calls.drop(callKey{nameOf(cluster), checkingOwner})
		return false, true, nil
	}
	var uids []string
	for _, other := range others {
		uids = append(uids, string(other.UID))
	}
	slices.Sort(uids)
	key, inputs := callKey{nameOf(cluster), checkingOwner}, strings.Join(uids, " ")
	call := i.calls.last(key)
	if call.isUnprepared(inputs) || call.due(i.Clock.Now()) {
		member, out := i.clientForInstalled(ctx, i.Config.Get(), cluster, i.kubeconfigVersion(cluster))
		if member == nil { // a wait is for a kubeconfig that was deleted
			return false, !out.IsWait(), out.Err
		}
		if call = i.calls.reserve(key, inputs); call.state == preparing {
			i.calls.begin(key, func(ctx context.Context) *failure {
				return i.calls.onMember(ctx, member, cluster.Namespace, i.calls.members.shared, func(ctx context.Context) *failure {
					agent, err := member.installedAgent(ctx, i.lastNamespace(cluster))
					if err != nil {
						return diagnose(member.server, "checking which Cluster the agent belongs to", err)
					}
					if !slices.ContainsFunc(others, agent.belongsTo) {
						// It may belong to one of them later, when that Cluster is imported: as a failure, the call is repeated.
						return failuref(fleet.ReasonAgentUnaware, "the agent belongs to none of the Clusters that claim it")
					}
					return nil
				})
			})
		}
	}
	return call.state == ended && call.failure == nil, true, nil
}

// unreportedFor is twice the longest time for which the controller of Clusters delays the first status of a Cluster (firstReportLatest), so that the
// clocks of the hub and the API server may differ by half a minute.
const unreportedFor = time.Minute

// mayHaveTouched reports whether an import may have changed the member. The first step of an import creates the import token, but
// the token may already be deleted together with its namespace. Then the last reported reason counts: it tells whether a call
// to the member was started, which may have changed the member even if it failed. A Cluster that was deleted before the first report may
// have been imported by a hub that has stopped since. A removal that waits for a slot, or was withdrawn, was decided by an earlier pass.
func (i *Importer) mayHaveTouched(cluster *fleet.Cluster) bool {
	_, err := i.tokens.Get(cluster.Namespace, registration.ImportTokenName(cluster.Name))
	hasCall := i.calls.last(callKey{nameOf(cluster), installing}).state != absent || i.calls.last(callKey{nameOf(cluster), removing}).state != absent
	if cluster.Status.AgentDeployedGeneration != nil || !apierrors.IsNotFound(err) || hasCall {
		return true
	}
	imported := fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionImported)
	if imported.Status == "" && cluster.DeletionTimestamp != nil {
		return cluster.DeletionTimestamp.Sub(cluster.CreationTimestamp.Time) < unreportedFor
	}
	switch imported.Reason {
	case fleet.ReasonImporting, fleet.ReasonImported, fleet.ReasonConfigInvalid, fleet.ReasonUnreachable, fleet.ReasonCertificateUntrusted,
		fleet.ReasonUnauthorized, fleet.ReasonForbidden, fleet.ReasonMemberError, fleet.ReasonError:
		return true
	}
	return false
}

// helmReleases are the Helm releases on a member.
type helmReleases interface {
	ListAfter(ctx context.Context, selector labels.Selector, after release.Found, limit int) (found []release.Found, hasMore bool, err error)
	Uninstall(ctx context.Context, namespace, name string, options release.UninstallOptions) error
	Forget(ctx context.Context, namespace, name string) error
}

// openReleases returns the releases on the member. While Helm has a large history in memory, no other member
// of the workspace may send a large response. endHistory ends that.
func (m *memberClient) openReleases(ctx context.Context, c *rest.Config, agentNamespace string) (helmReleases, error) {
	client, err := release.New(c)
	if err != nil {
		return nil, err
	}
	if client, err = client.LookUpKinds(ctx); err != nil {
		return nil, err
	}
	limits := historyLimits
	limits.Small, limits.Large = smallHistory, m.large
	return client.LimitHistory(limits).WithHistoryKey(ctx, agentNamespace)
}

// endHistory lets other members of the workspace send large responses again, after Helm has dropped the history.
func (m *memberClient) endHistory() {
	if m.large != nil { // the hub's own client has no turns
		m.large.Unpin()
	}
}

// removal removes the agent of one deleted Cluster from its member.
type removal struct {
	member      *memberClient
	cluster     *fleet.Cluster
	namespaces  []string // in which the agent may be
	pullSecrets []string
	// systemNamespace is that of the agent of a Cluster without spec.agentNamespace.
	systemNamespace string
	stopTimeout     time.Duration // how long to wait for the agent's Pods to end
	releases        func(ctx context.Context, c *rest.Config, agentNamespace string) (helmReleases, error)
	accounts        corev1client.ServiceAccountsGetter    // of the hub
	deployments     fleetclient.BundleDeploymentInterface // of the Cluster
}

// run removes the agent from each namespace in which it belongs to the Cluster. It can be interrupted at any point and repeated:
// the Deployment is removed first, so that nothing deploys again what is removed, and the objects by which belongsTo recognizes
// the agent are removed last.
func (u *removal) run(ctx context.Context) *failure {
	found := false
	var kept []string
	for _, namespace := range u.namespaces {
		agent, err := u.member.installedAgent(ctx, namespace)
		if err != nil {
			return diagnose(u.member.server, "checking which Cluster the agent belongs to", err)
		}
		isRemoved, why, err := agent.isRemovedWith(ctx, u.cluster, u.accounts)
		if err != nil {
			return failuref(fleet.ReasonError, "checking whether this hub has issued the agent's token: %s", err)
		}
		if !isRemoved {
			if why != "" {
				kept = append(kept, fmt.Sprintf("the agent in namespace %s of the member stays, with what it deployed: %s", namespace, why))
			}
			continue
		}
		found = true
		ended, problem := u.member.stopAgent(ctx, namespace, u.stopTimeout)
		if problem != nil {
			return problem
		}
		if problem := u.removeReleases(ctx, namespace); problem != nil {
			return problem
		}
		// An import of another workspace, which this call did not wait for any longer, may have installed its agent meanwhile.
		if agent, err = u.member.installedAgent(ctx, namespace); err != nil {
			return diagnose(u.member.server, "checking again which Cluster the agent belongs to", err)
		}
		if isRemoved, _, err := agent.isRemovedWith(ctx, u.cluster, u.accounts); err != nil {
			return failuref(fleet.ReasonError, "checking again whether this hub has issued the agent's token: %s", err)
		} else if !isRemoved {
			continue
		}
		objects := agentObjects(namespace, requiresPriorityClass(u.cluster), u.pullSecrets)
		if problem := u.member.removeStopped(ctx, agentIn(u.cluster, namespace, u.systemNamespace), ended, u.stopTimeout, objects, "removing the agent's"); problem != nil {
			return problem
		}
	}

	agent, unlabelled := u.cluster.Status.Agent, hasUnlabelledReleases(&u.cluster.Status)
	switch {
	case len(kept) > 0:
		return failuref(fleet.ReasonAgentUnaware, "%s", strings.Join(kept, "; "))
	case agent.LastSeen.IsZero() && !unlabelled:
		return nil
	case !found:
		return failuref(fleet.ReasonAgentUnaware,
			"the agent is not in the namespace in which it was installed on the member; what it deployed may be left")
	case unlabelled:
		return failuref(fleet.ReasonAgentUnaware,
			"the agent was of a version that does not label what it deploys: the agent is removed, its Helm releases may be left")
	}
	return nil
}

// hasUnlabelledReleases reports whether the hub may not find all Helm releases of the agent, because Fleet's own agents do not label them. An
// import that requires another registration clears the report of the agent.
func hasUnlabelledReleases(status *fleet.ClusterStatus) bool {
	if status.Agent.LastSeen.IsZero() {
		return status.Import != nil && status.Import.UnlabelledReleases
	}
	return agentspec.IsOfFleet(status.Agent)
}

// releasesAtOnce is how many releases of a member are in memory while they are removed.
const releasesAtOnce = 100

// removeReleases uninstalls the Helm releases that the agent deployed for this Cluster, even if some fail. For the release of the agent itself,
// it deletes only the history: removeAll deletes the objects of that release by name, except the objects that must stay, such as the namespace's
// default ServiceAccount. It returns one failure, if possible one for which a person has to act: a member may have any number of releases.
func (u *removal) removeReleases(ctx context.Context, agentNamespace string) (problem *failure) {
	note := func(err error) {
		if err == nil {
			return
		}
		failed := diagnose(u.member.server, "removing what the agent deployed", err)
		if problem == nil || problem.isTransient && !failed.isTransient {
			problem = failed
		}
	}
	member, err := u.member.asAgent(agentNamespace)
	if err != nil {
		note(err)
		return problem
	}
	client, err := u.releases(ctx, member.config, agentNamespace)
	if err != nil {
		note(err)
		return problem
	}
	owner := release.Owner{Namespace: agentNamespace, Workspace: u.cluster.Namespace, ClusterName: u.cluster.Name}
	own := registration.LabelValue(registration.AgentBundleName(u.cluster.Name))
	var keeping sets.Set[string]
	for last, hasMore := (release.Found{}), true; hasMore; {
		var found []release.Found
		if found, hasMore, err = client.ListAfter(ctx, owner.Selector(), last, releasesAtOnce); err != nil {
			note(err)
			return problem
		}
		if len(found) > 0 && keeping == nil {
			if keeping, err = u.keeping(ctx); err != nil {
				return transientf(fleet.ReasonError, "reading which resources stay on the member: %s", err)
			}
		}
		for _, r := range found {
			if key := r.Labels[release.DeploymentLabel]; key == own {
				note(client.Forget(ctx, r.Namespace, r.Name))
			} else {
				adjust := release.KeepIf(keeping.Has(key) || fleetstatus.KeepsWorkloads(u.cluster))
				options := adjust(r.Options())
				options.Scope, options.Adjust = &u.cluster.Spec.AgentNamespace, adjust // as agentspec sets it
				note(client.Uninstall(ctx, r.Namespace, r.Name, options))
			}
			u.member.endHistory()
			last = r
		}
	}
	return problem
}

// deploymentsAtOnce is how many BundleDeployments are in memory while keeping reads them. Each may be as large as the API server permits.
const deploymentsAtOnce = 20

// keeping returns the BundleDeployments whose resources stay, as in release.DeploymentLabel. It reads them from the API server, because the cache has only
// digests of their options. They exist until finalize has removed the agent from the member.
func (u *removal) keeping(ctx context.Context) (sets.Set[string], error) {
	keeping := sets.New[string]()
	for page := (metav1.ListOptions{Limit: deploymentsAtOnce}); ; {
		list, err := u.deployments.List(ctx, page)
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if bd := &list.Items[i]; fleetstatus.KeepsResources(bd.Spec) {
				keeping.Insert(registration.LabelValue(bd.Name))
			}
		}
		if page.Continue = list.Continue; page.Continue == "" {
			return keeping, nil
		}
	}
}

// agentObjects are the objects of the agent in a namespace, in the order of their removal.
func agentObjects(namespace string, withPriorityClass bool, pullSecrets []string) (objects []agentmanifest.OwnedObject) {
	for _, name := range pullSecrets {
		objects = append(objects, agentmanifest.OwnedObject{Kind: "Secret", Namespace: namespace, Name: name})
	}
	if withPriorityClass {
		objects = append(objects, agentPriorityClass)
	}
	return append(objects, agentmanifest.OwnedObjects(namespace)...)
}

// installedAgent has the contents of the objects of an agent on the member that show to which Cluster it belongs. It has only the fields that are
// read, because a call keeps it until its end.
type installedAgent struct {
	bootstrap  map[string]string // of the bootstrap Secret, nil if it does not exist
	credential map[string]string // of the credential Secret, nil if it does not exist; without the kubeconfig
	token      credential.Token  // in the kubeconfig of the credential Secret
	clientID   string            // in the agent's configuration
	exists     bool              // the namespace has a credential or a configuration of an agent
}

// installedAgent reads these contents from a namespace.
func (m *memberClient) installedAgent(ctx context.Context, namespace string) (a installedAgent, err error) {
	if a.bootstrap, err = m.data(ctx, "Secret", namespace, registration.BootstrapSecret,
		registration.BootstrapWorkspace, registration.BootstrapTokenName, registration.BootstrapToken, registration.BootstrapRegistrationKey); err != nil {
		return installedAgent{}, err
	}
	var kubeconfig string
	if a.credential, kubeconfig, err = m.storedCredential(ctx, namespace); err != nil {
		return installedAgent{}, err
	}
	if a.token, err = tokenIn(kubeconfig); err != nil {
		return installedAgent{}, err
	}
	agentConfig, err := m.data(ctx, "ConfigMap", namespace, registration.AgentConfigMap, registration.ConfigKey)
	if err != nil {
		return installedAgent{}, err
	}
	if parsed, err := config.ParseAgent(agentConfig[registration.ConfigKey]); err == nil {
		a.clientID = parsed.ClientID
	}
	a.exists = a.credential != nil || agentConfig != nil
	return a, nil
}

// storedCredential reads the credential Secret of an agent; fields is nil if it does not exist. The kubeconfig is apart, so that a call does not keep it.
func (m *memberClient) storedCredential(ctx context.Context, namespace string) (fields map[string]string, kubeconfig string, err error) {
	fields, err = m.data(ctx, "Secret", namespace, registration.CredentialSecret,
		registration.CredentialWorkspace, registration.CredentialClusterName, registration.CredentialKubeconfig, registration.BootstrapRegistrationKey)
	kubeconfig = fields[registration.CredentialKubeconfig]
	delete(fields, registration.CredentialKubeconfig)
	return fields, kubeconfig, err
}

// belongsTo decides whether the agent still belongs to the Cluster: a management server moves a cluster by deleting one Cluster and
// creating another, and the agent may belong to the new one. The credential decides; before the agent has registered, its
// clientID. A bootstrap Secret for another Cluster overrides both, because the agent will register with it.
func (a installedAgent) belongsTo(cluster *fleet.Cluster) bool {
	if !a.exists {
		return false
	}
	if a.bootstrap != nil {
		// The token of an import is named after its Cluster. The agent's chart may have delivered another token, for the
		// registration that the hub recorded.
		last := cluster.Status.Import
		recorded := last != nil && last.RegistrationKey != "" && a.bootstrap[registration.BootstrapRegistrationKey] == last.RegistrationKey
		ours := recorded || a.bootstrap[registration.BootstrapTokenName] == registration.ImportTokenName(cluster.Name)
		if a.bootstrap[registration.BootstrapWorkspace] != cluster.Namespace || !ours {
			return false
		}
	}
	if a.credential != nil {
		return a.credential[registration.CredentialWorkspace] == cluster.Namespace &&
			a.credential[registration.CredentialClusterName] == cluster.Name
	}
	return a.clientID != "" && a.clientID == cluster.Spec.ClientID
}

// isRemovedWith reports whether the agent is removed when the Cluster is deleted. It is not removed if it has the token of another hub, which has a
// Cluster of the same name: a hub that was made anew from the objects of this one, with the same members and perhaps the same address. The token names
// a ServiceAccount with a UID that this hub does not have. A hub that was restored from a backup of etcd has the same UIDs, so this does not distinguish it.
//
// kept is why an agent that seems to belong to the Cluster is not removed. A ServiceAccount that does not exist proves nothing: this hub may have had
// it until somebody revoked the credential. Then the agent is removed only if it has reported to this hub with that ServiceAccount.
func (a installedAgent) isRemovedWith(
	ctx context.Context, cluster *fleet.Cluster, accounts corev1client.ServiceAccountsGetter,
) (isRemoved bool, kept string, err error) {
	if !a.belongsTo(cluster) {
		return false, "", nil
	}
	claims, err := credential.Inspect(a.foreignToken(cluster))
	if err != nil || claims.UID == "" {
		return true, "", nil // this hub has asked for the registration, or the token does not say whose it is
	}
	account, err := accounts.ServiceAccounts(claims.Namespace).Get(ctx, claims.ServiceAccount, metav1.GetOptions{})
	switch request := cluster.Status.Agent.Registration; {
	case apierrors.IsNotFound(err) && request != "" && strings.HasPrefix(claims.ServiceAccount, request+"-"):
		return true, "", nil
	case apierrors.IsNotFound(err):
		return false, fmt.Sprintf("ServiceAccount %s/%s, which its token names, does not exist on this hub; either the agent is of another hub, or its "+
			"credential was revoked", claims.Namespace, claims.ServiceAccount), nil
	case err != nil:
		return false, "", err
	case string(account.UID) != claims.UID:
		return false, fmt.Sprintf("it is of another hub, which has issued its token for another ServiceAccount of the name %s/%s",
			claims.Namespace, claims.ServiceAccount), nil
	}
	return true, "", nil
}

// isKeyOf reports whether this hub has made a registration key for the Cluster: it begins with a digest of the UID of the Cluster, perhaps with the cause
// of the last import. No other hub has that UID. The recorded key is not the only one: the agent may not have registered yet since the last import,
// and an import may have begun that is not recorded.
func isKeyOf(cluster *fleet.Cluster, key string) bool {
	last, id := cluster.Status.Import, strings.Split(key, "/")[0]
	return id == digest(string(cluster.UID)) ||
		last != nil && (last.RegistrationKey != "" && key == last.RegistrationKey || last.RegistrationID != "" && id == digest(last.RegistrationID))
}

// foreignToken returns the token with which the agent registers or has registered, "" if this hub has asked for that registration with an import. The agent
// of this hub may have another registration too, for which a person has created the bootstrap Secret.
func (a installedAgent) foreignToken(cluster *fleet.Cluster) credential.Token {
	if a.bootstrap != nil {
		if isKeyOf(cluster, a.bootstrap[registration.BootstrapRegistrationKey]) {
			return ""
		}
		return credential.Token(a.bootstrap[registration.BootstrapToken])
	}
	key, last := a.credential[registration.BootstrapRegistrationKey], cluster.Status.Import
	if last == nil || last.RegistrationKey == "" || key == "" || isKeyOf(cluster, key) {
		return ""
	}
	return a.token
}

// tokenIn returns the token in the kubeconfig of an agent, "" if it has none. The text may be large: it contains the CA of the hub.
func tokenIn(kubeconfig string) (credential.Token, error) {
	text := []byte(kubeconfig)
	if syntaxOf(text) > maxSyntax {
		return "", &transport.TooLargeError{Limits: transport.ResponseLimits{Bytes: fieldsMax, Values: maxSyntax}}
	}
	if registration.RefuseAliases(text) != nil {
		return "", nil
	}
	parsed, err := clientcmd.Load(text)
	if err != nil {
		return "", nil //nolint:nilerr // such a token says nothing about the hub
	}
	for _, user := range parsed.AuthInfos { // an agent's kubeconfig has one
		if len(user.Token) > fieldsMax {
			return "", &transport.TooLargeError{Limits: transport.ResponseLimits{Bytes: fieldsMax}}
		}
		return credential.Token(user.Token), nil
	}
	return "", nil
}

// fieldsMax limits the fields of a Secret or ConfigMap that a call keeps. Those of an agent have a few kilobytes, but for the kubeconfig, of which only
// the token is kept.
const fieldsMax = 64 << 10

// data returns fields of a Secret or ConfigMap, nil if it does not exist.
func (m *memberClient) data(ctx context.Context, kind, namespace, name string, fields ...string) (map[string]string, error) {
	client, err := m.resource(kind, namespace)
	if err != nil {
		return nil, err
	}
	object, err := client.Get(transport.WithLimits(ctx, agentLimits), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	content, size := map[string]string{}, 0
	for _, field := range fields {
		value, found, err := unstructured.NestedString(object.Object, "data", field)
		if err != nil {
			return nil, err
		}
		if field != registration.CredentialKubeconfig {
			size += len(value)
		}
		if size > fieldsMax {
			return nil, &transport.TooLargeError{Limits: transport.ResponseLimits{Bytes: fieldsMax}}
		}
		if kind == "Secret" {
			plain, err := base64.StdEncoding.DecodeString(value)
			if err != nil {
				return nil, err
			}
			value = string(plain)
		}
		if found {
			content[field] = value
		}
	}
	return content, nil
}
