package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/google/licensecheck"
)

// licenceFile is how files with a licence are called; source files of that name are none.
var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([-.].*)?$`)
	sourceFile  = regexp.MustCompile(`\.go$`)
)

// covered is how much of a file has to be the known text of a licence, in per cent. The rest are names and years.
const covered = 75

// licencesOf are the licences of a module, by the files in its first folder.
func licencesOf(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		if entry.IsDir() || !licenceFile.MatchString(entry.Name()) || sourceFile.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		licences, err := recognise(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		found = append(found, licences...)
	}
	if len(found) == 0 {
		return nil, errors.New("it has no file with a licence")
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

func recognise(text []byte) (found []string, err error) {
	coverage := licensecheck.Scan(text)
	for _, match := range coverage.Match {
		if !match.IsURL {
			found = append(found, match.ID)
		}
	}
	if len(found) == 0 || coverage.Percent < covered {
		return nil, fmt.Errorf("%.0f %% of it are the text of a known licence (%v), which are less than %d", coverage.Percent, found, covered)
	}
	return found, nil
}
