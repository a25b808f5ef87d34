package figures

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func record(hour int, settings string) Record {
	return Record{
		Time: time.Date(2026, 11, 21, hour, 0, 0, 0, time.UTC), Commit: "abc", Machine: "2 CPUs", Go: "go1.26", Settings: settings,
		Figures: []Figure{{Row: "storm/writes", Title: "writes", Value: 15, Kind: Count}},
	}
}

func TestARecordIsReadAsItWasKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	kept := record(7, "small")
	file, err := Keep(dir, kept)
	require.NoError(t, err)
	assert.Equal(t, "2026-11-21T070000Z.json", filepath.Base(file))
	read, err := Read(file)
	require.NoError(t, err)
	assert.Equal(t, kept, read)
}

func TestTheLastRecordIsTheNewestOfTheSameSettings(t *testing.T) {
	dir := t.TempDir()
	for _, r := range []Record{record(9, "whole"), record(8, "whole"), record(10, "small")} {
		_, err := Keep(dir, r)
		require.NoError(t, err)
	}
	for settings, hour := range map[string]int{"whole": 9, "small": 10} {
		last, err := Last(dir, settings)
		require.NoError(t, err)
		assert.Equal(t, hour, last.Time.Hour(), settings)
	}
	_, err := Last(dir, "others")
	require.ErrorContains(t, err, "make bench keeps one")
}

func TestARecordThatIsNoneIsAnError(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.json"), []byte("no record"), 0o600))
	_, err := Last(dir, "")
	require.ErrorContains(t, err, "x.json is no record")
	_, err = Read(filepath.Join(dir, "y.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Keep(filepath.Join(dir, "x.json"), record(1, ""))
	require.Error(t, err, "a folder that is a file")
}
