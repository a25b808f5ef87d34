package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func line(verb, agent, resource, subresource string, code string) string {
	return `{"verb":"` + verb + `","userAgent":"` + agent + `","objectRef":{"resource":"` + resource + `","subresource":"` + subresource +
		`"},"responseStatus":{"code":` + code + `}}` + "\n"
}

func TestTheAuditLogIsReadFromWhereTheLastReadingEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	log := &auditLog{path: path}
	write := func(text string) {
		_, err := file.WriteString(text)
		require.NoError(t, err)
	}
	read := func() (kinds []string) {
		all, err := log.since(byAgent("hub"))
		require.NoError(t, err)
		for _, s := range all {
			kinds = append(kinds, s.what())
		}
		return kinds
	}
	assert.Empty(t, read())
	write(line("create", "hub/1", "secrets", "", "201") + line("get", "somebody", "secrets", "", "200"))
	assert.Equal(t, []string{"create secrets"}, read())
	half := line("patch", "hub/1", "clusters", "status", "200")
	write(half[:20])
	assert.Empty(t, read(), "a line that is being written")
	write(half[20:])
	assert.Equal(t, []string{"patch clusters/status"}, read())
}

func TestALogThatIsNoneIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	require.NoError(t, os.WriteFile(path, []byte("no JSON\n"), 0o600))
	_, err := (&auditLog{path: path}).since(byAgent(""))
	require.ErrorContains(t, err, path)
	_, err = (&auditLog{path: path + "-gone"}).since(byAgent(""))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRequestsAreCountedByWhatTheyCostTheHub(t *testing.T) {
	request := func(verb, resource string, code int) (s sent) {
		s.Verb, s.ObjectRef.Resource, s.ResponseStatus.Code = verb, resource, code
		return s
	}
	counted := countAll([]sent{
		request("create", "secrets", 201), request("create", "secrets", 409), request("patch", "clusters", 200), request("delete", "roles", 404),
		request("get", "secrets", 200), request("list", "clusters", 200),
		request("watch", "clusters", 200), request("update", "leases", 200), request("create", "events", 201), request("get", "leases", 200),
	})
	assert.Equal(t, Requests{
		Writes: 4, Reads: 2, Failed: 2,
		Kinds: map[string]int{"create secrets": 2, "patch clusters": 1, "delete roles": 1, "get secrets": 1, "list clusters": 1},
	}, counted)
}
