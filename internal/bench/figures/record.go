package figures

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Record is one run, as it is kept.
type Record struct {
	// Time is when it began.
	Time time.Time `json:"time"`
	// Commit is what the hub says it was built from, with "-dirty" where that was no whole commit; empty for a hub that was named.
	Commit string `json:"commit,omitempty"`
	// Machine says what it ran on, and Go what built the program that measured.
	Machine string `json:"machine"`
	Go      string `json:"go"`
	// Settings are the sizes of the run, in words. Only runs of the same settings are compared.
	Settings string `json:"settings"`
	// Figures are what was measured.
	Figures []Figure `json:"figures"`
}

// Keep writes a record into a folder, under a name that sorts by time, and returns the file.
func Keep(dir string, r Record) (string, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a folder of the repository
		return "", err
	}
	path := filepath.Join(dir, r.Time.UTC().Format("2006-01-02T150405Z")+".json")
	return path, os.WriteFile(path, append(data, '\n'), 0o644) //nolint:gosec // a file of the repository
}

// Last returns the newest record of a folder with these settings.
func Last(dir, settings string) (Record, error) {
	all, err := All(dir)
	if err != nil {
		return Record{}, err
	}
	for _, r := range slices.Backward(all) {
		if r.Settings == settings {
			return r, nil
		}
	}
	return Record{}, fmt.Errorf("no record in %s of an earlier run with these settings: %s; make bench keeps one", dir, settings)
}

// Read returns the record in a file.
func Read(path string) (r Record, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s is no record of a run: %w", path, err)
	}
	return r, nil
}

// All are the records of a folder, the oldest first.
func All(dir string) (all []Record, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, file := range files {
		r, err := Read(file)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}
