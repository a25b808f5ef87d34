package hub

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/randfill"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
	"github.com/muster-fleet/muster/pkg/controllers/liveness"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
)

// Whatever users of workspaces and agents write into an object, it gets into the cache: an error or a panic of a transform would keep all
// objects of the kind out of it.
func FuzzTransforms(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed, `{"agent":{"version":"v1","capacity":{"cpu":"1"}},"import":{"generation":"1"}}`)
	}
	f.Fuzz(func(t *testing.T, seed []byte, annotation string) {
		filler := fuzz.From(seed, "a", "fleet.cattle.io/managed", "true", "base64+gz", fleet.StatusAnnotation, fleet.CopyAnnotation).
			Funcs(func(q *resource.Quantity, c randfill.Continue) {
				*q = *resource.NewQuantity(int64(c.Int31()), resource.DecimalSI)
			}) // others take gigabytes to encode
		w, agents := newInterner(), preserve.AgentReports{}
		for object, transforms := range map[metav1.Object][]cache.TransformFunc{
			&fleet.Cluster{}:                {withSmallMetadata(restoreCluster), agents.Transform},
			&fleet.Bundle{}:                 {withoutResources},
			&fleet.BundleDeployment{}:       {withoutOptions, withoutOptions},
			&fleet.ClusterGroup{}:           {clustergroup.Reduce},
			&fleet.ClusterRegistration{}:    {withSmallMetadata(nil)},
			&coordinationv1.Lease{}:         {liveness.Reduce},
			&corev1.Namespace{}:             {reduceManaged("registrations")},
			&corev1.Secret{}:                {reduceManaged("registrations")},
			&corev1.ServiceAccount{}:        {reduceManaged("registrations")},
			&rbacv1.Role{}:                  {reduceManaged("registrations")},
			&rbacv1.ClusterRole{}:           {reduceManaged("registrations")},
			&rbacv1.RoleBinding{}:           {reduceManaged("registrations")},
			&metav1.PartialObjectMetadata{}: {keepIdentity},
		} {
			filler.Fill(object)
			if annotations := object.GetAnnotations(); annotations != nil {
				annotations[fleet.StatusAnnotation] = annotation
			}
			written, err := json.Marshal(object)
			if err != nil {
				continue // no API server has such an object
			}
			for _, transform := range append(transforms, func(o any) (any, error) { return w.intern(nil, o), nil }) {
				if json.Unmarshal(written, object) != nil {
					continue
				}
				for range 2 { // a second version
					kept, err := transform(object)
					require.NoError(t, err)
					require.NotNil(t, kept)
				}
			}
		}
	})
}
