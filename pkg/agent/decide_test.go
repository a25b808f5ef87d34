package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// decisions is the whole switch. A row covers every combination of what its columns allow: "*" is anything, "a|b" is
// either. Each combination must be covered by exactly one row.
const decisions = `
# stored           bootstrap          anew  moved  hub                                 action
  absent|malformed absent|malformed   *     *      *                                   WaitForBootstrap
  absent|malformed present            *     *      *                                   Register
  present          absent|malformed   *     *      accepts                             UseStored
  present          absent|malformed   *     *      refuses                             ReportRefused
  present          absent|malformed   *     *      not-asked|obstructed|unreachable    WaitForHub
  present          present            no    *      accepts                             UseStored
  present          present            no    *      refuses                             Register
  present          present            no    no     not-asked|obstructed|unreachable    WaitForHub
  present          present            no    yes    not-asked|obstructed|unreachable    Register
  present          present            yes   *      accepts                             ReplaceStored
  present          present            yes   *      not-asked|refuses|obstructed|unreachable  Register
`

func TestEveryCombinationOfFactsHasExactlyOneAction(t *testing.T) {
	rows := parseDecisions(t)
	combinations := everyCombination()
	require.Len(t, combinations, 3*3*2*2*5)
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

func TestAStoredCredentialIsReplacedOnlyByABootstrapSecret(t *testing.T) {
	for _, f := range everyCombination() {
		if action := Decide(f); action == Register || action == ReplaceStored {
			assert.Equal(t, Present, f.Bootstrap, "%+v", f)
		}
	}
}

func TestACredentialThatWorksIsAlwaysUsed(t *testing.T) {
	for _, f := range everyCombination() {
		if f.Stored == Present && f.Hub == Accepts {
			assert.Contains(t, []Action{UseStored, ReplaceStored}, Decide(f), "%+v", f)
		}
	}
}

func TestWithoutARefusalOrAnOrderTheIdentityIsKept(t *testing.T) {
	for _, f := range everyCombination() {
		ordered := f.RegisterAnew || f.HubMoved
		if f.Stored == Present && !ordered && f.Hub != Refuses {
			assert.Contains(t, []Action{UseStored, WaitForHub}, Decide(f), "%+v", f)
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
		require.Len(t, fields, 6, line)
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
	return []string{f.Stored.String(), f.Bootstrap.String(), yesNo[f.RegisterAnew], yesNo[f.HubMoved], f.Hub.String()}
}

func everyCombination() []Facts {
	var all []Facts
	for _, stored := range []Presence{Absent, Present, Malformed} {
		for _, bootstrap := range []Presence{Absent, Present, Malformed} {
			for _, answer := range []Answer{NotAsked, Accepts, Refuses, Obstructed, Unreachable} {
				for i := range 4 {
					all = append(all, Facts{Stored: stored, Bootstrap: bootstrap, RegisterAnew: i&1 > 0, HubMoved: i&2 > 0, Hub: answer})
				}
			}
		}
	}
	return all
}

func TestActionsAndPresencesHaveNames(t *testing.T) {
	assert.Equal(t, "malformed WaitForBootstrap ReportRefused unreachable",
		fmt.Sprint(Malformed, " ", WaitForBootstrap, " ", ReportRefused, " ", Unreachable))
}
