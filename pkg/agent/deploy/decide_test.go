package deploy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/release"
)

func TestDecide(t *testing.T) {
	fine := facts{Wanted: true, IsCurrent: true}
	with := func(change func(*facts)) facts {
		f := fine
		change(&f)
		return f
	}
	for name, row := range map[string]struct {
		facts facts
		want  action
	}{
		"deployed, without drift":                {fine, reportOnly},
		"deleted on the hub":                     {facts{}, checkRemoval},
		"the agent's own, deleted on the hub":    {facts{Own: true}, checkRemoval},
		"for an agent in another namespace":      {facts{Own: true, Wanted: true, Elsewhere: true, Drifted: true}, ignore},
		"nothing to deploy yet":                  {facts{Wanted: true, NoDeploymentID: true}, await},
		"paused before anything":                 {facts{Wanted: true, Paused: true}, await},
		"paused with drift":                      {with(func(f *facts) { f.Paused, f.Drifted, f.MustCorrect = true, true, true }), await},
		"new":                                    {facts{Wanted: true}, deploy},
		"new, after a failure":                   {facts{Wanted: true, RetryNotDue: true}, reportOnly},
		"new, and waits for another":             {facts{Wanted: true, WaitsFor: "base"}, await},
		"new, and waits for its values":          {facts{Wanted: true, WaitsForValues: true}, await},
		"deployed, a Bundle it needs is gone":    {with(func(f *facts) { f.WaitsFor = "base" }), reportOnly},
		"drift, not to be corrected":             {with(func(f *facts) { f.Drifted = true }), reportOnly},
		"drift, to be corrected":                 {with(func(f *facts) { f.Drifted, f.MustCorrect = true, true }), correct},
		"drift, corrected just now":              {with(func(f *facts) { f.Drifted, f.MustCorrect, f.RetryNotDue = true, true, true }), reportOnly},
		"drift of the agent's own release":       {with(func(f *facts) { f.Own, f.Drifted = true, true }), correct},
		"copied objects changed on the hub":      {with(func(f *facts) { f.OldCopies, f.Leftovers = true, true }), deploy},
		"copied objects changed, without values": {with(func(f *facts) { f.OldCopies, f.WaitsForValues = true, true }), reportOnly},
		"copied objects changed, tried just now": {with(func(f *facts) { f.OldCopies, f.RetryNotDue = true, true }), reportOnly},
		"other labels of the namespace":          {with(func(f *facts) { f.OldNamespaceLabels = true }), relabel},
		"other labels, paused":                   {with(func(f *facts) { f.OldNamespaceLabels, f.Paused = true, true }), await},
		"other labels, tried just now":           {with(func(f *facts) { f.OldNamespaceLabels, f.RetryNotDue = true, true }), reportOnly},
		"other labels and leftovers":             {with(func(f *facts) { f.OldNamespaceLabels, f.Leftovers = true, true }), sweep},
		"other labels before the deployment":     {facts{Wanted: true, OldNamespaceLabels: true}, deploy},
		"leftovers, with drift":                  {with(func(f *facts) { f.Leftovers, f.Drifted = true, true }), sweep},
		"leftovers, with drift to be corrected":  {with(func(f *facts) { f.Leftovers, f.Drifted, f.MustCorrect = true, true, true }), correct},
		"leftovers, tried just now":              {with(func(f *facts) { f.Leftovers, f.RetryNotDue = true, true }), reportOnly},
		"leftovers of another deployment ID":     {facts{Wanted: true, Leftovers: true}, deploy},
		"to be corrected, without drift":         {with(func(f *facts) { f.MustCorrect = true }), reportOnly},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, row.want, decide(row.facts), "%s", decide(row.facts)) })
	}
}

func TestDecideRemoval(t *testing.T) {
	const unasked, confirmed = false, true
	with := func(isConfirmed bool, change func(*removalFacts)) removalFacts {
		f := removalFacts{Installed: true, HasOwnRelease: true}
		if isConfirmed {
			f.Asked, f.Confirmed = true, true
		}
		change(&f)
		return f
	}
	everything := func(f *removalFacts) {
		*f = removalFacts{
			Own: true, Installed: true, Kept: true, DelayNotPassed: true, HubChanged: true,
			Asked: true, Confirmed: true, Rejected: true, NoneCached: true, HasOwnRelease: true, AgentGone: true, GoneAlone: true,
		}
	}
	for name, row := range map[string]struct {
		facts removalFacts
		want  removalAction
	}{
		"nothing is known":                                       {removalFacts{}, forget},
		"no release is left":                                     {with(confirmed, func(f *removalFacts) { f.Installed = false }), forget},
		"no release is left of those that were kept":             {with(confirmed, func(f *removalFacts) { everything(f); f.Installed = false }), forget},
		"no release was stored, and nothing is known of the hub": {removalFacts{Copied: true}, askHub},
		"no release was stored: its copies":                      {with(confirmed, func(f *removalFacts) { f.Installed, f.Copied = false, true }), uninstallAll},
		"no release was stored, the delay has not passed":        {with(confirmed, func(f *removalFacts) { f.Installed, f.Copied, f.DelayNotPassed = false, true, true }), waitForDelay},
		"no release was stored, and the hub changed":             {with(confirmed, func(f *removalFacts) { f.Installed, f.Copied, f.HubChanged = false, true, true }), forget},
		"no release was stored, and it is kept":                  {with(confirmed, func(f *removalFacts) { f.Installed, f.Copied, f.Kept = false, true, true }), forget},
		"no release was stored, and there is no answer":          {with(unasked, func(f *removalFacts) { f.Installed, f.Copied, f.Asked = false, true, true }), retryRemoval},
		"no release was stored, and the credential is rejected": {with(unasked, func(f *removalFacts) {
			f.Installed, f.Copied, f.Asked, f.Rejected, f.NoneCached = false, true, true, true, true
		}), keepBecauseRejected},
		"no release was stored, and that of the agent is gone too": {with(confirmed, func(f *removalFacts) { f.Installed, f.Copied, f.AgentGone = false, true, true }), keepBecauseAgentGone},
		"kept":                      {with(confirmed, func(f *removalFacts) { f.Kept = true }), keep},
		"kept, and everything else": {with(confirmed, everything), keep},
		"disappeared just now":      {with(confirmed, func(f *removalFacts) { f.DelayNotPassed = true }), waitForDelay},
		"disappeared just now, from a hub that changed": {with(confirmed, func(f *removalFacts) { everything(f); f.Kept = false }), waitForDelay},
		"the hub was restored, or is another one":       {with(confirmed, func(f *removalFacts) { f.HubChanged = true }), recordKept},
		"the hub changed and was not asked":             {with(unasked, func(f *removalFacts) { f.HubChanged = true }), recordKept},
		"the hub was not asked":                         {with(unasked, func(*removalFacts) {}), askHub},
		"the hub was not asked, whatever else is set": {with(unasked, func(f *removalFacts) {
			everything(f)
			f.Kept, f.DelayNotPassed, f.HubChanged, f.Asked = false, false, false, false
		}), askHub},
		"the credential is rejected, and all are gone":      {with(unasked, func(f *removalFacts) { f.Asked, f.Rejected, f.NoneCached = true, true, true }), keepBecauseRejected},
		"the credential is rejected, and some are there":    {with(unasked, func(f *removalFacts) { f.Asked, f.Rejected = true, true }), retryRemoval},
		"no answer, or the hub still has it":                {with(unasked, func(f *removalFacts) { f.Asked = true }), retryRemoval},
		"no answer, and all are gone":                       {with(unasked, func(f *removalFacts) { f.Asked, f.NoneCached = true, true }), retryRemoval},
		"no answer, and that of the agent is gone":          {with(unasked, func(f *removalFacts) { f.Asked, f.AgentGone = true, true }), retryRemoval},
		"no answer about that of the agent":                 {with(unasked, func(f *removalFacts) { f.Asked, f.GoneAlone = true, true }), retryRemoval},
		"that of the agent is gone too":                     {with(confirmed, func(f *removalFacts) { f.AgentGone, f.NoneCached = true, true }), keepBecauseAgentGone},
		"that of the agent is gone too, others are there":   {with(confirmed, func(f *removalFacts) { f.AgentGone, f.GoneAlone = true, true }), keepBecauseAgentGone},
		"only that of the agent, just now":                  {with(confirmed, func(f *removalFacts) { f.Own, f.AgentGone = true, true }), keepBecauseAgentGone},
		"only that of the agent":                            {with(confirmed, func(f *removalFacts) { f.Own, f.AgentGone, f.GoneAlone = true, true, true }), uninstallAll},
		"that of the agent is there":                        {with(confirmed, func(*removalFacts) {}), uninstallAll},
		"no Bundle deploys the agent":                       {with(confirmed, func(f *removalFacts) { f.HasOwnRelease, f.AgentGone = false, true }), uninstallAll},
		"no Bundle deploys the agent, the last that exists": {with(confirmed, func(f *removalFacts) { f.HasOwnRelease, f.NoneCached = false, true }), uninstallAll},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, row.want, decideRemoval(row.facts), "%s", decideRemoval(row.facts))
		})
	}
}

func TestUnmet(t *testing.T) {
	labelled := func(workspace, name string) map[string]string {
		return map[string]string{fleet.BundleNameLabel: name, fleet.BundleNamespaceLabel: workspace, "tier": name}
	}
	other := func(name string, s fleet.BundleDeploymentStatus) *fleet.BundleDeployment {
		return &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labelled("ws", name)}, Spec: ready(t, 0).spec, Status: s}
	}
	good, bad := assess(ready(t, 1)), assess(ready(t, 1).differs(0, release.Difference{Missing: true}))
	paused, unstaged, foreign := other("base", fleet.BundleDeploymentStatus{}), other("base", good), other("base", good)
	paused.Spec.DeploymentID, unstaged.Spec.StagedDeploymentID = "", ""
	foreign.Labels = labelled("another", "base")
	tier := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"tier": value}}
	}
	const notReady, missing = "dependent bundle(s) are not ready: [base]", "list bundledeployments: no bundles matching labels " +
		"fleet.cattle.io/bundle-name=base,fleet.cattle.io/bundle-namespace=ws in namespace ws"
	for name, row := range map[string]struct {
		ref  fleet.BundleRef
		all  []*fleet.BundleDeployment
		want string
	}{
		"ready":                        {fleet.BundleRef{Name: "base"}, []*fleet.BundleDeployment{other("base", good)}, ""},
		"missing":                      {fleet.BundleRef{Name: "base"}, nil, missing},
		"of another workspace":         {fleet.BundleRef{Name: "base"}, []*fleet.BundleDeployment{foreign}, missing},
		"not ready":                    {fleet.BundleRef{Name: "base"}, []*fleet.BundleDeployment{other("base", bad)}, notReady},
		"first deployment paused":      {fleet.BundleRef{Name: "base"}, []*fleet.BundleDeployment{paused}, notReady},
		"nothing staged":               {fleet.BundleRef{Name: "base"}, []*fleet.BundleDeployment{unstaged}, notReady},
		"in an accepted state":         {fleet.BundleRef{Name: "base", AcceptedStates: []fleet.BundleState{fleet.Modified}}, []*fleet.BundleDeployment{other("base", bad)}, ""},
		"selected by labels":           {fleet.BundleRef{Selector: tier("base")}, []*fleet.BundleDeployment{other("base", good)}, ""},
		"selected by name and labels":  {fleet.BundleRef{Name: "base", Selector: tier("x")}, []*fleet.BundleDeployment{other("base", good), other("x", good)}, strings.Replace(missing, "=ws in", "=ws,tier=x in", 1)},
		"labels that none has":         {fleet.BundleRef{Selector: tier("x")}, []*fleet.BundleDeployment{other("base", good)}, "list bundledeployments: no bundles matching labels tier=x in namespace ws"},
		"several, sorted":              {fleet.BundleRef{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "Exists"}}}}, []*fleet.BundleDeployment{other("b", bad), other("a", bad)}, "dependent bundle(s) are not ready: [a, b]"},
		"itself does not count":        {fleet.BundleRef{Selector: tier("app")}, []*fleet.BundleDeployment{other("app", good)}, "list bundledeployments: no bundles matching labels tier=app in namespace ws"},
		"an empty entry needs nothing": {fleet.BundleRef{}, nil, ""},
		"an empty selector, no name":   {fleet.BundleRef{Selector: &metav1.LabelSelector{}}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bd := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: "app", Labels: labelled("ws", "app")}, Spec: fleet.BundleDeploymentSpec{DependsOn: []fleet.BundleRef{row.ref}}}
			assert.Equal(t, row.want, unmet(bd, row.all))
		})
	}
}

func (a action) String() string {
	return [...]string{"reportOnly", "deploy", "correct", "sweep", "relabel", "await", "checkRemoval", "ignore"}[a]
}

func (a removalAction) String() string {
	return [...]string{
		"forget", "keep", "waitForDelay", "recordKept", "askHub", "keepBecauseRejected", "retryRemoval", "keepBecauseAgentGone", "uninstallAll",
	}[a]
}
