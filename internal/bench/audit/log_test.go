package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func line(verb, agent, resource, subresource string) string {
	return fmt.Sprintf(`{"verb":%q,"userAgent":%q,"objectRef":{"resource":%q,"subresource":%q},"responseStatus":{"code":200}}`+"\n",
		verb, agent, resource, subresource)
}

func TestTheAuditLogIsReadFromWhereTheLastReadingEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	log := NewLog(path)
	write := func(text string) {
		_, err := file.WriteString(text)
		require.NoError(t, err)
	}
	read := func() (kinds []string) {
		all, err := log.Since(ByAgents("hub"))
		require.NoError(t, err)
		for _, r := range all {
			kinds = append(kinds, r.Kind())
		}
		return kinds
	}
	assert.Empty(t, read())
	write(line("create", "hub/1", "secrets", "") + line("get", "somebody", "secrets", ""))
	assert.Equal(t, []string{"create secrets"}, read())
	half := line("patch", "hub/1", "clusters", "status")
	write(half[:20])
	assert.Empty(t, read(), "a line that is being written")
	write(half[20:])
	assert.Equal(t, []string{"patch clusters/status"}, read())
	write(line("create", "hub/1", "secrets", ""))
	require.NoError(t, log.Skip())
	assert.Empty(t, read(), "what was skipped")

	other, err := log.FromHere()
	require.NoError(t, err)
	write(line("delete", "hub/1", "secrets", ""))
	all, err := other.Since(All)
	require.NoError(t, err)
	assert.Len(t, all, 1)
	assert.Equal(t, []string{"delete secrets"}, read(), "each has its own place")
}

func TestALogThatIsNoneIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	require.NoError(t, os.WriteFile(path, []byte("no JSON\n"), 0o600))
	_, err := NewLog(path).Since(All)
	require.ErrorContains(t, err, path)
	gone := NewLog(path + "-gone")
	_, err = gone.Since(All)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorIs(t, gone.Skip(), os.ErrNotExist)
	_, err = gone.FromHere()
	require.ErrorIs(t, err, os.ErrNotExist)
}
