package sim

import (
	"net"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Silence is a member that accepts connections and never answers.
type Silence struct {
	listener net.Listener
}

// NewSilence listens on a port of its own.
func NewSilence() (*Silence, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go accept(listener)
	return &Silence{listener: listener}, nil
}

// accept keeps what it accepted until the listener is closed.
func accept(listener net.Listener) {
	var open []net.Conn
	for {
		connection, err := listener.Accept()
		if err != nil {
			break
		}
		open = append(open, connection)
	}
	for _, connection := range open {
		_ = connection.Close()
	}
}

// Close ends it, and all its connections.
func (s *Silence) Close() { _ = s.listener.Close() }

// Kubeconfig is how to reach it.
func (s *Silence) Kubeconfig() ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://" + s.listener.Addr().String(), InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: "nobody-hears-it"}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	})
}
