package bench

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatIsMissingOfTheOptions(t *testing.T) {
	whole := Named{Kubeconfig: "k", Pids: []int{1}, AuditLog: "a"}
	without := func(change func(*Named)) Options {
		n := whole
		change(&n)
		return Options{Named: &n}
	}
	for name, test := range map[string]struct {
		options Options
		says    string
	}{
		"a program":                {Options{Hub: "hub"}, ""},
		"a hub that runs":          {Options{Named: &whole}, ""},
		"no hub":                   {Options{}, "which hub"},
		"no kubeconfig":            {without(func(n *Named) { n.Kubeconfig = "" }), "by all three"},
		"no pid":                   {without(func(n *Named) { n.Pids = nil }), "by all three"},
		"no audit log":             {without(func(n *Named) { n.AuditLog = "" }), "by all three"},
		"a part nobody knows":      {Options{Hub: "hub", Parts: []string{"imports", "exports"}}, `no part "exports"; the parts are [registrations`},
		"numbers that do not grow": {Options{Hub: "hub", Sizes: Sizes{Clusters: []int{10, 5}}}, "must grow"},
		"a first size too small":   {Options{Hub: "hub", Sizes: Sizes{Idle: 50, Clusters: []int{40}}}, "at least 50"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.options.withDefaults().validate()
			if test.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestWholeRunsOfOtherSizesHaveOtherSettings(t *testing.T) {
	assert.Equal(t, Options{}.Settings(), Options{Sizes: Whole(1000)}.Settings(), "1000 clusters are the default")
	assert.NotEqual(t, Options{Sizes: Whole(1000)}.Settings(), Options{Sizes: Whole(10000)}.Settings())
	assert.NotEqual(t, Options{Sizes: Small()}.Settings(), Options{Sizes: Whole(1000)}.Settings())
	assert.Equal(t, []int{100, 300, 10000}, Whole(10000).Clusters)
	assert.Equal(t, []int{100}, Whole(100).Clusters)
	assert.Equal(t, []int{100, 200}, Whole(200).Clusters)
}

func TestProcessIDs(t *testing.T) {
	for text, want := range map[string][]int{"7": {7}, "7,8\n": {7, 8}, "7 8": {7, 8}} {
		pids, err := ParsePids(text)
		require.NoError(t, err)
		assert.Equal(t, want, pids)
	}
	for _, text := range []string{"", " ", "x", "7,-1", "0"} {
		_, err := ParsePids(text)
		require.Error(t, err, text)
	}
}

func TestAHubIsKnownByTheNameOfItsProgram(t *testing.T) {
	assert.Equal(t, []string{"fleetcontroller"}, Options{Hub: "bin/fleetcontroller"}.withDefaults().UserAgents)
	assert.Equal(t, []string{"fleetcontroller", "hub-2"}, Options{Hub: "/tmp/hub-2"}.withDefaults().UserAgents)
	assert.Equal(t, []string{"fleetcontroller"}, Options{Named: &Named{}}.withDefaults().UserAgents)
	assert.Equal(t, []string{"mine"}, Options{Hub: "/tmp/hub-2", UserAgents: []string{"mine"}}.withDefaults().UserAgents)
}
