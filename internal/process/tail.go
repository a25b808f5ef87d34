package process

import (
	"bytes"
	"io"
	"os"
	"strings"
)

// tailWindow bounds what Tail reads: logs of a long run have hundreds of megabytes.
const tailWindow = 16 << 10

// Tail returns the last lines of a file, or why it cannot be read.
func Tail(path string, lines int) string {
	data, err := lastBytes(path, tailWindow)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func lastBytes(path string, count int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(max(0, info.Size()-count), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}
