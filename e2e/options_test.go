//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// options are the environment variables that scripts/e2e sets.
type options struct {
	images   string // folder with fleet.tar and fleet-agent.tar
	tag      string // of these images
	previous string // folder with the charts and images before this commit
	output   string // where everything is written
	keep     bool   // wait before everything is removed
}

func readOptions() (options, error) {
	o := options{
		images:   os.Getenv("MUSTER_E2E_IMAGES"),
		tag:      os.Getenv("MUSTER_E2E_TAG"),
		previous: os.Getenv("MUSTER_E2E_PREVIOUS"),
		output:   os.Getenv("MUSTER_E2E_OUTPUT"),
		keep:     os.Getenv("MUSTER_E2E_KEEP") != "",
	}
	var errs []error
	for name, value := range map[string]string{"MUSTER_E2E_IMAGES": o.images, "MUSTER_E2E_TAG": o.tag, "MUSTER_E2E_OUTPUT": o.output} {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s is not set: run the suite by scripts/e2e", name))
		}
	}
	return o, errors.Join(errs...)
}

// archives are the images of this commit, and of the previous one if there is one.
func (o options) archives() []string {
	files := []string{filepath.Join(o.images, "fleet.tar"), filepath.Join(o.images, "fleet-agent.tar")}
	if o.previous != "" {
		files = append(files, filepath.Join(o.previous, "images", "fleet.tar"), filepath.Join(o.previous, "images", "fleet-agent.tar"))
	}
	return files
}
