package cluster

import (
	"fmt"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// knownBundle is the one of the agent's name in the cache, or none.
type knownBundle struct {
	fleetcontrollers.BundleCache
	bundle *fleet.Bundle
	err    error
}

func (k knownBundle) Get(_, name string) (*fleet.Bundle, error) {
	if k.bundle == nil && k.err == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "bundles"}, name)
	}
	return k.bundle, k.err
}

// bundleClient notes what is sent.
type bundleClient struct {
	fleetcontrollers.Interface
	fleetcontrollers.BundleController
	sent    []string
	refuses error
}

func (b *bundleClient) Bundle() fleetcontrollers.BundleController { return b }

func (b *bundleClient) Delete(_, name string, options *metav1.DeleteOptions) error {
	b.sent = append(b.sent, fmt.Sprintf("delete %s of %s", name, *options.Preconditions.UID))
	return b.refuses
}

func (b *bundleClient) Patch(_, name string, _ types.PatchType, data []byte, _ ...string) (*fleet.Bundle, error) {
	b.sent = append(b.sent, fmt.Sprintf("patch %s %s", name, data))
	return nil, b.refuses
}

func TestOnlyTheBundleOfTheAgentGoesWithItsClusterAndAtOnce(t *testing.T) {
	bundle := func(change func(*fleet.Bundle)) *fleet.Bundle {
		b := &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{
			Name: "fleet-agent-c", UID: "b", Annotations: map[string]string{apply.LabelID: registration.SetIDManageAgent},
			Finalizers: []string{"other", fleet.BundleFinalizer},
		}}
		change(b)
		return b
	}
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "bundles"}, "fleet-agent-c")
	const deletion, release = "delete fleet-agent-c of b", `patch fleet-agent-c {"metadata":{"finalizers":["other"],"uid":"b"}}`
	for _, row := range []struct {
		name      string
		bundle    *fleet.Bundle
		unknown   error
		refuses   error
		elsewhere bool
		done      bool
		sent      []string
	}{
		{name: "it is there", bundle: bundle(func(*fleet.Bundle) {}), done: true, sent: []string{deletion, release}},
		{name: "it is on its way", bundle: bundle(func(b *fleet.Bundle) { b.DeletionTimestamp = &metav1.Time{Time: noon} }), done: true, sent: []string{release}},
		{name: "nothing holds it", bundle: bundle(func(b *fleet.Bundle) { b.Finalizers = nil }), done: true, sent: []string{deletion}},
		{name: "its finalizer is of others", bundle: bundle(func(*fleet.Bundle) {}), elsewhere: true, done: true, sent: []string{deletion}},
		{name: "somebody was faster", bundle: bundle(func(*fleet.Bundle) {}), refuses: gone, done: true, sent: []string{deletion}},
		{name: "there is none", done: true},
		{name: "a person's has its name", bundle: &fleet.Bundle{}, done: true},
		{name: "the cache fails", unknown: errCause},
		{name: "the API server fails", bundle: bundle(func(*fleet.Bundle) {}), refuses: errCause, sent: []string{deletion}},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := &bundleClient{refuses: row.refuses}
			f := &farewell{
				handler: &handler{Context: &app.Context{Fleet: client, DisableBundles: row.elsewhere}, bundles: knownBundle{bundle: row.bundle, err: row.unknown}},
				cluster: &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}},
			}
			assert.Equal(t, row.done, f.deleteBundle(t.Context()).IsDone())
			assert.Equal(t, row.sent, client.sent)
		})
	}
}
