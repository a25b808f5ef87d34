package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used since it was started.
type usage struct {
	cpu  time.Duration
	peak int64 // bytes of memory it had at most at a time
}

// clockTicks a second are what the kernel counts CPU time in, on every architecture Go runs on.
const clockTicks = 100

func usageOf(pid int) (usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, err
	}
	ticks, err := parseStat(stat)
	if err != nil {
		return usage{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return usage{}, err
	}
	return usage{cpu: time.Duration(ticks) * time.Second / clockTicks, peak: parsePeak(status)}, nil
}

// parseStat adds user and system time. The name of the program, the second field, may contain anything but ends with the
// last parenthesis.
func parseStat(stat []byte) (int64, error) {
	_, rest, found := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(" "))
	fields := strings.Fields(string(rest))
	const user, system = 11, 12 // counted from the field after the name
	if !found || len(fields) <= system {
		return 0, fmt.Errorf("%d fields", len(fields))
	}
	u, errU := strconv.ParseInt(fields[user], 10, 64)
	s, errS := strconv.ParseInt(fields[system], 10, 64)
	if errU != nil || errS != nil {
		return 0, fmt.Errorf("CPU times are no numbers: %q and %q", fields[user], fields[system])
	}
	return u + s, nil
}

func parsePeak(status []byte) int64 {
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// resetPeak makes the kernel forget the most memory a process had. It may not be allowed; then the peak is that of the
// whole life.
func resetPeak(pid int) { _ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) }
