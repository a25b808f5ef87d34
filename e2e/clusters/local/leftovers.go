package local

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// removeLeftovers removes what owners that were killed could not, from our lane and from those that nobody has: their processes,
// and with them their namespaces and mounts, the kernel has ended already.
func (p *provider) removeLeftovers(ctx context.Context) error {
	all := p.removeLeftoversOf(ctx, p.lock)
	for l := range lane(lanes) {
		if l == p.lock.lane {
			continue
		}
		other, err := take(l, l.lockFile())
		if other != nil {
			err = errors.Join(p.removeLeftoversOf(ctx, other), other.release())
		}
		all = errors.Join(all, err)
	}
	return all
}

// removeLeftoversOf is for a lane that we have locked: nobody else has any of it.
func (p *provider) removeLeftoversOf(ctx context.Context, owned *lock) error {
	owned.lane.removeCable(ctx)
	for _, group := range p.system.cgroups.left(owned.lane.cgroups()) {
		p.logf("removing the cgroups %s, which a process that was killed has left", group)
		if err := p.system.cgroups.remove(group); err != nil {
			return err
		}
	}
	folder, err := owned.folder()
	if err != nil || !isOurs(folder) {
		return err
	}
	p.logf("removing %s, which a process that was killed has left", folder)
	return os.RemoveAll(folder)
}

// removeCable takes the cable away where there is one. It may be going away by itself at this moment.
func (l lane) removeCable(ctx context.Context) {
	if _, err := net.InterfaceByName(l.cable()); err == nil {
		_, _ = command.Run(ctx, nil, "ip", "link", "delete", l.cable())
	}
}

// isOurs keeps a file with nonsense in it from removing anything else.
func isOurs(folder string) bool {
	return filepath.IsAbs(folder) && strings.HasPrefix(filepath.Base(folder), folderName)
}
