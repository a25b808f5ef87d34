package local

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// removeLeftovers removes what an owner that was killed could not: its processes, and with them their namespaces and mounts,
// the kernel has ended already. Nobody else has any of it while we hold the lock.
func (p *provider) removeLeftovers(ctx context.Context) error {
	if _, err := net.InterfaceByName(cable); err == nil {
		// It may be going away by itself at this moment.
		_, _ = command.Run(ctx, nil, "ip", "link", "delete", cable)
	}
	for _, group := range p.system.cgroups.left() {
		p.logf("removing the cgroups %s, which a process that was killed has left", group)
		if err := p.system.cgroups.remove(group); err != nil {
			return err
		}
	}
	folder, err := p.lock.folder()
	if err != nil || !isOurs(folder) {
		return err
	}
	p.logf("removing %s, which a process that was killed has left", folder)
	return os.RemoveAll(folder)
}

// isOurs keeps a file with nonsense in it from removing anything else.
func isOurs(folder string) bool {
	return filepath.IsAbs(folder) && strings.HasPrefix(filepath.Base(folder), folderName)
}
