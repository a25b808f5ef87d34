package clusterregistration

import (
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// requestsOf answers for the cache of requests; all of them have the same identity.
type requestsOf struct {
	fleetcontrollers.ClusterRegistrationCache
	all []*fleet.ClusterRegistration
	err error
}

func (r requestsOf) GetByIndex(string, string) ([]*fleet.ClusterRegistration, error) {
	return r.all, r.err
}

func (r requestsOf) List(string, labels.Selector) ([]*fleet.ClusterRegistration, error) {
	return r.all, r.err
}

func (r requestsOf) Get(namespace, name string) (*fleet.ClusterRegistration, error) {
	for _, request := range r.all {
		if request.Namespace == namespace && request.Name == name {
			return request, r.err
		}
	}
	return nil, orNotFound(r.err, name)
}

// tokensOf answers for the cache of tokens of one namespace.
type tokensOf struct {
	fleetcontrollers.ClusterRegistrationTokenCache
	all []*fleet.ClusterRegistrationToken
	err error
}

func (t tokensOf) GetByIndex(_, key string) (found []*fleet.ClusterRegistrationToken, err error) {
	for _, token := range t.all {
		if key == token.Namespace+"/"+token.Name {
			found = append(found, token)
		}
	}
	return found, t.err
}

func (t tokensOf) List(string, labels.Selector) ([]*fleet.ClusterRegistrationToken, error) {
	return t.all, t.err
}

// secretsOf answers for the cache of Secrets.
type secretsOf struct {
	corecontrollers.SecretCache
	all []*corev1.Secret
	err error
}

func (s secretsOf) Get(namespace, name string) (*corev1.Secret, error) {
	for _, secret := range s.all {
		if secret.Namespace == namespace && secret.Name == name {
			return secret, s.err
		}
	}
	return nil, orNotFound(s.err, name)
}

func orNotFound(err error, name string) error {
	if err != nil {
		return err
	}
	return apierrors.NewNotFound(schema.GroupResource{}, name)
}

// recorded is a hub whose API server has recorded creators since then, or does not.
type recorded struct {
	since   time.Time
	missing string
	changed func()
}

func (r *recorded) InForce() (time.Time, bool) { return r.since, r.missing == "" }
func (r *recorded) Missing() string            { return r.missing }
func (r *recorded) OnChange(f func())          { r.changed = f }

const tokenUser = "system:serviceaccount:fleet-default:token-uid"

// someToken is the one somePass registers with.
func someToken() *fleet.ClusterRegistrationToken {
	return &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "token", UID: "uid"}}
}

// judged is a pass at a request by the holder of someToken, of an agent that renews its credential, for a Cluster no agent
// has registered for.
func judged() *pass {
	p := somePass()
	p.Config = &config.Store{}
	p.Admission = &recorded{since: noon}
	p.request.Labels = map[string]string{fleet.RegistrationTokenLabel: "token"}
	p.request.Annotations = map[string]string{registration.RenewalAnnotation: "true", fleet.CreatorAnnotation: tokenUser}
	p.reader, p.token = nil, nil
	p.tokens = tokensOf{all: []*fleet.ClusterRegistrationToken{someToken()}}
	p.cache = requestsOf{all: []*fleet.ClusterRegistration{p.request}}
	p.secrets, p.Kubernetes = secretsOf{}, fake.NewClientset()
	return p
}

// earlier is a granted request of the same identity, with its answer, which no agent has used yet.
func (p *pass) earlier() (*fleet.ClusterRegistration, *corev1.Secret) {
	before := *p
	before.request = p.request.DeepCopy()
	before.request.Name, before.request.UID, before.request.Spec.ClientRandom = "request-before", "before", "other"
	before.request.Status.Granted = true
	return before.request, before.credentialSecret("bearer")
}

// latestRequest is what the API server has of a request.
type latestRequest struct {
	fleetcontrollers.ClusterRegistrationController
	latest *fleet.ClusterRegistration
	err    error
	asked  int
	again  time.Duration // when it is looked at next
}

func (l *latestRequest) EnqueueAfter(_, _ string, delay time.Duration) { l.again = delay }

func (l *latestRequest) Get(string, string, metav1.GetOptions) (*fleet.ClusterRegistration, error) {
	l.asked++
	return l.latest, l.err
}

func text(out result.Result) string { return string(out.Status()) + " " + out.Reason }

func conditionText(p *pass, conditionType string) string {
	c := result.Get(p.after.Conditions, conditionType)
	return string(c.Status) + " " + c.Reason
}
