package clusterimport

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// importTokenTTL is how long an installed agent has to register.
	importTokenTTL = 12 * time.Hour
	// tokenPatience is the age from which a token that is not ready is reported in the status. Most tokens are ready within
	// milliseconds, and a status write for each of hundreds of imports would delay them all.
	tokenPatience = 30 * time.Second
)

// ensureToken creates the ClusterRegistrationToken with which the agent will register, and returns its values once the controller of tokens
// has written them to its Secret. Until then values is nil, and the caller returns out.
func (i *Importer) ensureToken(ctx context.Context, cluster *fleet.Cluster) (values *registration.Values, out result.Result) {
	name := registration.ImportTokenName(cluster.Name)
	key := index.Key(cluster.Namespace, name)
	token, err := i.tokenCache.Get(cluster.Namespace, name)
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
	if left := tokenPatience - i.Clock.Since(token.CreationTimestamp.Time); left > 0 {
		waiting = importing().In(min(left, tokenPatience)) // the clock of the API server may be ahead
	}
	if token.DeletionTimestamp != nil || fleetstatus.IsFalse(token.Status.Conditions, fleet.ConditionReady) {
		return nil, waiting
	}
	secret, err := i.secretCache.Get(token.Namespace, token.Name)
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
	decoded, err := registration.DecodeValues(secret.Data[registration.ValuesKey])
	if err != nil || decoded.Token == "" {
		return nil, waiting
	}
	return &decoded, result.Done("", "")
}
