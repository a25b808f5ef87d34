package release

import (
	"testing"

	"github.com/stretchr/testify/assert"
	helm "helm.sh/helm/v4/pkg/release/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestWhoseAReleaseIs(t *testing.T) {
	unlabelled := &helm.Release{Namespace: "apps", Name: "shop", Version: 4}
	for _, row := range []struct {
		name     string
		existing *helm.Release
		recorded string
		refused  string
	}{
		{name: "there is none"},
		{name: "it bears our labels", existing: &helm.Release{Labels: owner.LabelsFor("app", "one")}},
		{name: "it bears another's labels", existing: &helm.Release{Labels: owner.LabelsFor("other", "one")}, refused: "belongs to BundleDeployment other"},
		{name: "another's labels count more than the record", existing: &helm.Release{Labels: owner.LabelsFor("other", "one"), Version: 4}, recorded: "apps/shop:4", refused: "belongs to BundleDeployment other"},
		{name: "it bears none, and the hub has none on record", existing: unlabelled, refused: "another owner"},
		{name: "the hub has it on record", existing: unlabelled, recorded: "apps/shop:4"},
		{name: "the hub has the revision before it on record", existing: unlabelled, recorded: "apps/shop:3"},
		{name: "the hub had a later one on record, which is gone", existing: unlabelled, recorded: "apps/shop:5", refused: "another owner"},
		{name: "the hub has another place on record", existing: unlabelled, recorded: "apps/other:4", refused: "another owner"},
		{name: "the hub has another namespace on record", existing: unlabelled, recorded: "shop/shop:4", refused: "another owner"},
		{name: "the record is no record", existing: unlabelled, recorded: "apps/shop", refused: "another owner"},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := checkOwner(Request{Namespace: "apps", Name: "shop", Labels: owner.LabelsFor("app", "one"), Recorded: row.recorded}, row.existing)
			if row.refused == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, row.refused)
		})
	}
	anybodys := Request{Options: fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{TakeOwnership: true}}}
	assert.NoError(t, checkOwner(anybodys, unlabelled), "who takes ownership is not refused")
}
