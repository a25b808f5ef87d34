package guard_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/shard"
)

func TestAHubSeesItsOwnObjectsAndWatchesOthers(t *testing.T) {
	type handler = func(string, *corev1.Secret) (*corev1.Secret, error)
	var asked []string
	of := func(key string, _ *corev1.Secret) shard.Shard { asked = append(asked, key); return 3 }
	handling := func(name string, calls *[]string) handler {
		return func(key string, s *corev1.Secret) (*corev1.Secret, error) {
			*calls = append(*calls, name+" "+key)
			return s, nil
		}
	}
	for name, test := range map[string]struct {
		gate   *shard.Gate
		others bool
		want   []string
	}{
		"one that shares with nobody":              {nil, true, []string{"own ns/a"}},
		"an object of another":                     {shard.NewGate(), true, []string{"others ns/a"}},
		"an object of another that nobody watches": {shard.NewGate(), false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var calls []string
			var others handler
			if test.others {
				others = handling("others", &calls)
			}
			object := &corev1.Secret{}
			result, err := guard.Own(test.gate, of, handling("own", &calls), others)("ns/a", object)
			require.NoError(t, err)
			assert.Same(t, object, result)
			assert.Equal(t, test.want, calls)
		})
	}
	assert.Equal(t, []string{"ns/a", "ns/a", "ns/a"}, asked)
}

func TestOneThatSharesWithNobodyTakesNothingOver(t *testing.T) {
	guard.OnTake(nil, func() ([]*corev1.Secret, error) {
		t.Error("nothing is to be listed")
		return nil, nil
	}, func(*corev1.Secret) shard.Shard { return 0 }, func(string, string) {})
}
