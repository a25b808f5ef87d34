// Command print shows the version it was built with.
package main

import (
	"fmt"

	"github.com/muster-fleet/muster/pkg/version"
)

func main() { fmt.Println(version.Version) }
