package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Record is one run of the bench, as it is kept.
type Record struct {
	// Time is when it began.
	Time time.Time `json:"time"`
	// Version is the hub that was measured, as its build says.
	Version string `json:"version"`
	// Machine says what it ran on: processors and memory.
	Machine string `json:"machine"`
	// Results are the figures.
	Results []Result `json:"results"`
}

// Keep writes a record into a folder, under a name that sorts by time, and returns that name.
func Keep(dir string, r Record) (string, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, r.Time.UTC().Format("2006-01-02T150405Z")+".json")
	return path, os.WriteFile(path, append(data, '\n'), 0o644)
}

// Last returns the newest record of a folder.
func Last(dir string) (Record, error) {
	all, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(all) == 0 {
		return Record{}, fmt.Errorf("no record of an earlier run in %s: keep one with \"make bench\"", dir)
	}
	return Read(slices.Max(all))
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
