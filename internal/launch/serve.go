package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
)

// headerTimeout bounds how long a client may take to say what it wants.
const headerTimeout = 10 * time.Second

// serve answers at address until ctx ends. An address that cannot be listened on is an error: whoever asked for it would
// miss in silence what is served there.
func serve(ctx context.Context, what, address string, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%s at %s: %w", what, address, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logrus.Errorf("The %s: %v", what, err)
		}
	}()
	logrus.Infof("The %s at http://%s", what, listener.Addr())
	return nil
}
