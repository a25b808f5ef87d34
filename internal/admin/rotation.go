package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rancher/wrangler/v3/pkg/name"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Rotate makes the agent of a Cluster register again, waits until the agent uses its new credential, and returns the name of the new request.
// Until then the agent works with its current credential, which the hub revokes afterwards. If the Cluster has a kubeconfig, Rotate asks the
// hub to install the agent again. It does that for an agent that is offline, too: somebody may have deleted the agent, or the hub rejects its
// credential after a restore. Otherwise it creates a registration token for one use, stores it on the member, and deletes it at the end.
func (h *Hub) Rotate(ctx context.Context, cluster *fleet.Cluster, member kubernetes.Interface, progress func(view.Cluster)) (request string, err error) {
	title := fmt.Sprintf("Cluster %s/%s", cluster.Namespace, cluster.Name)
	switch state := view.OfCluster(cluster).State; {
	case state != view.StateRegistered && !(state == view.StateOffline && cluster.Spec.KubeConfigSecret != ""):
		return "", fmt.Errorf("%s is %s: only an agent that is registered and connected can register again with this command", title, state)
	case cluster.Spec.KubeConfigSecret != "":
		patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q},"spec":{"redeployAgentGeneration":%d}}`,
			cluster.ResourceVersion, cluster.Spec.RedeployAgentGeneration+1)
		if _, err := h.Fleet.Clusters(cluster.Namespace).Patch(ctx, cluster.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return "", fmt.Errorf("%s: %w", title, err)
		}
		return h.awaitNewCredential(ctx, cluster, progress)
	case cluster.Status.Agent.Registration == "":
		return "", fmt.Errorf("the agent of %s does not report the request with which it registered, so it is not an agent of Muster", title)
	case member == nil:
		return "", fmt.Errorf("the hub has no kubeconfig of %s: pass the kubeconfig of the member with --member-kubeconfig", title)
	}

	token := name.SafeConcatName(cluster.Name, "rotation", rand.String(5))
	err = h.CreateToken(ctx, cluster.Namespace, token, fleet.ClusterRegistrationTokenSpec{
		TTL: TTL(time.Hour), UsageLimit: ptr.To[int32](1), ClientIDs: []string{cluster.Spec.ClientID}, Approval: fleet.ApprovalAuto,
		AllowedLabelKeys: &[]string{},
	})
	if err != nil {
		return "", err
	}
	secrets := member.CoreV1().Secrets(cluster.Status.Agent.Namespace)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, ignoreNotFound(h.Fleet.ClusterRegistrationTokens(cluster.Namespace).Delete(ctx, token, metav1.DeleteOptions{})))
	}()
	created, err := h.AwaitToken(ctx, cluster.Namespace, token)
	if err != nil {
		return "", err
	}
	values, err := h.Values(ctx, created)
	if err != nil {
		return "", err
	}
	bootstrap, err := secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: registration.BootstrapSecret},
		Data:       map[string][]byte{registration.ValuesKey: values, registration.BootstrapRegistrationKey: []byte(created.UID)},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return "", fmt.Errorf("Secret %s/%s exists on the member: a registration is in progress; wait for it, or delete the Secret",
			cluster.Status.Agent.Namespace, registration.BootstrapSecret)
	case err != nil:
		return "", fmt.Errorf("create Secret %s/%s on the member: %w", cluster.Status.Agent.Namespace, registration.BootstrapSecret, err)
	}
	if request, err = h.awaitNewCredential(ctx, cluster, progress); err != nil {
		// The agent keeps its current credential. With this Secret it would repeat requests with the deleted token.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, ignoreNotFound(secrets.Delete(ctx, bootstrap.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &bootstrap.UID}})))
	}
	return request, err
}

// awaitNewCredential waits until the agent uses the credential of another request than in the Cluster before. An agent of Fleet reports neither a
// request nor its version. If the agent before was one, the wait also ends with the first heartbeat of an agent of Fleet that the hub has installed.
func (h *Hub) awaitNewCredential(ctx context.Context, before *fleet.Cluster, progress func(view.Cluster)) (request string, err error) {
	stateOf := reportChanges(progress)
	_, err = awaited[*fleet.Cluster]{
		what: fmt.Sprintf("Cluster %s/%s", before.Namespace, before.Name), get: h.Fleet.Clusters(before.Namespace).Get, name: before.Name,
		status: "the agent has not registered again",
		check: func(cluster *fleet.Cluster) (bool, string, error) {
			now, agent, deployed := stateOf(cluster), cluster.Status.Agent, cluster.Status.AgentDeployedGeneration
			request = agent.Registration
			installedFleet := before.Status.Agent.Registration == "" && agent.Version == "" && !agent.LastSeen.IsZero() &&
				deployed != nil && *deployed > before.Spec.RedeployAgentGeneration
			done := (installedFleet || request != "" && request != before.Status.Agent.Registration) && now.State == view.StateRegistered
			return done, fmt.Sprintf("the agent uses the credential of request %q; %s %s", request, now.State, now.Message), nil
		},
	}.wait(ctx)
	return request, err
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
