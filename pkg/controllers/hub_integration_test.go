package controllers_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/controlplane"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

func TestSmoke(t *testing.T) {
	cp := controlplane.Shared(t, "hub")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		done <- controllers.Run(ctx, controllers.Options{RESTConfig: cp.RESTConfig(), OnReady: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	c := versioned.NewForConfigOrDie(cp.RESTConfig()).FleetV1alpha1()
	_, err := c.ClusterRegistrationTokens("default").Create(ctx, &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "t"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		tok, _ := c.ClusterRegistrationTokens("default").Get(ctx, "t", metav1.GetOptions{})
		t.Log(tok.Status)
		return tok.Status.SecretName == "t"
	}, 20*time.Second, 100*time.Millisecond)
	start := time.Now()
	_, err = c.ClusterRegistrations("default").Create(ctx, &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{GenerateName: "request-", Labels: map[string]string{fleet.RegistrationTokenLabel: "t"}},
		Spec: fleet.ClusterRegistrationSpec{ClientID: "id", ClientRandom: "r"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		l, _ := c.ClusterRegistrations("default").List(ctx, metav1.ListOptions{})
		return len(l.Items) == 1 && l.Items[0].Status.Granted
	}, 20*time.Second, 5*time.Millisecond)
	t.Log("granted after", time.Since(start))
	cancel()
	require.NoError(t, <-done)
}
