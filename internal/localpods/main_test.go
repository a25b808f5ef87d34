package localpods

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/controlplane"
)

// envProgram makes this test binary the program of a pod.
const envProgram = "LOCALPODS_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(envProgram) {
	case "":
		os.Exit(controlplane.RunTests(m))
	case "crash":
		fmt.Println("I am going to crash")
		os.Exit(3)
	case "stubborn":
		for ignored := range sayAndListen("stubborn") {
			fmt.Println("asked to end, and", ignored, "is ignored")
		}
	case "polite":
		<-sayAndListen("polite")
		fmt.Println("asked to end")
	}
}

// saying is the report that a program prints.
type saying struct {
	Name        string
	Pid         int
	Args        []string
	Environment map[string]string
	Dir         string
	User        string // according to the API server
	Problem     string
}

// sayAndListen prints the report and returns the channel for signals.
func sayAndListen(name string) <-chan os.Signal {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGTERM)
	dir, _ := os.Getwd()
	s := saying{Name: name, Pid: os.Getpid(), Args: os.Args[1:], Dir: dir, Environment: map[string]string{}}
	for _, key := range []string{"HOME", "TMPDIR", "HOSTNAME", "NAMESPACE", "NAME", "PLAIN", "KUBECONFIG", "GENERATION", "UNSET"} {
		if value, set := os.LookupEnv(key); set {
			s.Environment[key] = value
		}
	}
	var err error
	if s.User, err = whoAmI(os.Getenv("KUBECONFIG")); err != nil {
		s.Problem = err.Error()
	}
	line, _ := json.Marshal(s)
	fmt.Println(string(line))
	return interrupted
}

func whoAmI(kubeconfig string) (string, error) {
	if kubeconfig == "" {
		return "", nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().
		Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}
