package cluster

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// theBundle is the one of the agent's name, or none.
type theBundle struct {
	fleetcontrollers.Interface
	fleetcontrollers.BundleController
	bundle  *fleet.Bundle
	err     error
	deleted []string
}

func (b *theBundle) Bundle() fleetcontrollers.BundleController { return b }

func (b *theBundle) Get(_, name string, _ metav1.GetOptions) (*fleet.Bundle, error) {
	if b.bundle == nil && b.err == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "bundles"}, name)
	}
	return b.bundle, b.err
}

func (b *theBundle) Delete(_, name string, options *metav1.DeleteOptions) error {
	b.deleted = append(b.deleted, name+" "+string(*options.Preconditions.UID))
	return nil
}

func TestOnlyTheBundleOfTheAgentGoesWithItsCluster(t *testing.T) {
	made := &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{UID: "b", Annotations: map[string]string{apply.LabelID: registration.SetIDManageAgent}}}
	going := made.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: noon}
	for _, row := range []struct {
		name    string
		bundle  *fleet.Bundle
		err     error
		done    bool
		deleted []string
	}{
		{"it is there", made, nil, true, []string{"fleet-agent-c b"}},
		{"it is on its way", going, nil, true, nil},
		{"there is none", nil, nil, true, nil},
		{"a person's has its name", &fleet.Bundle{}, nil, true, nil},
		{"the API server fails", nil, errCause, false, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := &theBundle{bundle: row.bundle, err: row.err}
			f := &farewell{
				handler: &handler{Context: &app.Context{Fleet: b}},
				cluster: &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}},
			}
			assert.Equal(t, row.done, f.deleteBundle(t.Context()).IsDone())
			assert.Equal(t, row.deleted, b.deleted)
		})
	}
}
