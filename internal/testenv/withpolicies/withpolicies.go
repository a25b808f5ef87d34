// Package withpolicies has control planes with the kinds and the admission policies of a hub, for tests of packages that testenv imports.
package withpolicies

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/await"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// patience limits the wait for the policies.
const patience = 2 * time.Minute

var pace = await.Pace{First: 50 * time.Millisecond, Most: 500 * time.Millisecond}

// Clean is a control plane that the tests of a package share, and that is reset before each test.
func Clean(t testing.TB) *controlplane.ControlPlane {
	t.Helper()
	return controlplane.Clean(t, "hub", Install)
}

// Install installs the kinds and the admission policies, and waits until the policies are applied. It is a controlplane.Prepare.
func Install(ctx context.Context, plane *controlplane.ControlPlane) error {
	if err := withkinds.Install(ctx, plane); err != nil {
		return err
	}
	monitor, err := admission.New(admission.Options{RESTConfig: plane.RESTConfig(), Namespace: metav1.NamespaceDefault, Install: true})
	if err != nil {
		return err
	}
	return Await(ctx, monitor)
}

// Await runs the monitor until the API server applies the policies that it can have.
func Await(ctx context.Context, monitor *admission.Monitor) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer func() { stop(); monitor.Wait() }()
	monitor.Start(ctx)
	return pace.Until(ctx, func(context.Context) (bool, string) {
		policies := monitor.State()
		switch policies.Reason {
		case fleet.ReasonPoliciesNotServed:
			return true, ""
		case "":
			return policies.InForce() && !time.Now().Before(policies.Since), fmt.Sprintf("in force since %s; %s", policies.Since, policies.Missing)
		default:
			return false, policies.Message
		}
	})
}
