// Package usage tells what processes have used, as the kernel has it.
package usage

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what processes have used since they were started.
type Usage struct {
	// CPU is user and system time together.
	CPU time.Duration
	// Peak is how much memory was resident at most, in bytes; of several processes the sum of what each had at most.
	Peak int64
	// Resident is how much of it is now.
	Resident int64
}

// clockTicks a second are what the kernel counts CPU time in, on every architecture Go runs on.
const clockTicks = 100

// Of adds up what processes have used. One that has ended is an error.
func Of(pids ...int) (sum Usage, err error) {
	for _, pid := range pids {
		one, err := of(pid)
		if err != nil {
			return Usage{}, err
		}
		sum.CPU += one.CPU
		sum.Peak += one.Peak
		sum.Resident += one.Resident
	}
	return sum, nil
}

func of(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	ticks, err := parseStat(stat)
	if err != nil {
		return Usage{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Usage{}, err
	}
	return Usage{
		CPU: time.Duration(ticks) * time.Second / clockTicks, Peak: parseSize(status, "VmHWM:"), Resident: parseSize(status, "VmRSS:"),
	}, nil
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

func parseSize(status []byte, field string) int64 {
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, field); found {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}
