package release

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"

	"helm.sh/helm/v4/pkg/release"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/muster-fleet/muster/pkg/transport"
)

// LimitHistory limits the history of one release that the client decodes. A revision is compressed, so a Secret of a few kilobytes could
// take gigabytes of memory. The hub sets a limit, because the owner of a member writes its Secrets, and so does the agent, because users of
// the member write Secrets in their namespaces.
func (c *Client) LimitHistory(limits transport.ResponseLimits) *Client {
	limited := *c
	limited.history = limits
	return &limited
}

// limitedSecrets are the Secrets of Helm releases. It fails if what Helm would decompress and decode is larger than the limits.
type limitedSecrets struct {
	corev1client.SecretInterface
	limits transport.ResponseLimits
}

// Get returns a Secret.
func (s limitedSecrets) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error) {
	secret, err := s.SecretInterface.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return secret, s.check(*secret)
}

// List returns Secrets.
func (s limitedSecrets) List(ctx context.Context, o metav1.ListOptions) (*corev1.SecretList, error) {
	list, err := s.SecretInterface.List(ctx, o)
	if err != nil {
		return nil, err
	}
	return list, s.check(list.Items...)
}

// check decompresses the releases as Helm does, without keeping them.
func (s limitedSecrets) check(secrets ...corev1.Secret) error {
	if s.limits == (transport.ResponseLimits{}) {
		return nil
	}
	read := transport.SizeCounter{Limits: s.limits}
	for i := range secrets {
		stored := bufio.NewReader(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(secrets[i].Data["release"])))
		var content io.Reader = stored
		if magic, _ := stored.Peek(3); bytes.Equal(magic, []byte{0x1f, 0x8b, 0x08}) {
			unpacked, err := gzip.NewReader(stored)
			if err != nil {
				continue // Helm will report it
			}
			content = unpacked
		}
		var tooLarge *transport.TooLargeError
		if _, err := io.Copy(&read, content); errors.As(err, &tooLarge) {
			return fmt.Errorf("the history of the Helm release: %w", err)
		}
	}
	return nil
}

// soundReleases are the revisions in Secrets. It ignores a revision that has no state, as Helm ignores one that it cannot decode: Helm panics
// when it reads the state.
type soundReleases struct{ *driver.Secrets }

// Get returns a revision.
func (s soundReleases) Get(key string) (release.Releaser, error) {
	found, err := s.Secrets.Get(key)
	if err == nil && hasNoState(found) {
		return nil, fmt.Errorf("the Secret %s of a Helm release has no state", key)
	}
	return found, err
}

// Query returns revisions.
func (s soundReleases) Query(labels map[string]string) ([]release.Releaser, error) {
	found, err := s.Secrets.Query(labels)
	return slices.DeleteFunc(found, hasNoState), err
}

func hasNoState(found release.Releaser) bool {
	r, ok := found.(*helm.Release)
	return !ok || r.Info == nil
}
