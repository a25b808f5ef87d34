package admin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
)

var clustersResource = schema.GroupResource{Group: "fleet.cattle.io", Resource: "clusters"}

// hubThatAnswers is one whose API server answers these verbs about Clusters with an error.
func hubThatAnswers(err error, verbs ...string) *Hub {
	clients := fake.NewSimpleClientset()
	for _, verb := range verbs {
		if verb == "watch" {
			clients.PrependWatchReactor("clusters", func(clienttesting.Action) (bool, watch.Interface, error) { return true, nil, err })
			continue
		}
		clients.PrependReactor(verb, "clusters", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	}
	return &Hub{Fleet: clients.FleetV1alpha1()}
}

func awaitEast(ctx context.Context, hub *Hub) error {
	_, err := hub.AwaitRegistered(ctx, "ns", "east", func(view.Cluster) {})
	return err
}

func TestAWaitEndsAtOnceWhenTheServerRefusesToTell(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		verbs []string
		want  string
	}{
		"no right to list":    {apierrors.NewForbidden(clustersResource, "", errors.New("no list")), []string{"list", "watch"}, "no list"},
		"no right to watch":   {apierrors.NewForbidden(clustersResource, "", errors.New("no watch")), []string{"watch"}, "no watch"},
		"no valid credential": {apierrors.NewUnauthorized("who are you"), []string{"list", "watch"}, "who are you"},
	} {
		t.Run(name, func(t *testing.T) {
			hub, ctx := hubThatAnswers(test.err, test.verbs...), within(t, patience)
			err := awaitEast(ctx, hub)
			require.NoError(t, ctx.Err(), "not only at the end of the patience")
			require.ErrorIs(t, err, test.err)
			assert.ErrorContains(t, err, "Cluster ns/east: the hub's API server does not say how it stands: ")
			assert.ErrorContains(t, err, test.want)
			if len(test.verbs) == 2 { // of a list that is answered it learns that there is no such Cluster
				assert.ErrorIs(t, hub.AwaitQuarantine(ctx, "ns", "east", true), test.err)
			}
		})
	}
}

func TestAWaitThatHeardNothingSaysWhyWhenTheTimeIsUp(t *testing.T) {
	broken := apierrors.NewInternalError(errors.New("etcd is away"))
	for name, verbs := range map[string][]string{"list": {"list", "watch"}, "watch": {"watch"}} {
		t.Run(name, func(t *testing.T) {
			var err error
			// A machine that is busy may not have come to ask in a short time.
			for long := time.Second; long < patience && (err == nil || !strings.Contains(err.Error(), "etcd is away")); long *= 2 {
				err = awaitEast(within(t, long), hubThatAnswers(broken, verbs...))
			}
			require.ErrorIs(t, err, broken)
			assert.ErrorContains(t, err, "Cluster ns/east was not ready in time: the hub's API server does not say how it stands: ")
			assert.NotContains(t, err.Error(), "there is no such Cluster yet")
		})
	}
}

func TestWhatWasHeardLastCounts(t *testing.T) {
	broken, ended := errors.New("broken"), errors.New("the wait is over")
	over, stop := context.WithCancel(t.Context())
	stop()
	for name, test := range map[string]struct {
		tell func(h *hearing)
		want error
	}{
		"nothing":                          {func(*hearing) {}, ended},
		"a list that failed":               {func(h *hearing) { h.listed(t.Context(), broken) }, broken},
		"a list that failed and one since": {func(h *hearing) { h.listed(t.Context(), broken); h.listed(t.Context(), nil) }, ended},
		"a watch instead of a list":        {func(h *hearing) { h.listed(t.Context(), broken); h.watched(t.Context(), nil) }, ended},
		"a list before a watch that fails": {func(h *hearing) { h.watched(t.Context(), broken); h.listed(t.Context(), nil) }, broken},
		"a list that the end cut off":      {func(h *hearing) { h.listed(over, broken) }, ended},
	} {
		t.Run(name, func(t *testing.T) {
			h := &hearing{refused: func() {}}
			test.tell(h)
			assert.ErrorIs(t, h.explain(over, ended), test.want)
			assert.Equal(t, ended, h.explain(t.Context(), ended), "what ended it otherwise is the reason itself")
			assert.NoError(t, h.explain(over, nil))
		})
	}
}
