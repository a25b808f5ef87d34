package deploy

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWhatIsDoneWithABundleDeployment(t *testing.T) {
	fine := facts{Name: "app", Wanted: true, Current: true}
	with := func(change func(*facts)) facts {
		f := fine
		change(&f)
		return f
	}
	for name, row := range map[string]struct {
		facts facts
		want  action
	}{
		"all is well":                             {fine, observe},
		"gone on the hub":                         {facts{Name: "app"}, remove},
		"an agent's, gone on the hub":             {facts{Name: "fleet-agent-one"}, forget},
		"an agent's that is in another namespace": {facts{Name: "fleet-agent-one", Wanted: true, Elsewhere: true, Drifted: true}, ignore},
		"an agent's without a name":               {facts{Name: "fleet-agent"}, forget},
		"only begins like an agent's":             {facts{Name: "fleet-agents"}, remove},
		"nothing to deploy yet":                   {facts{Name: "app", Wanted: true, Empty: true}, hold},
		"paused before anything":                  {facts{Name: "app", Wanted: true, Paused: true}, hold},
		"paused with drift":                       {with(func(f *facts) { f.Paused, f.Drifted, f.Correct = true, true, true }), hold},
		"new":                                     {facts{Name: "app", Wanted: true}, deploy},
		"new, after a failure":                    {facts{Name: "app", Wanted: true, Held: true}, observe},
		"new, and waits for another":              {facts{Name: "app", Wanted: true, WaitsFor: "base"}, await},
		"there, and what it needs is gone":        {with(func(f *facts) { f.WaitsFor = "base" }), observe},
		"drift that is to be shown":               {with(func(f *facts) { f.Drifted = true }), observe},
		"drift that is to be undone":              {with(func(f *facts) { f.Drifted, f.Correct = true, true }), correct},
		"drift that was undone just now":          {with(func(f *facts) { f.Drifted, f.Correct, f.Held = true, true, true }), observe},
		"drift of an agent is always undone":      {with(func(f *facts) { f.Name, f.Drifted = "fleet-agent-one", true }), correct},
		"something was left behind":               {with(func(f *facts) { f.Unswept, f.Drifted = true, true }), sweep},
		"left behind, and changed by others":      {with(func(f *facts) { f.Unswept, f.Drifted, f.Correct = true, true, true }), correct},
		"left behind, and tried just now":         {with(func(f *facts) { f.Unswept, f.Held = true, true }), observe},
		"left behind by what is not wanted now":   {facts{Name: "app", Wanted: true, Unswept: true}, deploy},
		"to be corrected, without drift":          {with(func(f *facts) { f.Correct = true }), observe},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, row.want, decide(row.facts), "%s", decide(row.facts)) })
	}
}
