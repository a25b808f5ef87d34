package controlplane

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(envParent) != "" {
		beParent()
		return
	}
	os.Exit(RunTests(m))
}

// envParent makes this test binary a parent that has a child, says its process id and waits to be killed.
const envParent = "CONTROLPLANE_TEST_PARENT"

func beParent() {
	p, err := startProcess(os.Getenv(envParent), "/bin/sleep", "300")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.command.Process.Pid)
	<-p.exited
}
