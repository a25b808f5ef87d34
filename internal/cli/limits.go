package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/admin"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	flagUsageLimit      = "usage-limit"
	flagClientID        = "client-id"
	flagClientIDPattern = "client-id-pattern"
	flagApproval        = "approval"
	flagCluster         = "cluster"
)

// limitFlags say what a token may be used for.
func limitFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: flagUsageLimit, Usage: "`NUMBER` of requests it may be used for, re-registrations included", DefaultText: "no limit"},
		&cli.StringSliceFlag{Name: flagClientID, Usage: "`ID` of a cluster it may register; may be repeated; default: any"},
		&cli.StringFlag{Name: flagClientIDPattern, Usage: "`PATTERN` of the IDs it may register, such as 'edge-*'"},
		&cli.StringFlag{Name: flagCluster, Usage: "`NAME` of an existing cluster; the token lets its agent register again, and no other"},
		&cli.StringSliceFlag{Name: flagLabel, Usage: "`KEY=VALUE` label for each cluster it registers; may be repeated"},
		&cli.StringFlag{Name: flagApproval, Usage: "`MODE` of approval for its requests: Auto or Manual; default: as the hub is configured"},
	}
}

// tokenSpec is what the command line asks for, --cluster left out.
func tokenSpec(c *cli.Context) (spec fleet.ClusterRegistrationTokenSpec, err error) {
	labels, errLabels := parseLabels(c.StringSlice(flagLabel))
	spec = fleet.ClusterRegistrationTokenSpec{
		TTL: admin.TTL(c.Duration(flagTTL)), ClientIDs: c.StringSlice(flagClientID), ClientIDPattern: c.String(flagClientIDPattern),
		Approval: fleet.Approval(c.String(flagApproval)),
	}
	if len(labels) > 0 {
		spec.Labels = labels
	}
	limit, errLimit := usageLimit(c)
	spec.UsageLimit = limit
	return spec, errors.Join(checkTTL(c), errLabels, errLimit, checkApproval(spec.Approval), checkIdentities(c))
}

func checkTTL(c *cli.Context) error {
	if c.Duration(flagTTL) < 0 {
		return fmt.Errorf("--ttl is %s: it must not be negative", c.Duration(flagTTL))
	}
	return nil
}

func usageLimit(c *cli.Context) (*int32, error) {
	limit := c.Int(flagUsageLimit)
	switch {
	case !c.IsSet(flagUsageLimit):
		return nil, nil
	case limit < 1 || limit > math.MaxInt32:
		return nil, fmt.Errorf("--usage-limit is %d: it must be at least 1", limit)
	}
	number := int32(limit)
	return &number, nil
}

func checkApproval(approval fleet.Approval) error {
	switch approval {
	case "", fleet.ApprovalAuto, fleet.ApprovalManual:
		return nil
	}
	return fmt.Errorf("--approval is %q: it must be %s or %s", approval, fleet.ApprovalAuto, fleet.ApprovalManual)
}

func checkIdentities(c *cli.Context) error {
	if _, err := path.Match(c.String(flagClientIDPattern), ""); err != nil {
		return fmt.Errorf("--client-id-pattern %q: %w", c.String(flagClientIDPattern), err)
	}
	if c.String(flagCluster) != "" && (c.IsSet(flagClientID) || c.IsSet(flagClientIDPattern)) {
		return errors.New("--cluster says which ID the token may register: leave --client-id and --client-id-pattern out")
	}
	return nil
}

// forCluster makes the token one for a cluster that exists. It may register that cluster's agent again, whoever is registered
// now.
func forCluster(ctx context.Context, hub *connection, cluster string, spec *fleet.ClusterRegistrationTokenSpec) error {
	if cluster == "" {
		return nil
	}
	identity, err := hub.Identity(ctx, hub.namespace, cluster)
	if err != nil {
		return err
	}
	spec.ClientIDs = []string{identity}
	return nil
}
