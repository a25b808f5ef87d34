package clusterregistration

import (
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/apply"
	wranglername "github.com/rancher/wrangler/v3/pkg/name"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

var requestKind = fleet.SchemeGroupVersion.WithKind("ClusterRegistration")

// requestOf returns the request that an object of a set was created for.
var requestOf = enqueue.OwnerOf(requestKind)

// requestOfOwn returns the request that an object was created for, if the object is where the hub creates objects for that request: in no
// namespace, or in the namespace of the request, of the credentials or of a Cluster. With annotations on objects elsewhere, users of one
// workspace could otherwise make the hub work on requests of another workspace.
func (h *handler) requestOfOwn(object metav1.Object) []types.NamespacedName {
	in := object.GetNamespace()
	return slices.DeleteFunc(requestOf(object), func(request types.NamespacedName) bool {
		return in != "" && in != request.Namespace && in != h.RegistrationNamespace() && !strings.HasPrefix(in, "cluster-")
	})
}

var done = result.Done("", "")

func refused(r *registration.Explanation) result.Result { return result.Stalled(r.Reason, r.Message) }

func waiting(r *registration.Explanation) result.Result { return result.Wait(r.Reason, r.Message) }

func failed(err error) result.Result { return result.Retry(fleet.ReasonError, err) }

func clusterName(existing *fleet.Cluster, create string) string {
	if existing != nil {
		return existing.Name
	}
	return create
}

// clusterNamespace computes the namespace of a Cluster. The status only shows that it exists: an agent may write to the status.
func clusterNamespace(cluster *fleet.Cluster) string {
	return registration.ClusterNamespace(cluster.Namespace, cluster.Name)
}

func secretName(request *fleet.ClusterRegistration) string {
	return registration.CredentialSecretName(request.Spec.ClientID, request.Spec.ClientRandom)
}

// fleetContentBinding is Fleet's name for the ClusterRoleBinding of a request.
func fleetContentBinding(request string) string {
	return wranglername.SafeConcatName(request, "content")
}

func accountName(request *fleet.ClusterRegistration) string {
	return registration.RequestServiceAccount(request.Name, string(request.UID))
}

func asToken(token *fleet.ClusterRegistrationToken, users ...string) registration.Token {
	return registration.Token{Name: token.Name, ServiceAccount: registration.TokenServiceAccount(token.Name, string(token.UID)), Users: users}
}

// usersOf returns the users of the bootstrap tokens of Kubernetes that stand for the token.
func (h *handler) usersOf(token *fleet.ClusterRegistrationToken) []string {
	return h.Config.Get().Clusternet.UsersOf(token.Namespace, token.Name)
}

func role(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

// usesLease reports whether the agent sends its heartbeats to a Lease. It does not on a hub beside Fleet's own controllers: they also write
// the status of the Cluster, and would remove the fields that this hub copies from the Lease.
func (h *handler) usesLease(request *fleet.ClusterRegistration) bool {
	return registration.UsesLease(request) && !h.DisableBundles
}

// isInUse reports whether the agent has sent a heartbeat with the credential of this request.
func isInUse(request *fleet.ClusterRegistration, cluster *fleet.Cluster) bool {
	return cluster.Status.Agent.Registration == request.Name
}

// isFor compares the whole key of the request: the name of the Secret is a hash of two strings without a separator, which two
// requests can share.
func isFor(secret *corev1.Secret, request *fleet.ClusterRegistration) bool {
	key := requestKeyOf(secret)
	return secret.Type == registration.SecretTypeCredential && key.Namespace == request.Namespace && key.Name == request.Name
}

// isRefusal reports whether an answer contains no credential.
func isRefusal(secret *corev1.Secret) bool {
	return secret != nil && secret.Type == registration.SecretTypeCredential && len(secret.Data[registration.RefusalReason]) > 0
}

// secretsByRequest finds credential Secrets by the key of their request.
var secretsByRequest = index.Bucketed[*corev1.Secret]{Name: "muster.fleet.cattle.io/secret-by-request", Keys: requestOfSecret}

// credentialsOf returns the credential Secrets of a request.
func (h *handler) credentialsOf(request string) ([]*corev1.Secret, error) {
	found, err := secretsByRequest.Find(h.secrets, request)
	return slices.DeleteFunc(found, func(secret *corev1.Secret) bool { return secret.Namespace != h.RegistrationNamespace() }), err
}

func requestOfSecret(secret *corev1.Secret) []string {
	key := requestKeyOf(secret)
	if secret.Type != registration.SecretTypeCredential || key.Name == "" {
		return nil
	}
	return []string{index.Key(key.Namespace, key.Name)}
}

// requestKeyOf returns the key of the request that a Secret answers. Fleet's hub writes credentials with wrangler's apply and its annotations.
func requestKeyOf(secret *corev1.Secret) types.NamespacedName {
	a := secret.Annotations
	if name := a[fleet.ClusterRegistrationAnnotation]; name != "" {
		return types.NamespacedName{Namespace: a[fleet.ClusterRegistrationNamespaceAnnotation], Name: name}
	}
	return types.NamespacedName{Namespace: a[apply.LabelNamespace], Name: a[apply.LabelName]}
}

// refusedByCreator is the index of refused requests by the user who created them or, where the API server does not record creators, by the
// token that they name.
const refusedByCreator = "muster.fleet.cattle.io/refused-by-creator"

func (h *handler) creatorOfRefused(request *fleet.ClusterRegistration) ([]string, error) {
	if _, isRefused := registration.RefusalOf(request); !isRefused {
		return nil, nil
	}
	creator := registration.CreatorOf(request, h.HubUser)
	if token := request.Labels[fleet.RegistrationTokenLabel]; creator == "" && token != "" {
		creator = "token " + token
	}
	return []string{index.Key(request.Namespace, creator)}, nil
}
