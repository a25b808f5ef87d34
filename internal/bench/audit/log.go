// Package audit counts requests from the audit log of an API server.
package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Policy notes every request once, when it is answered, without its body.
const Policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
  - level: Metadata
`

// Log reads the audit log of an API server from where the last reading ended.
type Log struct {
	path   string
	offset int64
}

// NewLog reads the file from its beginning.
func NewLog(path string) *Log { return &Log{path: path} }

// Since returns the requests that were noted since the last call and that match.
func (l *Log) Since(match func(Request) bool) ([]Request, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return nil, err
	}
	var all []Request
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // a line that is being written is read the next time
			return all, nil
		} else if err != nil {
			return nil, err
		}
		l.offset += int64(len(line))
		var r Request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("reading the audit log %s: %w", l.path, err)
		}
		if match(r) {
			all = append(all, r)
		}
	}
}

// Skip goes to the end of what has been noted.
func (l *Log) Skip() error {
	info, err := os.Stat(l.path)
	if err != nil {
		return err
	}
	l.offset = info.Size()
	return nil
}

// FromHere is another reader, of what is noted from now on.
func (l *Log) FromHere() (*Log, error) {
	other := NewLog(l.path)
	return other, other.Skip()
}
