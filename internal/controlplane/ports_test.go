package controlplane

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFreePortIsFreeAndOutOfReachOfOutgoingConnections(t *testing.T) {
	port, err := freePort()
	require.NoError(t, err)
	require.GreaterOrEqual(t, port, firstPort)
	require.LessOrEqual(t, port, lastPort)
	require.Less(t, lastPort, 32768)

	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	require.NoError(t, err)
	defer listener.Close()
	require.ErrorContains(t, portIsFree(port), portTaken)
}
