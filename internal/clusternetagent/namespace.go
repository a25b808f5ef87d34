package clusternetagent

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// DeployerToken is the cluster-admin token of the member that the agent offers to the hub.
const DeployerToken = "cluster-admin-of-the-member"

// writeDeployerSecret gives the hub the credential of an administrator of the member. It tries until that succeeds.
func (a *agent) writeDeployerSecret(ctx context.Context, hub dynamic.Interface, namespace string) {
	client := hub.Resource(secrets).Namespace(namespace)
	encode := func(text string) any { return base64.StdEncoding.EncodeToString([]byte(text)) }
	data := map[string]any{
		"ca.crt": encode("the CA of the member"), "token": encode(DeployerToken),
		"service-account.name": encode("clusternet-app-deployer"), "service-account.uid": encode(a.id),
		"apiserver-advertise-url": encode("https://10.43.0.1:443"),
	}
	secret := object(secrets, "Secret", map[string]any{
		"name":        DeployerSecret,
		"labels":      map[string]any{CreatedByLabel: AgentName, IDLabel: a.id, bootstrappingLabel: "credentials-auto"},
		"annotations": map[string]any{autoUpdateAnnotation: "true"},
		"finalizers":  []any{Finalizer},
	}, map[string]any{"type": "Opaque", "data": data})
	write := func() error {
		_, err := client.Create(ctx, secret, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		existing, err := client.Get(ctx, DeployerSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if existing.GetAnnotations()[autoUpdateAnnotation] != "true" {
			return fmt.Errorf("its annotation %s is not true", autoUpdateAnnotation)
		}
		_, err = client.Update(ctx, secret, metav1.UpdateOptions{})
		return err
	}
	for {
		err := write()
		if err == nil {
			return
		}
		a.Log.Warnf("write Secret %s/%s: %v", namespace, DeployerSecret, err)
		if !pause(ctx, a.Periods.Poll, 0.4) {
			return
		}
	}
}

// follow lists and watches a kind in the dedicated namespace until ctx ends, as an informer of client-go without streamed lists does.
func (a *agent) follow(ctx context.Context, hub dynamic.Interface, kind schema.GroupVersionResource, namespace string) {
	const relistMax, watchMin = 30 * time.Second, 5 * time.Minute
	client := hub.Resource(kind).Namespace(namespace)
	first := wait.Backoff{Duration: a.Periods.Relist, Factor: 2, Cap: relistMax, Steps: 10}
	for backoff := first; ctx.Err() == nil; {
		list, err := client.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			a.Log.Warnf("list %s in namespace %s: %v", kind.Resource, namespace, err)
			if !pause(ctx, backoff.Step(), 1) {
				return
			}
			continue
		}
		backoff = first
		for version := list.GetResourceVersion(); version != ""; {
			timeout := int64((watchMin + rand.N(watchMin)) / time.Second) //nolint:gosec // not a secret
			events, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &timeout})
			if err != nil {
				a.Log.Warnf("watch %s in namespace %s: %v", kind.Resource, namespace, err)
				break
			}
			version = lastVersion(events, version)
		}
		if !pause(ctx, backoff.Step(), 1) {
			return
		}
	}
}

// lastVersion reads a watch until it ends and returns the version from which to continue, or "" after an error.
func lastVersion(events watch.Interface, version string) string {
	defer events.Stop()
	for event := range events.ResultChan() {
		if event.Type == watch.Error {
			return ""
		}
		if o, ok := event.Object.(metav1.Object); ok {
			version = o.GetResourceVersion()
		}
	}
	return version
}

// keepTunnel asks for the tunnel again and again. It ends a tunnel that is accepted at once.
func (a *agent) keepTunnel(ctx context.Context, token string) error {
	config := a.configuration(dedicated, token, nil)
	config.NextProtos = []string{"http/1.1"} // WebSocket
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	url := a.HubURL + "/apis/proxies.clusternet.io/v1alpha1/sockets/" + a.id
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		for key, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
		} {
			request.Header.Set(key, value)
		}
		if response, err := client.Do(request); err != nil {
			a.Log.Warnf("open the tunnel: %v", err)
		} else {
			_ = response.Body.Close()
			a.Log.Warnf("open the tunnel: %s", response.Status)
		}
		if !pause(ctx, a.Periods.Socket, 0.3) {
			return nil
		}
	}
}
