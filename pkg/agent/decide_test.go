package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/fuzz"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
)

// decisions is the table of all decisions. A row covers every combination of the values in its columns: "*" is any value, "a|b" is
// either. Exactly one row must cover each combination.
const decisions = `
# stored           bootstrap          new   uninst.  hub                               other                          action
  *                *                  no    yes      *                                 *                              Uninstall
  *                absent|malformed   yes   yes      *                                 *                              Uninstall
  *                present            yes   yes      *                                 *                              Register
  absent|malformed absent|malformed   *     no       *                                 *                              WaitForBootstrap
  absent|malformed present            *     no       *                                 *                              Register
  present          *                  *     no       *                                 accepted                        SwitchEndpoint
  present          absent|malformed   *     no       accepted                           not-asked                      UseStored
  present          absent|malformed   *     no       accepted                           rejected|obstructed|unreachable KeepEndpoint
  present          absent|malformed   *     no       rejected                           not-asked|rejected|obstructed|unreachable ReportRejected
  present          absent|malformed   *     no       not-asked|obstructed|unreachable  not-asked|rejected|obstructed|unreachable WaitForHub
  present          present            no    no       accepted                           not-asked                      UseStored
  present          present            no    no       accepted                           obstructed|unreachable         KeepEndpoint
  present          present            no    no       accepted                           rejected                        UseStoredAndRegister
  present          present            no    no       rejected                           not-asked|rejected|obstructed|unreachable Register
  present          present            no    no       not-asked|obstructed|unreachable  rejected                        Register
  present          present            no    no       not-asked|obstructed|unreachable  not-asked|obstructed|unreachable WaitForHub
  present          present            yes   no       accepted                           not-asked|rejected|obstructed|unreachable UseStoredAndRegister
  present          present            yes   no       not-asked|rejected|obstructed|unreachable  not-asked|rejected|obstructed|unreachable Register
`

func TestDecide(t *testing.T) {
	rows := parseDecisions(t)
	combinations := everyCombination()
	require.Len(t, combinations, 3*3*2*2*5*5)
	for _, f := range combinations {
		t.Run(strings.Join(columns(f), " "), func(t *testing.T) {
			var matching []string
			for _, row := range rows {
				if covers(row, columns(f)) {
					matching = append(matching, row[len(row)-1])
				}
			}
			require.Len(t, matching, 1, "rows of the table that cover this combination")
			assert.Equal(t, matching[0], Decide(f).String())
		})
	}
}

func TestDecideKeepsTheIdentity(t *testing.T) {
	for _, f := range everyCombination() {
		action := Decide(f)
		if f.Stored == Present && f.StoredEndpoint == hubclient.Accepted && !f.Uninstalling {
			assert.Contains(t, []Action{UseStored, UseStoredAndRegister, KeepEndpoint, SwitchEndpoint}, action, "a credential that works is used: %+v", f)
		}
		rejected := f.StoredEndpoint == hubclient.Rejected || f.OtherEndpoint == hubclient.Rejected
		if f.Stored == Present && !f.MustRegister && !rejected && !f.Uninstalling {
			assert.Contains(t, []Action{UseStored, KeepEndpoint, SwitchEndpoint, WaitForHub}, action, "no reason to register: %+v", f)
		}
		if action == Register || action == UseStoredAndRegister {
			assert.Equal(t, Present, f.Bootstrap, "%+v", f)
		}
		if action == SwitchEndpoint {
			assert.Equal(t, hubclient.Accepted, f.OtherEndpoint, "%+v", f)
		}
	}
}

func parseDecisions(t *testing.T) [][]string {
	t.Helper()
	var rows [][]string
	for line := range strings.Lines(decisions) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		require.Len(t, fields, 7, line)
		rows = append(rows, fields)
	}
	return rows
}

func covers(row, combination []string) bool {
	for i, value := range combination {
		if row[i] != "*" && !slices.Contains(strings.Split(row[i], "|"), value) {
			return false
		}
	}
	return true
}

func columns(f Facts) []string {
	yesNo := map[bool]string{true: "yes", false: "no"}
	return []string{f.Stored.String(), f.Bootstrap.String(), yesNo[f.MustRegister], yesNo[f.Uninstalling], f.StoredEndpoint.String(), f.OtherEndpoint.String()}
}

func everyCombination() []Facts {
	answers := []hubclient.TokenVerdict{hubclient.NotAsked, hubclient.Accepted, hubclient.Rejected, hubclient.Obstructed, hubclient.Unreachable}
	var all []Facts
	for _, stored := range []Presence{Absent, Present, Malformed} {
		for _, bootstrap := range []Presence{Absent, Present, Malformed} {
			for i := range len(answers) * len(answers) * 4 {
				all = append(all, Facts{
					Stored: stored, Bootstrap: bootstrap, MustRegister: i&1 > 0, Uninstalling: i&2 > 0,
					StoredEndpoint: answers[i/4%len(answers)], OtherEndpoint: answers[i/4/len(answers)],
				})
			}
		}
	}
	return all
}

// Rules that hold whatever else changes in Decide.
func FuzzDecide(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed[0]%3, seed[1]%3, seed[2]%5, seed[3]%5, seed[4]&1 > 0, seed[5]&1 > 0)
	}
	f.Fuzz(func(t *testing.T, stored, boot, hub, there byte, newRegistration, uninstalling bool) {
		facts := Facts{
			Stored: Presence(stored % 3), Bootstrap: Presence(boot % 3), StoredEndpoint: hubclient.TokenVerdict(hub % 5), OtherEndpoint: hubclient.TokenVerdict(there % 5),
			MustRegister: newRegistration, Uninstalling: uninstalling,
		}
		action := Decide(facts)
		require.NotEmpty(t, action.String())
		assert.Equal(t, action, Decide(facts))
		switch action {
		case Register, UseStoredAndRegister:
			assert.Equal(t, Present, facts.Bootstrap, "nothing to register with")
		case Uninstall:
			assert.True(t, facts.Uninstalling)
		case SwitchEndpoint:
			assert.Equal(t, hubclient.Accepted, facts.OtherEndpoint, "an endpoint that does not work")
		case ReportRejected:
			assert.Equal(t, hubclient.Rejected, facts.StoredEndpoint, "the hub did not reject it")
		case WaitForBootstrap, UseStored, KeepEndpoint, WaitForHub:
		}
		if action == Register && facts.Stored == Present && !facts.Uninstalling && !facts.MustRegister && facts.OtherEndpoint != hubclient.Rejected {
			assert.Equal(t, hubclient.Rejected, facts.StoredEndpoint, "a credential that was not rejected is given up")
		}
		if action.usesStored() {
			assert.Equal(t, Present, facts.Stored)
			assert.Equal(t, hubclient.Accepted, facts.StoredEndpoint)
		}
	})
}

func (p Presence) String() string {
	return [...]string{"absent", "present", "malformed"}[p]
}

func (a Action) String() string {
	return [...]string{
		"WaitForBootstrap", "Register", "UseStored", "UseStoredAndRegister", "SwitchEndpoint", "KeepEndpoint", "WaitForHub", "ReportRejected", "Uninstall",
	}[a]
}
