package k3d

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/pki"
)

// tools replaces k3d, docker and kubectl: it records the command lines except those of go, and answers according to its beginning.
type tools struct {
	mutex   sync.Mutex
	said    []string
	answers map[string]string
	errors  map[string]error
}

func (s *tools) run(_ context.Context, _ io.Reader, args ...string) ([]byte, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if args[0] == "env" { // go build, whose output folder is the only argument that ends with a slash
		dir := args[slices.IndexFunc(args, func(arg string) bool { return strings.HasSuffix(arg, "/") })]
		return nil, os.WriteFile(filepath.Join(dir, "front"), nil, 0o700)
	}
	line := regexp.MustCompile(`probe-\w+`).ReplaceAllString(strings.Join(args, " "), "PROBE")
	s.said = append(s.said, line)
	for beginning, err := range s.errors {
		if strings.HasPrefix(line, beginning) {
			return nil, err
		}
	}
	for beginning, answer := range s.answers {
		if strings.HasPrefix(line, beginning) {
			return []byte(answer), nil
		}
	}
	return nil, nil
}

// take returns the commands since the last call.
func (s *tools) take() []string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	said := s.said
	s.said = nil
	return said
}

func newTools(t *testing.T) *tools {
	t.Helper()
	authority, err := pki.NewAuthority("k3s", time.Now())
	require.NoError(t, err)
	kubeconfig, err := pki.Kubeconfig("k3d", "https://0.0.0.0:41234", authority.Pair.Cert, &clientcmdapi.AuthInfo{Token: "token"})
	require.NoError(t, err)
	inspect := `docker inspect --format {{(index .NetworkSettings.Networks "muster-e2e-network").IPAddress}} k3d-muster-e2e-`
	return &tools{
		answers: map[string]string{
			"k3d kubeconfig get": string(kubeconfig),
			inspect + "hub":      "172.20.0.2\n",
			inspect + "member":   "172.20.0.3\n",
			"sh -c docker logs":  "the log of k3s\n",
		},
		errors: map[string]error{},
	}
}

// start creates a provider with the given clusters and forgets the commands.
func start(t *testing.T, names ...string) (*provider, *tools, []*cluster) {
	t.Helper()
	s := newTools(t)
	p, err := New(Options{Dir: t.TempDir(), Run: s.run})
	require.NoError(t, err)
	var made []*cluster
	for _, name := range names {
		c, err := p.Create(t.Context(), name)
		require.NoError(t, err)
		made = append(made, c.(*cluster))
	}
	s.take()
	return p.(*provider), s, made
}

func TestNewRemovesLeftovers(t *testing.T) {
	s := newTools(t)
	s.answers["k3d cluster list"] = "muster-e2e-hub   1/1   0/0   false\nsomebodys-hub   1/1   0/0   true\n"
	s.answers["docker network ls"] = "0123456789ab\n"
	_, err := New(Options{Dir: t.TempDir(), Run: s.run})
	require.NoError(t, err)
	require.Equal(t, []string{
		"k3d cluster list --no-headers",
		"k3d cluster delete muster-e2e-hub",
		"docker network ls --quiet --filter name=^muster-e2e-network$",
		"docker network rm muster-e2e-network",
		"docker network create muster-e2e-network",
	}, s.take())
}

func TestCreate(t *testing.T) {
	p, s, _ := start(t)
	c, err := p.Create(t.Context(), "hub")
	require.NoError(t, err)
	kubectl := "kubectl --kubeconfig " + c.Kubeconfig() + " --namespace kube-system "
	require.Equal(t, []string{
		"k3d cluster create muster-e2e-hub --servers 1 --agents 0 --no-lb --network muster-e2e-network" +
			" --kubeconfig-update-default=false --kubeconfig-switch-context=false" +
			" --k3s-arg --disable=traefik,servicelb,metrics-server@server:* --wait --timeout 5m",
		`docker inspect --format {{(index .NetworkSettings.Networks "muster-e2e-network").IPAddress}} k3d-muster-e2e-hub-server-0`,
		"k3d kubeconfig get muster-e2e-hub",
		kubectl + "run PROBE --image rancher/mirrored-pause:3.6 --image-pull-policy IfNotPresent --restart Never",
		kubectl + "wait pod/PROBE --for jsonpath={.status.phase}=Running --timeout 5m",
		kubectl + "delete pod PROBE --now --ignore-not-found",
	}, s.take())

	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	require.NoError(t, err)
	require.Equal(t, "https://172.20.0.2:6443", config.Host, "pods of other clusters cannot reach ports of this machine")
	require.Equal(t, "token", config.BearerToken)
}

func TestCreateWithImage(t *testing.T) {
	s := newTools(t)
	p, err := New(Options{Dir: t.TempDir(), Run: s.run, Image: "rancher/k3s:v1"})
	require.NoError(t, err)
	s.take()
	_, err = p.Create(t.Context(), "hub")
	require.NoError(t, err)
	require.Contains(t, s.take()[0], " --image rancher/k3s:v1")
}

func TestLoad(t *testing.T) {
	_, s, made := start(t, "hub")
	require.NoError(t, made[0].Load(t.Context(), "/images/fleet.tar"))
	require.Equal(t, []string{"k3d image import /images/fleet.tar --cluster muster-e2e-hub --mode direct"}, s.take())
}

func TestCut(t *testing.T) {
	_, s, made := start(t, "hub", "member")
	hub, member := made[0], made[1]
	heal, err := hub.Cut(t.Context(), member)
	require.NoError(t, err)
	require.Equal(t, rules("--insert"), s.take())

	again, err := hub.Cut(t.Context(), member)
	require.NoError(t, err)
	require.NoError(t, heal())
	require.NoError(t, heal(), "for the second time")
	require.Empty(t, s.take(), "there is another cut")
	require.NoError(t, again())
	require.Equal(t, rules("--delete"), s.take())

	_, err = hub.Cut(t.Context(), hub)
	require.Error(t, err)
}

func rules(verb string) []string {
	iptables := "docker exec k3d-muster-e2e-hub-server-0 iptables --wait "
	return []string{
		iptables + "--table raw " + verb + " PREROUTING --source 172.20.0.3 --jump DROP",
		iptables + "--table mangle " + verb + " POSTROUTING --destination 172.20.0.3 --jump DROP",
	}
}

func TestKill(t *testing.T) {
	_, s, made := start(t, "hub")
	require.NoError(t, made[0].Kill(t.Context(), "0123abcd"))
	require.Equal(t, []string{"docker exec k3d-muster-e2e-hub-server-0 ctr --namespace k8s.io tasks kill --signal SIGKILL 0123abcd"}, s.take())
}

func TestCrashAndRestart(t *testing.T) {
	_, s, made := start(t, "hub", "member")
	_, err := made[0].Cut(t.Context(), made[1])
	require.NoError(t, err)
	s.take()

	require.NoError(t, made[0].Crash(t.Context()))
	require.Equal(t, []string{"docker kill k3d-muster-e2e-hub-server-0"}, s.take())
	require.NoError(t, made[0].Restart(t.Context()))
	said := s.take()
	require.Equal(t, "docker start k3d-muster-e2e-hub-server-0", said[0])
	require.Equal(t, rules("--insert"), said[2:4])
	require.Contains(t, said[4], "run PROBE", "a new pod proves that pods run again")
}

func TestRestartWithAnotherAddress(t *testing.T) {
	_, s, made := start(t, "hub")
	for beginning := range s.answers {
		if strings.HasSuffix(beginning, "-hub") {
			s.answers[beginning] = "172.20.0.9\n"
		}
	}
	require.ErrorContains(t, made[0].Restart(t.Context()), "has the address 172.20.0.9 after its restart, and had 172.20.0.2 before")
}

func TestMove(t *testing.T) {
	p, s, made := start(t, "hub")
	url, ca, err := made[0].Move(t.Context())
	require.NoError(t, err)
	require.Equal(t, "https://172.20.0.2:7443", url)
	server, err := clientcmd.BuildConfigFromFlags("", made[0].Kubeconfig())
	require.NoError(t, err)
	require.NotEqual(t, server.CAData, ca)
	dir := filepath.Join(p.options.Dir, "hub-front")
	require.Equal(t, []string{
		"docker cp " + dir + "/. k3d-muster-e2e-hub-server-0:/muster-e2e-front",
		"docker exec --detach k3d-muster-e2e-hub-server-0 /muster-e2e-front/front :7443 /muster-e2e-front/front.crt" +
			" /muster-e2e-front/front.key https://127.0.0.1:6443 /muster-e2e-front/ca.crt",
	}, s.take())
	for _, name := range []string{"front", "front.crt", "front.key", "ca.crt"} {
		require.FileExists(t, filepath.Join(dir, name))
	}

	_, again, err := made[0].Move(t.Context())
	require.NoError(t, err)
	require.Equal(t, ca, again, "clients that trust the second address still do")
}

func TestCollect(t *testing.T) {
	p, s, _ := start(t, "hub")
	dir := t.TempDir()
	require.NoError(t, p.Collect(t.Context(), dir))
	require.Equal(t, []string{
		"sh -c docker logs k3d-muster-e2e-hub-server-0 2>&1", // k3s logs to standard error
		"docker cp k3d-muster-e2e-hub-server-0:/var/log/pods " + filepath.Join(dir, "hub", "pods"),
	}, s.take())
	data, err := os.ReadFile(filepath.Join(dir, "hub", "k3s.log"))
	require.NoError(t, err)
	require.Equal(t, "the log of k3s\n", string(data))
}

func TestCloseAfterAFailedCreate(t *testing.T) {
	p, s, _ := start(t, "hub")
	s.errors["k3d cluster create"] = errors.New("no such image")
	_, err := p.Create(t.Context(), "member")
	require.ErrorContains(t, err, `cluster "member": no such image`)
	s.take()
	s.answers["k3d cluster list"] = "muster-e2e-hub 1/1\nmuster-e2e-member 0/1\n"
	s.answers["docker network ls"] = "0123456789ab\n"

	require.NoError(t, p.Close())
	require.Equal(t, []string{
		"k3d cluster list --no-headers",
		"k3d cluster delete muster-e2e-hub",
		"k3d cluster delete muster-e2e-member",
		"docker network ls --quiet --filter name=^muster-e2e-network$",
		"docker network rm muster-e2e-network",
	}, s.take())
	require.NoDirExists(t, p.options.Dir)
	require.NoError(t, p.Close(), "for the second time")
	require.Empty(t, s.take())
	_, err = p.Create(t.Context(), "late")
	require.ErrorContains(t, err, "closed")
}

func TestInvalidArguments(t *testing.T) {
	_, err := New(Options{})
	require.ErrorContains(t, err, "Options.Dir")
	p, s, _ := start(t, "hub")
	_, err = p.Create(t.Context(), "hub")
	require.ErrorContains(t, err, "with that name already exists")
	_, err = p.Create(t.Context(), "Not_A_Label")
	require.Error(t, err)
	require.Empty(t, s.take())
}

func TestNewWithoutEngine(t *testing.T) {
	s := newTools(t)
	s.errors["k3d cluster list"] = errors.New("cannot connect to the Docker daemon")
	dir := t.TempDir()
	_, err := New(Options{Dir: dir, Run: s.run})
	require.ErrorContains(t, err, "cannot connect")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}
