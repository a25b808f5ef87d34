package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// linkDeadline limits the wait for the network interface, which another process adds within milliseconds.
const linkDeadline = 30 * time.Second

// Boot sets up the Linux namespaces of this process as those of the simulated machine, and runs the programs of the machine. It returns only with
// an error.
func Boot(s Spec) error {
	for _, step := range []func(Spec) error{mount, name, sysctls, awaitLink, setup} {
		if err := step(s); err != nil {
			return err
		}
	}
	return newSupervisor(s.Environment).run(s.Programs)
}

// mount is called first. A mount before the mounts are private would also appear on the real machine.
func mount(s Spec) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range s.Hidden {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	for _, bind := range s.Binds {
		if err := bind.mount(); err != nil {
			return fmt.Errorf("bind %s to %s: %w", bind.From, bind.To, err)
		}
	}
	return nil
}

func (b Bind) mount() error {
	for _, dir := range []string{b.From, b.To} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // containers of any user read them
			return err
		}
	}
	return syscall.Mount(b.From, b.To, "", syscall.MS_BIND|syscall.MS_REC, "")
}

func name(s Spec) error { return syscall.Sethostname([]byte(s.Hostname)) }

// sysctls ignores settings that the kernel does not have: those below net/bridge exist only while module br_netfilter is loaded.
func sysctls(s Spec) error {
	for key, value := range s.Sysctls {
		err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func awaitLink(s Spec) error {
	if s.Link == "" {
		return nil
	}
	for deadline := time.Now().Add(linkDeadline); ; time.Sleep(10 * time.Millisecond) {
		_, err := net.InterfaceByName(s.Link)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func setup(s Spec) error {
	for _, args := range s.Setup {
		command := exec.Command(args[0], args[1:]...)
		command.Env = s.Environment
		if output, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w: %s", args, err, output)
		}
	}
	return nil
}
