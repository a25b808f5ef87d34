package release

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
)

func TestIsInstalling(t *testing.T) {
	began := time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)
	made := func(status common.Status, last, deleted time.Time) *helm.Release {
		return &helm.Release{Info: &helm.Info{FirstDeployed: began, LastDeployed: last, Deleted: deleted, Status: status}}
	}
	installed := func(status common.Status) *helm.Release { return made(status, began, time.Time{}) }
	upgraded := func(status common.Status) *helm.Release { return made(status, began.Add(time.Second), time.Time{}) }
	for name, row := range map[string]struct {
		revisions []*helm.Release
		want      bool
	}{
		"no release":          {nil, true},
		"failed installation": {[]*helm.Release{installed(common.StatusFailed)}, true},
		"failed installations": {
			[]*helm.Release{installed(common.StatusFailed), installed(common.StatusFailed)}, true,
		},
		"upgrades from a failed installation, of an earlier version": {
			[]*helm.Release{installed(common.StatusFailed), upgraded(common.StatusFailed)}, true,
		},
		"deployed": {[]*helm.Release{installed(common.StatusDeployed)}, false},
		"failed installation, deployed": {
			[]*helm.Release{installed(common.StatusFailed), installed(common.StatusDeployed)}, false,
		},
		"deployed, failed upgrade": {[]*helm.Release{installed(common.StatusDeployed), upgraded(common.StatusFailed)}, false},
		"failed installation, replaced, failed upgrade": {
			[]*helm.Release{installed(common.StatusFailed), upgraded(common.StatusSuperseded), upgraded(common.StatusFailed)}, false,
		},
		"failed upgrades, without the revision before": {[]*helm.Release{upgraded(common.StatusFailed), upgraded(common.StatusFailed)}, false},
		"deployed, and an interrupted removal":         {[]*helm.Release{made(common.StatusFailed, began, began.Add(time.Second))}, false},
		"interrupted removal, and a failed installation": {
			[]*helm.Release{made(common.StatusFailed, began, began.Add(time.Second)), upgraded(common.StatusFailed)}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, row.want, isInstalling(row.revisions))
		})
	}
}
