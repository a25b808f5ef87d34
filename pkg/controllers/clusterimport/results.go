package clusterimport

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

func nameOf(cluster *fleet.Cluster) types.NamespacedName {
	return types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
}

func imported() result.Result { return result.Done(fleet.ReasonImported, "") }

// importing is the result from the first pass of an import on, so that waiting for the token costs no status write.
func importing() result.Result {
	return result.Wait(fleet.ReasonImporting, "installing the agent on the member")
}

func settingsInvalid(err error) result.Result {
	return result.Stalled(fleet.ReasonSettingsInvalid, fmt.Sprintf("the agent cannot be installed with these settings: %s", err))
}
