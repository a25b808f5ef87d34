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
# stored           bootstrap          anew  leaving  hub                               there                          action
  *                *                  no    yes      *                                 *                              Leave
  *                absent|malformed   yes   yes      *                                 *                              Leave
  *                present            yes   yes      *                                 *                              Register
  absent|malformed absent|malformed   *     no       *                                 *                              WaitForBootstrap
  absent|malformed present            *     no       *                                 *                              Register
  present          *                  *     no       *                                 accepts                        MoveStored
  present          absent|malformed   *     no       accepts                           not-asked                      UseStored
  present          absent|malformed   *     no       accepts                           refuses|obstructed|unreachable StayPut
  present          absent|malformed   *     no       refuses                           not-asked|refuses|obstructed|unreachable ReportRefused
  present          absent|malformed   *     no       not-asked|obstructed|unreachable  not-asked|refuses|obstructed|unreachable WaitForHub
  present          present            no    no       accepts                           not-asked                      UseStored
  present          present            no    no       accepts                           obstructed|unreachable         StayPut
  present          present            no    no       accepts                           refuses                        ReplaceStored
  present          present            no    no       refuses                           not-asked|refuses|obstructed|unreachable Register
  present          present            no    no       not-asked|obstructed|unreachable  refuses                        Register
  present          present            no    no       not-asked|obstructed|unreachable  not-asked|obstructed|unreachable WaitForHub
  present          present            yes   no       accepts                           not-asked|refuses|obstructed|unreachable ReplaceStored
  present          present            yes   no       not-asked|refuses|obstructed|unreachable  not-asked|refuses|obstructed|unreachable Register
`

func TestEveryCombinationOfFactsHasExactlyOneAction(t *testing.T) {
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

func TestAStoredCredentialIsReplacedOnlyByABootstrapSecret(t *testing.T) {
	for _, f := range everyCombination() {
		if action := Decide(f); action == Register || action == ReplaceStored {
			assert.Equal(t, Present, f.Bootstrap, "%+v", f)
		}
	}
}

func TestACredentialThatWorksIsAlwaysUsed(t *testing.T) {
	for _, f := range everyCombination() {
		if f.Stored == Present && f.Hub == Accepts && !f.Leaving {
			assert.Contains(t, []Action{UseStored, ReplaceStored, StayPut, MoveStored}, Decide(f), "%+v", f)
		}
	}
}

func TestWithoutARefusalOrAnOrderTheIdentityIsKept(t *testing.T) {
	for _, f := range everyCombination() {
		refused := f.Hub == Refuses || f.There == Refuses
		if f.Stored == Present && !f.RegisterAnew && !refused && !f.Leaving {
			assert.Contains(t, []Action{UseStored, StayPut, MoveStored, WaitForHub}, Decide(f), "%+v", f)
		}
	}
}

func TestAWayThatWorksIsGivenUpOnlyForAnotherThatWorks(t *testing.T) {
	for _, f := range everyCombination() {
		if Decide(f) == MoveStored {
			assert.Equal(t, Accepts, f.There, "%+v", f)
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
	return []string{f.Stored.String(), f.Bootstrap.String(), yesNo[f.RegisterAnew], yesNo[f.Leaving], f.Hub.String(), f.There.String()}
}

func everyCombination() []Facts {
	answers := []Answer{NotAsked, Accepts, Refuses, Obstructed, Unreachable}
	var all []Facts
	for _, stored := range []Presence{Absent, Present, Malformed} {
		for _, bootstrap := range []Presence{Absent, Present, Malformed} {
			for i := range len(answers) * len(answers) * 4 {
				all = append(all, Facts{
					Stored: stored, Bootstrap: bootstrap, RegisterAnew: i&1 > 0, Leaving: i&2 > 0,
					Hub: answers[i/4%len(answers)], There: answers[i/4/len(answers)],
				})
			}
		}
	}
	return all
}

func TestActionsAndPresencesHaveNames(t *testing.T) {
	assert.Equal(t, "malformed WaitForBootstrap ReportRefused Leave unreachable",
		fmt.Sprint(Malformed, " ", WaitForBootstrap, " ", ReportRefused, " ", Leave, " ", Unreachable))
}
