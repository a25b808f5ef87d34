package release

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/muster-fleet/muster/pkg/transport"
)

// stored is the Secret of a revision with that content, of which it has as much as count repetitions.
func stored(t *testing.T, name, text string, count int) *corev1.Secret {
	t.Helper()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	for range count {
		_, err := zip.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, zip.Close())
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Data:       map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(packed.Bytes()))},
	}
}

func TestLimitHistory(t *testing.T) {
	limits := transport.ResponseLimits{Bytes: 1 << 20, Values: 1000}
	kilobyte := strings.Repeat("x", 1<<10)
	for _, row := range []struct {
		name     string
		secrets  []*corev1.Secret
		tooLarge bool
	}{
		{"small revisions", []*corev1.Secret{stored(t, "a", kilobyte, 500), stored(t, "b", kilobyte, 500)}, false},
		{"one that unpacks to a hundred megabytes", []*corev1.Secret{stored(t, "a", kilobyte, 100<<10)}, true},
		{"many that are too large together", []*corev1.Secret{stored(t, "a", kilobyte, 600), stored(t, "b", kilobyte, 600)}, true},
		{"many values", []*corev1.Secret{stored(t, "a", "[]", 2000)}, true},
		{"values that are not compressed", []*corev1.Secret{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"},
			Data:       map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString([]byte(strings.Repeat("[]", 2000))))},
		}}, true},
		{"no release", []*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Data: map[string][]byte{"release": []byte("?")}}}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := fake.NewClientset()
			for _, secret := range row.secrets {
				require.NoError(t, client.Tracker().Add(secret))
			}
			_, err := limitedSecrets{client.CoreV1().Secrets("ns"), limits}.List(t.Context(), metav1.ListOptions{})
			var tooLarge *transport.TooLargeError
			if row.tooLarge {
				require.ErrorAs(t, err, &tooLarge)
			} else {
				require.NoError(t, err)
			}
			_, err = limitedSecrets{client.CoreV1().Secrets("ns"), transport.ResponseLimits{}}.List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err, "without limits")
			_, err = limitedSecrets{client.CoreV1().Secrets("ns"), limits}.Get(t.Context(), "a", metav1.GetOptions{})
			assert.Equal(t, row.tooLarge && len(row.secrets) == 1, err != nil)
		})
	}
}
