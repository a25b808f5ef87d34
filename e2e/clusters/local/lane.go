package local

import "fmt"

// lanes is how many processes of this machine can have clusters at the same time.
const lanes = 2

// lane is what one process with clusters has on this machine: a network, cgroups and addresses of fixed names that no other has.
type lane int

func (l lane) name() string {
	if l == 0 {
		return "muster-e2e"
	}
	return fmt.Sprintf("muster-e2e%d", int(l))
}

// lockFile is held by the one process that has this lane. It says which folder its clusters are in, for the next owner to clean
// up after one that was killed.
func (l lane) lockFile() string { return "/run/" + l.name() + ".lock" }

// cable is what the cable between this machine and the switch is called.
func (l lane) cable() string { return l.name() }

// cgroups begins the name of every cgroup of this lane. They are directly below the root, where a kubelet looks for its own.
func (l lane) cgroups() string { return l.name() + "-" }

// machine is the address of this machine in the lane's network.
func (l lane) machine() string { return l.address(1) }

func (l lane) address(host int) string { return fmt.Sprintf("10.99.%d.%d", int(l), host) }
