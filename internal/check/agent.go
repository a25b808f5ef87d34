package check

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/register"
	"github.com/muster-fleet/muster/pkg/config"
	tokens "github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

func memberAPI(ctx context.Context, k *knowledge) Finding {
	version, err := k.member.version(ctx)
	if err != nil {
		return failed("the member's API server", err)
	}
	return pass("Kubernetes %s", version)
}

func agentNamespace(ctx context.Context, k *knowledge) Finding {
	name := k.agentNamespace()
	namespace, err := k.member.core.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fail("Namespace %s does not exist on the member: the agent is not installed, or in another namespace (--agent-namespace)", name)
	case err != nil:
		return failed("Namespace "+name, err)
	case namespace.DeletionTimestamp != nil:
		return fail("Namespace %s has been terminating for %s", name, short(k.member.clock.serverNow().Sub(namespace.DeletionTimestamp.Time)))
	}
	return pass("%s", name)
}

func agentDeployment(ctx context.Context, k *knowledge) Finding {
	title := fmt.Sprintf("Deployment %s/%s", k.agentNamespace(), registration.AgentName)
	deployment, err := k.member.core.AppsV1().Deployments(k.agentNamespace()).Get(ctx, registration.AgentName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fail("%s does not exist on the member: the agent is not installed", title)
	case err != nil:
		return failed(title, err)
	case ptr.Deref(deployment.Spec.Replicas, 1) == 0:
		return fail("%s has 0 replicas: the agent was stopped", title)
	}
	for _, c := range deployment.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return fail("%s can create no pod: %s: %s", title, c.Reason, c.Message)
		}
	}
	return pass("%s", title)
}

func agentPod(ctx context.Context, k *knowledge) Finding {
	const selector = "app=" + registration.AgentName
	pods, err := k.member.core.CoreV1().Pods(k.agentNamespace()).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return failed("listing the pods of the agent", err)
	}
	if len(pods.Items) == 0 {
		return fail("there is no pod with the label %s in namespace %s: the controller manager of the member has not created it", selector, k.agentNamespace())
	}
	k.pod = newest(pods.Items)
	return pass("%s", k.pod.Name)
}

func agentScheduled(_ context.Context, k *knowledge) Finding {
	if problem := scheduleProblem(k.pod); problem != "" {
		return fail("%s", problem)
	}
	return pass("%s", k.pod.Spec.NodeName)
}

func agentImage(_ context.Context, k *knowledge) Finding {
	if problem := imageProblem(k.pod); problem != "" {
		return fail("%s", problem)
	}
	return pass("")
}

func agentRuns(_ context.Context, k *knowledge) Finding {
	if problem := containerProblem(k.pod); problem != "" {
		return fail("%s", problem)
	}
	for _, c := range k.pod.Status.ContainerStatuses {
		if c.RestartCount > 0 {
			return warn("Pod %s: container %s has restarted %d times", k.pod.Name, c.Name, c.RestartCount)
		}
	}
	return pass("")
}

// agentSecret reads both Secrets of the agent. Their values are not reported.
func agentSecret(ctx context.Context, k *knowledge) Finding {
	var ages []string
	for name, into := range map[string]**corev1.Secret{registration.BootstrapSecret: &k.bootstrap, registration.CredentialSecret: &k.stored} {
		secret, err := k.member.core.CoreV1().Secrets(k.agentNamespace()).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return failed("Secret "+name, err)
		}
		*into = secret
	}
	for _, secret := range []*corev1.Secret{k.bootstrap, k.stored} {
		if secret != nil {
			ages = append(ages, fmt.Sprintf("%s of %s ago", secret.Name, short(k.member.clock.serverNow().Sub(secret.CreationTimestamp.Time))))
		}
	}
	if len(ages) == 0 {
		return fail("namespace %s has neither a Secret %s to register with nor a Secret %s with a credential",
			k.agentNamespace(), registration.BootstrapSecret, registration.CredentialSecret)
	}
	return pass("%s", strings.Join(ages, ", "))
}

func agentConfig(ctx context.Context, k *knowledge) Finding {
	configMap, err := k.member.core.CoreV1().ConfigMaps(k.agentNamespace()).Get(ctx, registration.AgentConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return pass("no ConfigMap %s: the defaults apply", registration.AgentConfigMap)
	} else if err != nil {
		return failed("ConfigMap "+registration.AgentConfigMap, err)
	}
	if k.agentConfig, err = config.ParseAgent(configMap.Data[registration.ConfigKey]); err != nil {
		return fail("%s", err)
	}
	switch mode := k.agentConfig.AgentTLSMode; mode {
	case "", config.TLSModeStrict, config.TLSModeSystemStore:
		return pass("")
	default:
		return fail("ConfigMap %s has agentTLSMode %q: it must be %s or %s", registration.AgentConfigMap, mode, config.TLSModeStrict, config.TLSModeSystemStore)
	}
}

func agentCredential(_ context.Context, k *knowledge) Finding {
	if k.stored == nil {
		return doesNotApply()
	}
	stored, err := credential.Parse(k.stored)
	switch {
	case err != nil && k.bootstrap != nil:
		return warn("%s; the agent registers again with Secret %s", err, registration.BootstrapSecret)
	case err != nil:
		return fail("%s", err)
	}
	k.credential = stored
	return pass("of Cluster %s/%s", stored.Workspace, stored.ClusterName)
}

// agentCluster compares the Cluster of the credential with the one that is checked: an import of another Cluster may have replaced the agent.
func agentCluster(_ context.Context, k *knowledge) Finding {
	if k.credential == nil || k.bootstrap != nil { // with a bootstrap Secret, the agent is about to register
		return doesNotApply()
	}
	if stored := k.credential; stored.Workspace != k.cluster.Namespace || stored.ClusterName != k.cluster.Name {
		return fail("the agent in namespace %s of the member belongs to Cluster %s/%s", k.agentNamespace(), stored.Workspace, stored.ClusterName)
	}
	return pass("")
}

// renewalOverdue is the fraction of a credential's lifetime after which the agent should have renewed it.
const renewalOverdue = 0.8

func agentCredentialLives(_ context.Context, k *knowledge) Finding {
	if k.credential == nil {
		return doesNotApply()
	}
	claims, err := tokens.Inspect(tokens.Token(k.credential.Token))
	if err != nil || claims.Expires.IsZero() {
		return pass("it does not expire")
	}
	left := claims.Expires.Sub(k.Now())
	switch {
	case left <= 0:
		return fail("the credential in Secret %s expired %s ago", registration.CredentialSecret, short(-left))
	case claims.Lifetime() > 0 && left < time.Duration(float64(claims.Lifetime())*(1-renewalOverdue)):
		return warn("the credential expires in %s and should have been renewed", short(left))
	}
	return pass("%s left", short(left))
}

func agentBootstrap(_ context.Context, k *knowledge) Finding {
	if k.bootstrap == nil || k.credential != nil {
		return doesNotApply()
	}
	identity, err := register.ParseIdentity(k.bootstrap)
	if err != nil {
		return fail("%s", err)
	}
	k.identity = identity
	if problem := config.CheckServerURL(identity.Server); problem != "" {
		return fail("Secret %s: %s", registration.BootstrapSecret, problem)
	}
	return pass("for namespace %s", identity.Workspace())
}

func agentToken(_ context.Context, k *knowledge) Finding {
	if k.identity == nil {
		return doesNotApply()
	}
	claims, err := tokens.Inspect(tokens.Token(k.identity.Token))
	switch left := claims.Expires.Sub(k.Now()); {
	case err != nil:
		return warn("the token in Secret %s is not a ServiceAccount token", registration.BootstrapSecret)
	case claims.Expires.IsZero():
		return pass("it does not expire")
	case left <= 0:
		return fail("the registration token in Secret %s expired %s ago", registration.BootstrapSecret, short(-left))
	default:
		return pass("%s left", short(left))
	}
}
