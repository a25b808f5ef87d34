package controlplane

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

const loopback = "127.0.0.1"

// API servers listen below 32768, where Linux starts to hand out ports for outgoing connections: during an outage of
// the API server no such connection, not even a client's own retry, can take its port away.
const (
	firstPort = 20000
	lastPort  = 29999
)

// freePort returns a port of 127.0.0.1 that nobody listens on. Ports are tried at random, so that control planes started
// at the same time seldom meet.
func freePort() (int, error) {
	const attempts = 100
	var err error
	for range attempts {
		port := firstPort + rand.IntN(lastPort-firstPort+1) //nolint:gosec // a free port is no secret
		if err = portIsFree(port); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port on %s between %d and %d: %w", loopback, firstPort, lastPort, err)
}

func portIsFree(port int) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return listener.Close()
}
