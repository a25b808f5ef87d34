package local

import (
	"fmt"
	"syscall"
)

// Snapshotters of containerd: one lays layers over each other, the other one copies them, which is slow and takes space.
const (
	snapshotterOverlay = "overlayfs"
	snapshotterCopy    = "native"
)

// overlayMagic is what the kernel calls the file system of a container's root.
const overlayMagic = 0x794c7630

// snapshotter chooses one for a folder. An overlay cannot be laid over another one, as in a container that has no volume there.
func snapshotter(dir string) (string, error) {
	var about syscall.Statfs_t
	if err := syscall.Statfs(dir, &about); err != nil {
		return "", fmt.Errorf("file system of %s: %w", dir, err)
	}
	return snapshotterOn(int64(about.Type)), nil //nolint:unconvert // its type differs between architectures
}

func snapshotterOn(fileSystem int64) string {
	if fileSystem == overlayMagic {
		return snapshotterCopy
	}
	return snapshotterOverlay
}
