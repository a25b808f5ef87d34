package localpods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

const (
	// tokenPath is where a container finds its ServiceAccount's token. The API server mounts it unless it is told not to.
	tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenLife is asked for; the API server may grant less.
	tokenLife = time.Hour
	// renewAfter is the part of a token's life after which it is replaced. Clients read the file again every minute.
	renewAfter = 0.8
)

// mountsToken says whether the pod gets a token of its ServiceAccount.
func mountsToken(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenPath })
}

// writeAccess gives the process a token of its ServiceAccount, bound to the pod: it dies with it.
func (w *worker) writeAccess(ctx context.Context) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(tokenLife.Seconds())),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: w.pod.Name, UID: w.pod.UID},
	}}
	account := w.pod.Spec.ServiceAccountName
	issued, err := w.node.client.CoreV1().ServiceAccounts(w.pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of ServiceAccount %s/%s: %w", w.pod.Namespace, account, err)
	}
	w.renew.Reset(time.Duration(float64(time.Until(issued.Status.ExpirationTimestamp.Time)) * renewAfter))
	if err := replaceFile(filepath.Join(w.home, tokenFile), []byte(issued.Status.Token)); err != nil {
		return err
	}
	kubeconfig, err := kubeconfigFor(w.node.options.RESTConfig, w.pod.Namespace, filepath.Join(w.home, tokenFile))
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(w.home, kubeconfigFile), kubeconfig)
}

func (w *worker) renewToken(ctx context.Context) {
	if err := w.writeAccess(ctx); err != nil && ctx.Err() == nil {
		w.node.options.Log.Warnf("Pod %s/%s keeps its old token for now: %v", w.pod.Namespace, w.pod.Name, err)
		w.renew.Reset(retryDelay)
	}
}

// kubeconfigFor reaches the same server as cfg, with the token in a file.
func kubeconfigFor(cfg *rest.Config, namespace, token string) ([]byte, error) {
	tls := rest.CopyConfig(cfg)
	if err := rest.LoadTLSFiles(tls); err != nil {
		return nil, err
	}
	const name = "pod"
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: cfg.Host, CertificateAuthorityData: tls.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {TokenFile: token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name, Namespace: namespace}},
		CurrentContext: name,
	})
}

// replaceFile never leaves half a file to a reader.
func replaceFile(path string, data []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
