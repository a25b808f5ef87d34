package local

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLaneHasOneOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	first, err := acquire([]string{file}, io.Discard)
	require.NoError(t, err)
	require.NoError(t, first.keep("/somewhere"))

	said := make(chan string, 10)
	second := make(chan *lock)
	go func() {
		l, err := acquire([]string{file}, lines(said))
		if err == nil {
			second <- l
		}
	}()
	require.Contains(t, <-said, "other processes have clusters")
	select {
	case <-second:
		t.Fatal("two owners at the same time")
	default:
	}

	require.NoError(t, first.release())
	select {
	case l := <-second:
		folder, err := l.folder()
		require.NoError(t, err)
		require.Empty(t, folder, "the first owner has removed its directory")
		require.NoError(t, l.release())
	case <-time.After(10 * time.Second):
		t.Fatal("the lock was not released")
	}
}

func TestTwoLanes(t *testing.T) {
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "0"), filepath.Join(dir, "1")}
	for want := range lane(2) {
		l, err := acquire(files, io.Discard)
		require.NoError(t, err)
		defer l.file.Close()
		require.Equal(t, want, l.lane)
	}
	third, err := takeAny(files)
	require.NoError(t, err)
	require.Nil(t, third)
}

func TestLaneOfAKilledOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	killed, err := acquire([]string{file}, io.Discard)
	require.NoError(t, err)
	require.NoError(t, killed.keep("/tmp/"+folderName+"-1"))
	require.NoError(t, killed.file.Close()) // as the kernel does

	next, err := acquire([]string{file}, io.Discard)
	require.NoError(t, err)
	defer next.file.Close()
	folder, err := next.folder()
	require.NoError(t, err)
	require.Equal(t, "/tmp/"+folderName+"-1", folder)
	require.True(t, isOurs(folder))
}

func TestLockFileError(t *testing.T) {
	_, err := acquire([]string{"/proc/nowhere/lock"}, io.Discard)
	require.ErrorContains(t, err, "/proc/nowhere/lock")
}

func TestIsOurs(t *testing.T) {
	for folder, want := range map[string]bool{
		"":                                  false,
		"/":                                 false,
		"/home":                             false,
		folderName:                          false,
		"/tmp/" + folderName + "-12":        true,
		"/srv/bin/e2e/" + folderName:        true,
		"/tmp/" + folderName + "/../../etc": false,
	} {
		require.Equal(t, want, isOurs(filepath.Clean(folder)) && folder != "", folder)
	}
}

type lines chan<- string

func (l lines) Write(data []byte) (int, error) {
	l <- string(bytes.TrimSpace(data))
	return len(data), nil
}
