package k3d

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// checkVersion refuses a server that is too old. The image k3d chooses is as old as k3d, and what then fails, late and in many
// ways, does not look like that.
func (c *cluster) checkVersion(ctx context.Context) error {
	if c.provider.options.Least == "" {
		return nil
	}
	var answer string
	err := c.retry(ctx, func() (err error) {
		answer, err = c.output(ctx, "kubectl", "--kubeconfig", c.Kubeconfig(), "get", "--raw", "/version")
		return err
	})
	if err != nil {
		return err
	}
	return newEnough(answer, c.provider.options.Least)
}

// newEnough looks at what an API server says of itself.
func newEnough(answer, least string) error {
	var server struct{ GitVersion string }
	if err := json.Unmarshal([]byte(answer), &server); err != nil {
		return fmt.Errorf("version of the API server: %w", err)
	}
	has, err := version.ParseGeneric(server.GitVersion)
	if err != nil {
		return err
	}
	wanted, err := version.ParseGeneric(least)
	if err != nil {
		return err
	}
	if has.LessThan(wanted) {
		return fmt.Errorf("its Kubernetes is %s, and has to be %s or later: choose another image of k3s (MUSTER_E2E_K3S_IMAGE)", server.GitVersion, least)
	}
	return nil
}
