package local

import "strconv"

// inNetwork is a command line that runs in the network namespace of a process and sees the files of this machine. Never by
// "ip netns exec", which hides the cgroups.
func inNetwork(pid int, args ...string) []string {
	return append([]string{"nsenter", "--target=" + strconv.Itoa(pid), "--net", "--"}, args...)
}

// onNode is a command line that runs on the node whose first process is given, with its files.
func onNode(pid int, args ...string) []string {
	return append([]string{"nsenter", "--target=" + strconv.Itoa(pid), "--net", "--mount", "--uts", "--ipc", "--"}, args...)
}
