package release

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// sequence is a random sequence of deployments of the release "app", and what its end must be. Of the ConfigMaps that it deploys, a person and
// the release "other" have created some before.
type sequence struct {
	*member
	random *rand.Rand
	steps  []string
	// persons are the ConfigMaps of the person, and others those of the other release, unless a deployment of app has worked that took them.
	persons map[string]types.UID
	others  sets.Set[string]
	// unknown are those of deployments that were interrupted: they may stay, and may have the marks of app. atRisk are those of the last deployment if it was
	// interrupted: its removal deletes what has its marks. taken are those of deployments with takeOwnership that failed: the next one that works has them,
	// even without takeOwnership.
	unknown, atRisk, taken sets.Set[string]
}

var sequenceNames = []string{"a", "b", "c", "d"}

// TestDeploy_sequences deploys random sets of objects, some of which fail, and then removes the release. If all tests run, some deployments are interrupted at
// a random write, too. That finds faults that are not mended: several interruptions in one sequence may leave an object, or delete one that a person has
// created before, in some 3 of 100 sequences, for example with the seeds 333, 444 and 555.
func TestDeploy_sequences(t *testing.T) {
	n := 4
	if sample.All() {
		n = 60
	}
	random := sample.Random(t)
	for i := range n {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s := &sequence{
				member: onMember(t), random: random, persons: map[string]types.UID{}, others: sets.New[string](), unknown: sets.New[string](), taken: sets.New[string](),
			}
			defer func() {
				if t.Failed() {
					t.Logf("the steps:\n%s", strings.Join(s.steps, "\n"))
				}
			}()
			s.prepare()
			for range 3 + random.IntN(4) {
				s.deployOnce()
				s.requirePersons()
			}
			s.removeAll()
		})
	}
}

func (s *sequence) step(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

func (s *sequence) prepare() {
	theirs := []string{"own.yaml", configMap("own", "k", "other")}
	s.others.Insert("own")
	for _, name := range sequenceNames {
		switch s.random.IntN(4) {
		case 0:
			s.recreate(name)
			s.persons[name] = s.configMap(name).UID
			s.step("a person creates %s", name)
		case 1:
			theirs = append(theirs, name+".yaml", configMap(name, "k", "other"))
			s.others.Insert(name)
			s.step("the other release has %s", name)
		}
	}
	s.deploy(s.ofOther(theirs...))
}

func (s *sequence) deployOnce() {
	r, wanted := s.request(), sets.New[string]()
	for _, name := range sequenceNames {
		if s.random.IntN(2) == 0 {
			wanted.Insert(name)
			r.Resources = append(r.Resources, s.request(name+".yaml", configMap(name, "k", fmt.Sprint("v", len(s.steps)))).Resources...)
		}
	}
	fails := ""
	switch s.random.IntN(4) {
	case 0:
		fails = ", with an invalid object"
		r.Resources = append(r.Resources, s.request("z.yaml", invalidService).Resources...)
	case 1:
		fails = ", with a failing hook"
		r.Resources = append(r.Resources, s.request("hook.yaml", hookIn("none-"+s.namespace, "pre-install,pre-upgrade")).Resources...)
	}
	r.Options.Helm = &fleet.HelmOptions{TakeOwnership: s.random.IntN(2) == 0, Atomic: s.random.IntN(4) == 0, TimeoutSeconds: 60}
	client, written := s.Client, []string(nil)
	cut := s.random.IntN(12)
	if s.random.IntN(4) == 0 && sample.All() {
		config := rest.CopyConfig(s.config)
		cutAfter(cut, &written)(config)
		var err error
		client, err = New(config)
		require.NoError(s.t, err)
	}
	_, err := client.Deploy(s.t.Context(), r)
	isCut := client != s.Client && len(written) >= cut
	s.step("deploys %v%s, takeOwnership %v, atomic %v, interrupted %v: %v", sets.List(wanted), fails, r.helm().TakeOwnership, r.helm().Atomic, isCut, err)

	var leftover *LeftoverError
	hasWorked := err == nil || errors.As(err, &leftover)
	if s.atRisk = nil; isCut {
		s.unknown, s.atRisk = s.unknown.Union(wanted), wanted
	}
	for name := range wanted {
		if hasWorked {
			delete(s.persons, name)
			if r.helm().TakeOwnership || s.taken.Has(name) || s.unknown.Has(name) { // an interrupted deployment may have taken it
				s.others.Delete(name)
			}
			s.unknown.Delete(name)
		}
		if isCut {
			s.unknown.Insert(name)
		}
	}
	switch {
	case hasWorked:
		s.taken.Clear()
	case r.helm().TakeOwnership:
		s.taken = s.taken.Union(wanted)
	}
}

func (s *sequence) requirePersons() {
	for name, uid := range s.persons {
		found, err := s.core.CoreV1().ConfigMaps(s.namespace).Get(s.t.Context(), name, metav1.GetOptions{})
		require.NoError(s.t, err, "the object of a person")
		require.Equal(s.t, uid, found.UID, name)
	}
}

func (s *sequence) removeAll() {
	require.NoError(s.t, s.Uninstall(s.t.Context(), s.namespace, "app", UninstallOptions{}))
	s.step("is removed")
	for name := range s.atRisk {
		delete(s.persons, name)
		s.others.Delete(name)
	}
	s.requirePersons()
	found := sets.New(s.configMaps()...)
	for name := range found {
		_, isPersons := s.persons[name]
		assert.True(s.t, isPersons || s.others.Has(name) || s.unknown.Has(name), "%s, which the release has created, is still there", name)
	}
	assert.Subset(s.t, sets.List(found), sets.List(s.others), "the objects of the other release")
	var theirs []string
	owned := s.others.Difference(s.unknown)
	for name := range owned {
		theirs = append(theirs, name+".yaml", configMap(name, "k", "changed"))
	}
	update := s.ofOther(theirs...)
	update.Options.Helm = nil
	s.deploy(update)
	for name := range owned {
		assert.Equal(s.t, "changed", s.configMap(name).Data["k"], "the other release cannot change %s", name)
	}
}
