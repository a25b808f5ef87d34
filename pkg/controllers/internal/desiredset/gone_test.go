package desiredset

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/merr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestWhatIsGoneAlreadyIsNoErrorOfARemoval(t *testing.T) {
	bindings := schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}
	gone := fmt.Errorf("failed to delete ws/a: %w", apierrors.NewNotFound(bindings, "a"))
	forbidden := fmt.Errorf("failed to delete ws/b: %w", apierrors.NewForbidden(bindings, "b", errors.New("no")))
	for name, err := range map[string]error{
		"nothing":              nil,
		"one that is gone":     gone,
		"all of them are gone": merr.NewErrors(gone, gone),
	} {
		t.Run(name, func(t *testing.T) { require.NoError(t, exceptGone(err)) })
	}
	for name, err := range map[string]error{
		"another trouble":                  forbidden,
		"another trouble beside one gone":  merr.NewErrors(gone, forbidden),
		"another trouble before two gone":  merr.NewErrors(forbidden, gone, gone),
		"another trouble that is no list":  errors.Join(forbidden),
		"two troubles, and both are told":  merr.NewErrors(forbidden, gone, errors.New("no connection")),
		"a trouble without any API server": errors.New("no connection"),
	} {
		t.Run(name, func(t *testing.T) {
			left := exceptGone(err)
			require.Error(t, left)
			assert.NotContains(t, left.Error(), "ws/a")
		})
	}
}
