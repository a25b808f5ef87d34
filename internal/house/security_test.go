package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const measuredRights = "../integration/privilege/testdata"

var rightsTable = regexp.MustCompile(`(?s)<!-- rights: (\S+) -->\n(.*?)\n\n`)

// The tables of rights in docs/security.md are compared with the golden files of the privilege tests.
func TestDocumentedRights(t *testing.T) {
	tables := map[string][]string{}
	for _, found := range rightsTable.FindAllStringSubmatch(read(t, "../../docs/security.md"), -1) {
		tables[found[1]] = rightsIn(t, found[2])
	}
	goldens, err := filepath.Glob(measuredRights + "/*.golden")
	require.NoError(t, err)
	require.NotEmpty(t, goldens)
	for _, golden := range goldens {
		identity := strings.TrimSuffix(filepath.Base(golden), ".golden")
		assert.Equal(t, measured(t, golden), tables[identity], "docs/security.md, %s", identity)
		delete(tables, identity)
	}
	assert.Empty(t, tables, "no golden file has these")
}

// rightsIn are the rights of a table, as "where resource named: verbs".
func rightsIn(t *testing.T, table string) (all []string) {
	t.Helper()
	for _, line := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		require.Len(t, cells, 5, line)
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		assert.NotEmpty(t, cells[4], "a right without a reason: %s", line)
		verbs := strings.Fields(cells[3])
		slices.Sort(verbs)
		for _, resource := range strings.Fields(strings.ReplaceAll(cells[1], "`", "")) {
			all = append(all, right(cells[0], resource, cells[2], verbs))
		}
	}
	slices.Sort(all)
	return all
}

func right(where, resource, named string, verbs []string) string {
	return strings.Join(strings.Fields(where+" "+resource+" "+named), " ") + ": " + strings.Join(verbs, " ")
}

var measuredRight = regexp.MustCompile(`^(\S+): (.*?)(?: \(only (\S+)\))?$`)

func measured(t *testing.T, file string) (all []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	where := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if section, found := strings.CutPrefix(line, "# "); found {
			where = section
			continue
		}
		if line == "everything" {
			return []string{"everywhere everything: everything"}
		}
		parts := measuredRight.FindStringSubmatch(line)
		require.NotNil(t, parts, "%s: %s", file, line)
		all = append(all, right(where, parts[1], parts[3], strings.Fields(parts[2])))
	}
	slices.Sort(all)
	return all
}
