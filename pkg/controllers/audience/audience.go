// Package audience records the audiences of the API server for the admission policy fleet-agent-token-audience, which binds the tokens of agents
// to them. The policy cannot know them: when it sees a request, the API server has replaced missing audiences by its own.
package audience

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/sirupsen/logrus"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/credential"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// interval is the time between two checks. After a change of --api-audiences, agents cannot renew their credentials until the next check; the
// shortest lifetime of a credential leaves them three minutes for that.
const interval = time.Minute

// tries is the number of agents for which a check requests a token until it gets one: an API server that issues none must not get a request for each
// agent.
const tries = 3

// Updater keeps the annotation of the ClusterRole up to date.
type Updater struct {
	*app.Context
	requests fleetcontrollers.ClusterRegistrationCache
	accounts corecontrollers.ServiceAccountCache
	granted  chan struct{} // a request was granted
	recorded string        // by this hub or an earlier one
	running  sync.WaitGroup
}

// Register watches requests, so that the tokens of the first agent are bound at once.
func Register(c *app.Context) *Updater {
	r := &Updater{
		Context: c, requests: c.Fleet.ClusterRegistration().Cache(), accounts: c.Core.ServiceAccount().Cache(), granted: make(chan struct{}, 1),
	}
	enqueue.OnEvent(c.Fleet.ClusterRegistration(), func(before, after *fleet.ClusterRegistration) {
		if after == nil || !after.Status.Granted || before != nil && before.Status.Granted {
			return
		}
		select {
		case r.granted <- struct{}{}:
		default:
		}
	})
	return r
}

// Start starts the checks, until ctx ends.
func (r *Updater) Start(ctx context.Context) {
	r.running.Go(func() {
		r.recorded = r.recordedBefore(ctx)
		for {
			if err := r.record(ctx); err != nil && ctx.Err() == nil {
				logrus.Warnf("Cannot record the audiences of the API server, to which admission policy %s binds the tokens of agents: %v",
					registration.ClusterRoleAudience, err)
			}
			next, granted := r.Clock.After(interval), r.granted
			if r.recorded != "" {
				granted = nil
			}
			select {
			case <-ctx.Done():
				return
			case <-next:
			case <-granted:
			}
		}
	})
}

// Wait returns when the checks have ended.
func (r *Updater) Wait() { r.running.Wait() }

// recordedBefore returns what an earlier hub has recorded. On an API server that sets the audiences itself since an upgrade, the policy may still
// exist, so the annotation must stay up to date.
func (r *Updater) recordedBefore(ctx context.Context) string {
	role, err := r.Kubernetes.RbacV1().ClusterRoles().Get(ctx, registration.ClusterRoleAudience, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return role.Annotations[fleet.AudiencesAnnotation]
}

// record asks the API server for a token of an agent that may request tokens, to see its audiences. Without such an agent it records nothing.
func (r *Updater) record(ctx context.Context) (err error) {
	defer guard.Recover(guard.Task, nil, &err)
	if r.Admission == nil || r.Admission.State().NotRecorded == "" && r.recorded == "" {
		return nil // an API server that records creators serves mutating policies, of which fleet-agent-token sets the audiences
	}
	all, err := r.requests.List(metav1.NamespaceAll, labels.Everything())
	if err != nil {
		return err
	}
	var failures []error
	for _, request := range all {
		if !request.Status.Granted || !registration.Renews(request) {
			continue
		}
		account := credential.Account{
			Namespace: registration.ClusterNamespace(request.Namespace, request.Status.ClusterName),
			Name:      registration.RequestServiceAccount(request.Name, string(request.UID)),
		}
		if _, err := r.accounts.Get(account.Namespace, account.Name); err != nil {
			continue // revoked
		}
		issued, err := r.Issuer.Request(ctx, account, credential.MinLifetime)
		switch {
		case err == nil && len(issued.Audiences) > 0:
			return r.write(ctx, strings.Join(issued.Audiences, "\n"))
		case err == nil:
			err = fmt.Errorf("the token for ServiceAccount %s/%s has no audiences", account.Namespace, account.Name)
		case apierrors.IsNotFound(err):
			continue
		}
		if failures = append(failures, err); len(failures) == tries {
			break
		}
	}
	return errors.Join(failures...)
}

func (r *Updater) write(ctx context.Context, audiences string) error {
	role := &rbacv1.ClusterRole{ObjectMeta: desiredset.Managed("", registration.ClusterRoleAudience)}
	role.Annotations = map[string]string{fleet.AudiencesAnnotation: audiences}
	if err := agentrole.EnsureRole(ctx, r.Kubernetes, role); err != nil {
		return err
	}
	r.recorded = audiences
	return nil
}
