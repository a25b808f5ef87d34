// Curves draws charts into one SVG.
//
//	curves PICTURE.svg < CHARTS.json
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: curves PICTURE.svg < CHARTS.json")
		os.Exit(2)
	}
	if err := run(os.Stdin, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "curves:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, file string) error {
	var charts []Chart
	if err := json.NewDecoder(in).Decode(&charts); err != nil {
		return fmt.Errorf("reading charts: %w", err)
	}
	picture, err := Draw(charts)
	if err != nil {
		return err
	}
	return os.WriteFile(file, picture, 0o644)
}
