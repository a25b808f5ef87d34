package check

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/access"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// clusterExists finds the Cluster and the last request about it. An agent whose request waits or was refused may have no Cluster.
func clusterExists(ctx context.Context, k *knowledge) Finding {
	cluster, err := k.hub.fleet.Clusters(k.Namespace).Get(ctx, k.Cluster, metav1.GetOptions{})
	switch {
	case err == nil:
		preserve.Restore(cluster)
		k.cluster = cluster
	case !apierrors.IsNotFound(err):
		return failed(fmt.Sprintf("Cluster %s/%s", k.Namespace, k.Cluster), err)
	}
	requests, err := k.hub.fleet.ClusterRegistrations(k.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return failed("listing ClusterRegistrations", err)
	}
	for i := range requests.Items {
		r := &requests.Items[i]
		if view.IsAbout(r, k.Cluster, k.cluster) && (k.request == nil || k.request.CreationTimestamp.Before(&r.CreationTimestamp)) {
			k.request = r
		}
	}
	switch {
	case k.cluster == nil && k.request == nil && k.member != nil:
		return warn("namespace %s has no Cluster %s, and no request about one", k.Namespace, k.Cluster) // request-arrived decides
	case k.cluster == nil && k.request == nil:
		return fail("namespace %s has no Cluster %s, and no request about one: the name or --namespace is wrong, or the agent has never reached the hub",
			k.Namespace, k.Cluster)
	case k.cluster == nil:
		return warn("there is no Cluster yet, only ClusterRegistration %s/%s", k.Namespace, k.request.Name)
	case k.cluster.DeletionTimestamp != nil:
		v := view.OfCluster(k.cluster)
		return fail("Cluster %s/%s is being deleted: %s", k.Namespace, k.Cluster, strings.TrimPrefix(v.Reason+": "+v.Message, ": "))
	}
	return pass("%s/%s", k.Namespace, k.Cluster)
}

func conditionText(cluster *fleet.Cluster, kind string) string {
	c := fleetstatus.Condition(cluster.Status.Conditions, kind)
	if c.Status == "" {
		return "the Cluster has no condition " + kind
	}
	return fmt.Sprintf("condition %s is %s, %s: %s", kind, c.Status, c.Reason, c.Message)
}

// firstStatusWithin is the age at which each Cluster has a status: firstReportLatest of pkg/controllers/cluster.
const firstStatusWithin = 30 * time.Second

func clusterProcessed(_ context.Context, k *knowledge) Finding {
	if k.cluster.Labels[fleet.ClusterManagementLabel] != "" {
		return fail("the label %s assigns the Cluster to another controller", fleet.ClusterManagementLabel)
	}
	if age := k.Now().Sub(k.cluster.CreationTimestamp.Time); len(k.cluster.Status.Conditions) == 0 && age < firstStatusWithin {
		return warn("the Cluster is new: the hub writes its status with the first heartbeat, or after %s", firstStatusWithin)
	}
	if fleetstatus.Condition(k.cluster.Status.Conditions, fleet.ConditionProcessed).Status != corev1.ConditionTrue {
		return fail("%s", conditionText(k.cluster, fleet.ConditionProcessed))
	}
	return pass("")
}

func clusterNotQuarantined(_ context.Context, k *knowledge) Finding {
	if k.cluster.Spec.Quarantined {
		return fail("the Cluster is quarantined (spec.quarantined): its agent has no rights on the hub")
	}
	return pass("")
}

func importSecret(ctx context.Context, k *knowledge) Finding {
	namespace := k.cluster.Namespace
	if k.cluster.Spec.KubeConfigSecretNamespace != "" {
		namespace = k.cluster.Spec.KubeConfigSecretNamespace
	}
	title := fmt.Sprintf("Secret %s/%s", namespace, k.cluster.Spec.KubeConfigSecret)
	secret, err := k.hub.core.CoreV1().Secrets(namespace).Get(ctx, k.cluster.Spec.KubeConfigSecret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fail("%s, which spec.kubeConfigSecret names, does not exist", title)
	case err != nil:
		return failed(title, err)
	case !access.MayUse(k.cluster, secret):
		return fail("%s is in another namespace and does not allow namespace %s", title, k.cluster.Namespace)
	}
	k.kubeconfig = secret
	return pass("%s", title)
}

// importKubeconfig repeats the checks of the hub on the kubeconfig. Its messages contain no part of the kubeconfig except the address of the
// server.
func importKubeconfig(_ context.Context, k *knowledge) Finding {
	title := fmt.Sprintf("key %s of Secret %s/%s", registration.KubeconfigValue, k.kubeconfig.Namespace, k.kubeconfig.Name)
	value := k.kubeconfig.Data[registration.KubeconfigValue]
	if err := registration.RefuseAliases(value); err != nil {
		return fail("%s: %s", title, err)
	}
	parsed, err := clientcmd.Load(value)
	if err != nil || len(value) == 0 {
		return fail("%s is not a kubeconfig", title)
	}
	current := parsed.Contexts[parsed.CurrentContext]
	if current == nil || parsed.Clusters[current.Cluster] == nil || parsed.Clusters[current.Cluster].Server == "" || parsed.AuthInfos[current.AuthInfo] == nil {
		return fail("%s: its current context has no server or no user", title)
	}
	k.importCluster, k.importUser = parsed.Clusters[current.Cluster], parsed.AuthInfos[current.AuthInfo]
	if hostOf(k.importCluster.Server) == "" {
		return fail("%s: its server is not a URL", title)
	}
	if why := refersElsewhere(k.importCluster, k.importUser); why != "" { // import-self-contained reports it. ClientConfig would open the files
		k.importConfig = &rest.Config{Host: k.importCluster.Server}
	} else if k.importConfig, err = clientcmd.NewDefaultClientConfig(*parsed, nil).ClientConfig(); err != nil {
		return fail("%s cannot be used", title) // the error may quote the kubeconfig
	}
	return pass("%s", k.importCluster.Server)
}

func importSelfContained(_ context.Context, k *knowledge) Finding {
	user := k.importUser
	if why := refersElsewhere(k.importCluster, user); why != "" {
		return fail("%s", why)
	}
	if user.Token+user.Username == "" && len(user.ClientCertificateData) == 0 {
		return fail("its user has no credential")
	}
	return pass("")
}

// refersElsewhere returns why a kubeconfig is not self-contained, or "". Whoever wrote it chose the files and programs.
func refersElsewhere(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) string {
	switch {
	case user.Exec != nil:
		return "its user authenticates with a program (exec plugin), which the hub does not run"
	case user.AuthProvider != nil:
		return "its user needs an auth provider to authenticate, which the hub does not have"
	case cluster.CertificateAuthority+user.TokenFile+user.ClientCertificate+user.ClientKey != "":
		return "it refers to files, which the hub cannot read"
	}
	return ""
}

func importAddress(_ context.Context, k *knowledge) Finding {
	server := k.importConfig.Host
	address, err := netip.ParseAddr(hostOf(server))
	if isLoopback(server) && err != nil {
		address, err = netip.MustParseAddr("127.0.0.1"), nil // localhost
	}
	switch {
	case err != nil:
		return pass("%s", server) // a name, which the hub resolves
	case k.memberRules().Check(address) == nil:
		return pass("%s", server)
	case isLoopback(server):
		return fail("%s is a loopback or unspecified address: for the hub it is the hub's own pod, not the member", server)
	}
	return fail("the hub does not connect to %s: the address is in a range that it denies", server)
}

func importReaches(ctx context.Context, k *knowledge) Finding {
	member := connectTo(k.importConfig, k.Now, memberLimits)
	version, err := member.version(ctx)
	imported := fleetstatus.Condition(k.cluster.Status.Conditions, fleet.ConditionImported)
	var status apierrors.APIStatus
	switch answered := errors.As(err, &status); {
	case err != nil && !answered && imported.Status == corev1.ConditionTrue:
		// The hub connects to the member only for an import, so the condition stays True while the member is down.
		if beat := clusterHeartbeat(ctx, k); beat.Verdict == Fail && k.registered() {
			return fail("the member at %s: %s; the hub has reached it before, but %s: the member is down, or its agent, and only this machine cannot reach it",
				k.importConfig.Host, err, beat.Detail)
		}
		text := fmt.Sprintf("the member at %s: %s; the hub has imported it, so only this machine cannot reach it", k.importConfig.Host, err)
		k.importConfig = nil
		return warn("%s", text)
	case err != nil && !answered && imported.Status == corev1.ConditionFalse && imported.Reason != fleet.ReasonUnreachable &&
		!(imported.Reason == fleet.ReasonCertificateUntrusted && isTLS(err)):
		text := fmt.Sprintf("this machine cannot reach the member at %s: %s; the hub gives another reason than that: %s", k.importConfig.Host, err, imported.Reason)
		k.importConfig = nil
		return warn("%s", text)
	case err != nil:
		return fail("the member at %s: %s", k.importConfig.Host, err)
	}
	if k.member == nil {
		k.member = member
	}
	return pass("Kubernetes %s", version)
}

func importRights(ctx context.Context, k *knowledge) Finding {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"},
	}}
	review, err := connectTo(k.importConfig, k.Now, memberLimits).core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return fail("the member rejects the credential of the kubeconfig")
	case err != nil:
		return failed("asking the member for the rights of the kubeconfig", err)
	case !review.Status.Allowed:
		return fail("the user of the kubeconfig may not do everything on the member, and so cannot give the agent its rights")
	}
	return pass("")
}

// tokenExists does not apply after the request was granted: a registered agent does not need its token.
func tokenExists(ctx context.Context, k *knowledge) Finding {
	name, namespace := k.Token, k.Namespace
	if name == "" {
		granted := k.request != nil && view.OfRequest(k.request).State == view.StateGranted
		switch {
		case k.registered() || granted:
			return doesNotApply()
		case k.identity != nil:
			name, namespace = k.identity.TokenName, k.identity.Workspace()
		case k.request != nil:
			name = k.request.Labels[fleet.RegistrationTokenLabel]
		}
	}
	if name == "" {
		return doesNotApply()
	}
	title := fmt.Sprintf("ClusterRegistrationToken %s/%s", namespace, name)
	token, err := k.hub.fleet.ClusterRegistrationTokens(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fail("%s does not exist: it expired or was deleted", title)
	case err != nil:
		return failed(title, err)
	}
	k.token = token
	return pass("%s", title)
}

func tokenReady(_ context.Context, k *knowledge) Finding {
	switch v := view.OfToken(k.token); v.State {
	case view.StateReady, view.StateUsedUp:
		return pass("")
	default:
		return fail("ClusterRegistrationToken %s is %s", v.Name, strings.TrimRight(v.State+": "+v.Reason+": "+v.Message, ": "))
	}
}

func tokenLives(_ context.Context, k *knowledge) Finding {
	expires := view.OfToken(k.token).Expires
	if expires == nil {
		return pass("it does not expire")
	}
	left := expires.Sub(k.hub.clock.serverNow())
	if left <= 0 {
		return fail("ClusterRegistrationToken %s expired %s ago", k.token.Name, short(-left))
	}
	return pass("%s left", short(left))
}

func tokenUses(_ context.Context, k *knowledge) Finding {
	v := view.OfToken(k.token)
	if v.UsageLimit != nil && v.Uses >= int64(*v.UsageLimit) {
		return fail("ClusterRegistrationToken %s is used up: %s", v.Name, v.UsesText())
	}
	return pass("used %s", v.UsesText())
}

// tokenRights asks the hub whether the ServiceAccount of the token may create requests in its workspace.
func tokenRights(ctx context.Context, k *knowledge) Finding {
	account := registration.TokenServiceAccount(k.token.Name, string(k.token.UID))
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: registration.AccountUser(k.token.Namespace, account),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: fleet.SchemeGroupVersion.Group, Namespace: k.token.Namespace, Verb: "create", Resource: "clusterregistrations",
		},
	}}
	review, err := k.hub.core.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	switch {
	case err != nil:
		return failed("asking the hub for the rights of the token", err)
	case !review.Status.Allowed:
		return fail("ServiceAccount %s/%s of the token may not create clusterregistrations there: its Role or RoleBinding was changed or deleted",
			k.token.Namespace, account)
	}
	return pass("")
}

// clusterImported applies to a Cluster without a kubeconfig, too, if the import of another Cluster has replaced its agent.
func clusterImported(_ context.Context, k *knowledge) Finding {
	imported := fleetstatus.Condition(k.cluster.Status.Conditions, fleet.ConditionImported)
	switch {
	case imported.Status != corev1.ConditionTrue && (isImport(k) || imported.Status == corev1.ConditionFalse):
		return fail("%s", conditionText(k.cluster, fleet.ConditionImported))
	case !isImport(k):
		return doesNotApply()
	}
	return pass("")
}

// requestArrived fails if no check of the member failed, but the hub has neither a Cluster nor a request of the agent.
func requestArrived(_ context.Context, k *knowledge) Finding {
	if k.cluster == nil && k.request == nil {
		return fail("namespace %s has no Cluster %s, and no request about one: the name or --namespace is wrong, or the agent has not tried yet", k.Namespace, k.Cluster)
	}
	return doesNotApply()
}

func requestGranted(_ context.Context, k *knowledge) Finding {
	if k.request == nil || k.registered() {
		return doesNotApply()
	}
	v := view.OfRequest(k.request)
	if v.State == view.StateGranted || v.State == view.StateDeleting {
		return pass("%s", v.Name)
	}
	return fail("ClusterRegistration %s/%s is %s", v.Namespace, v.Name, strings.TrimRight(v.State+": "+v.Reason+": "+v.Message, ": "))
}

func clusterRegistered(_ context.Context, k *knowledge) Finding {
	if !k.registered() {
		return fail("%s", conditionText(k.cluster, fleet.ConditionRegistered))
	}
	return pass("")
}

// clusterHeartbeat compares the last heartbeat with the interval, as the hub does for the condition Connected.
func clusterHeartbeat(ctx context.Context, k *knowledge) Finding {
	if k.cluster == nil || k.cluster.Status.Agent.LastSeen.IsZero() {
		return doesNotApply()
	}
	hub := config.Hub{}
	if k.hubConfig != nil {
		hub = *k.hubConfig
	}
	interval := hub.CheckinInterval()
	if own := k.cluster.Status.Agent.CheckinInterval; own != nil && own.Duration > 0 {
		interval = own.Duration
	}
	ageOf := func(lastSeen metav1.Time) time.Duration {
		age := k.hub.clock.serverNow().Sub(lastSeen.Time)
		if skew := k.cluster.Status.Agent.ClockSkew; skew != nil {
			age += skew.Duration
		}
		return age
	}
	missed := time.Duration(hub.MissedCheckins()) * interval
	leases, err := k.hub.core.CoordinationV1().Leases(registration.ClusterNamespace(k.cluster.Namespace, k.cluster.Name)).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err): // a person with rights only in the workspace; the hub judges the same heartbeats, while it runs
		age, connected := ageOf(k.cluster.Status.Agent.LastSeen), fleetstatus.Condition(k.cluster.Status.Conditions, fleet.ConditionConnected)
		switch {
		case connected.Status == corev1.ConditionFalse:
			return fail("%s", conditionText(k.cluster, fleet.ConditionConnected))
		case connected.Status != corev1.ConditionTrue, age > hub.LastSeenInterval()+missed:
			return unknown("the hub may not run: the last heartbeat in the status of the Cluster was %s ago, and you may not read the Leases with later ones", short(age))
		}
		return pass("%s", conditionText(k.cluster, fleet.ConditionConnected))
	case err != nil:
		return failed("listing the Leases of the Cluster", err)
	}
	age := ageOf(view.LastHeartbeat(&k.cluster.Status.Agent.LastSeen, leases.Items))
	text := fmt.Sprintf("the last heartbeat was %s ago, the interval is %s", short(age), short(interval))
	switch {
	case age > missed:
		return fail("%s", text)
	case age > interval+interval/4:
		return warn("%s", text)
	}
	return pass("%s", text)
}

func clusterCredential(_ context.Context, k *knowledge) Finding {
	if k.cluster == nil || k.credential != nil || k.cluster.Status.Agent.CredentialExpires == nil {
		return doesNotApply()
	}
	left := k.cluster.Status.Agent.CredentialExpires.Sub(k.hub.clock.serverNow())
	if left <= 0 {
		return fail("the credential that the agent reported in its last heartbeat expired %s ago", short(-left))
	}
	return pass("%s left", short(left))
}

func clusterDeploys(_ context.Context, k *knowledge) Finding {
	if k.cluster == nil {
		return doesNotApply()
	}
	if stalled := k.cluster.Status.Agent.DeploymentsStalled; stalled != "" {
		return fail("the agent deploys nothing: %s", stalled)
	}
	return pass("")
}

func clusterBundles(_ context.Context, k *knowledge) Finding {
	if k.cluster.Status.Display.ReadyBundles == "" {
		return doesNotApply()
	}
	if fleetstatus.IsFalse(k.cluster.Status.Conditions, fleet.ConditionReady) {
		return warn("%s of its BundleDeployments are ready: %s", k.cluster.Status.Display.ReadyBundles, conditionText(k.cluster, fleet.ConditionReady))
	}
	return pass("%s", k.cluster.Status.Display.ReadyBundles)
}

// clusterVersions compares the version of the agent with the version of this program, which is released with the hub.
func clusterVersions(_ context.Context, k *knowledge) Finding {
	if k.cluster == nil || k.cluster.Status.Agent.Version == "" {
		return doesNotApply()
	}
	agent := k.cluster.Status.Agent.Version
	if agent != k.Version && !slices.Contains([]string{agent, k.Version}, developmentVersion) {
		return warn("the agent has version %s, muster has version %s", agent, k.Version)
	}
	return pass("%s", agent)
}

const developmentVersion = "dev"
