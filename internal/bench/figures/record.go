package figures

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Record is a run in the form in which it is stored.
type Record struct {
	// Time is when the run began.
	Time time.Time `json:"time"`
	// Commit is the version that the hub reports; it ends in "-dirty" if the hub was built from uncommitted changes.
	Commit string `json:"commit,omitempty"`
	// Machine describes the hardware, and Go is the version that built the bench.
	Machine string `json:"machine"`
	Go      string `json:"go"`
	// Settings are the sizes of the run. Only runs with the same sizes are compared.
	Settings string `json:"settings"`
	// Figures are the results.
	Figures []Figure `json:"figures"`
}

// Keep writes a record to a new file in a directory, and returns the file. Its name is the time of the record, so names sort by time.
func Keep(dir string, r Record) (string, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a directory of the repository
		return "", err
	}
	path := filepath.Join(dir, r.Time.UTC().Format("2006-01-02T150405Z")+".json")
	return path, os.WriteFile(path, append(data, '\n'), 0o644) //nolint:gosec // a file of the repository
}

// Records returns the records in a directory, the oldest first.
func Records(dir string) (all []Record, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var r Record
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("%s is not a record of a run: %w", file, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// Baseline returns a figure for each row, from the newest record in a directory that was made with these settings and has the row. A run may
// measure only some parts, so rows can come from different records. It also returns the records that it used, the newest first.
func Baseline(dir, settings string) (rows []Figure, used []Record, err error) {
	all, err := Records(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range slices.Backward(all) {
		// Today's settings are like "1000 at once; idle 10s", those of older records like "parts [day]: 1000 at once; idle 10s; processes [1 2]".
		if !strings.Contains(": "+r.Settings+";", ": "+settings+";") {
			continue
		}
		before := len(rows)
		for _, f := range r.Figures {
			if _, known := Find(rows, f.Row); !known {
				rows = append(rows, f)
			}
		}
		if len(rows) > before {
			used = append(used, r)
		}
	}
	if len(used) == 0 {
		return nil, nil, fmt.Errorf("%s has no record of a run with these settings: %s; `make bench` keeps one", dir, settings)
	}
	return rows, used, nil
}

// Change is a figure of two runs.
type Change struct {
	Row         string
	Unit        string
	Before, Now float64
	// Worse is true if the figure is worse, and the change is larger than noise.
	Worse bool
}

// margins are the relative changes that count as noise. Kinds that are not listed depend on the machine as much as on the hub
// and are not compared.
var margins = map[Kind]float64{
	Count: 0.03, // on a busy machine a reconciliation sometimes runs twice
	Size:  0.15, // a heap grows until it is collected
	Ratio: 0.25, // both terms come from a clock, or from CPU time that the kernel counts in ticks of 10 ms
}

// Compare compares the figures of a run with figures of earlier runs. It omits rows that only one side has.
func Compare(before, now []Figure) (changes []Change) {
	for _, f := range now {
		earlier, known := Find(before, f.Row)
		margin, compared := margins[f.Kind]
		if !known || !compared {
			continue
		}
		by := f.Value - earlier.Value
		if f.MoreIsBetter {
			by = -by
		}
		// For a count near 0, the relative margin is too small: a tenth of a request is noise, a whole request is not.
		const least = 0.1
		worse := by > max(margin*earlier.Value, least)
		changes = append(changes, Change{Row: f.Row, Unit: f.Unit, Before: earlier.Value, Now: f.Value, Worse: worse})
	}
	return changes
}
