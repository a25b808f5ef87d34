package admission

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// forged is the name of no user: the API server has none with a space.
const forged = "nobody at all"

// Probe asks the API server to create, in a dry run that leaves nothing behind, a request that lies about who created it.
// The error is ErrNotOverwritten when it was believed; another says why nobody can tell.
func Probe(ctx context.Context, requests fleetclient.ClusterRegistrationInterface) error {
	answer, err := requests.Create(ctx, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "admission-probe-",
			Annotations:  map[string]string{fleet.CreatorAnnotation: forged},
		},
		Spec: fleet.ClusterRegistrationSpec{ClientID: "admission-probe", ClientRandom: "admission-probe"},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return fmt.Errorf("trying the admission policies by a dry run: %w", err)
	}
	switch creator := answer.Annotations[fleet.CreatorAnnotation]; creator {
	case forged, "":
		return ErrNotOverwritten
	default:
		return nil
	}
}
