package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// stored is the size of the API server's database in bytes, as the API server tells it.
func (w *world) stored(ctx context.Context) (int64, error) {
	text, err := w.Core.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	return parseStored(string(text))
}

func parseStored(metrics string) (int64, error) {
	const name = "apiserver_storage_size_bytes"
	for line := range strings.Lines(metrics) {
		if !strings.HasPrefix(line, name) {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		return int64(value), nil
	}
	return 0, fmt.Errorf("the API server does not tell %s", name)
}
