package leaks

import (
	"bytes"
	"encoding/base64"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/internal/testenv"
)

// secret matches, in the last group, the secret part of a value: the signature of a token, without which the token is useless; a part
// of a key that differs between keys; and the markers of the test.
var secret = []*regexp.Regexp{
	regexp.MustCompile(`eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.([\w-]{64,})`),
	regexp.MustCompile(`PRIVATE KEY-----\n[^\n]+\n([^\n]{60,})`),
	regexp.MustCompile(`client-key-data"?: *"?[\w+/]{100}([\w+/]{64,})`),
	regexp.MustCompile(`MARKER-([0-9a-f]{80})`),
}

// shown is the number of characters of a secret that are searched for.
const shown = 45

// vault has all secrets that were ever in a Secret.
type vault struct {
	mutex   sync.Mutex
	secrets map[string]string // the text to search for, and where it comes from
}

func (v *vault) add(source string, value []byte) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	for _, pattern := range secret {
		for _, found := range pattern.FindAllSubmatchIndex(value, -1) {
			begin := found[len(found)-2]
			v.secrets[string(value[begin:begin+shown])] = source
			aligned := (begin + 2) / 3 * 3 // base64 encodes groups of three bytes
			v.secrets[base64.StdEncoding.EncodeToString(value[aligned:aligned+shown])] = source + ", encoded"
		}
	}
}

// watch fills the vault from the Secrets of a cluster, including those that exist for a moment only.
func (v *vault) watch(t *testing.T, name string, c *testenv.Cluster) {
	t.Helper()
	factory := informers.NewSharedInformerFactory(c.Kubernetes, 0)
	informer := factory.Core().V1().Secrets().Informer()
	note := func(object any) {
		if s, ok := object.(*corev1.Secret); ok {
			for key, value := range s.Data {
				v.add("key "+key+" of Secret "+s.Namespace+"/"+s.Name+" on the "+name, value)
			}
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, o any) { note(o) }})
	require.NoError(t, err)
	factory.StartWithContext(t.Context())
	require.True(t, cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced))
	t.Cleanup(factory.Shutdown)
}

// shows lists the secrets that a text contains. A text that looks like a token counts, even if it was never in a Secret.
func (v *vault) shows(text []byte) []string {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	found := sets.New[string]()
	for needle, source := range v.secrets {
		if bytes.Contains(text, []byte(needle)) {
			found.Insert(source)
		}
	}
	if token := secret[0].Find(text); token != nil {
		found.Insert("a token that begins with " + string(token[:20]))
	}
	return sets.List(found)
}

func (v *vault) size() int {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	return len(v.secrets)
}

func TestVault(t *testing.T) {
	v := vault{secrets: map[string]string{}}
	token := "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodWIifQ." + string(bytes.Repeat([]byte("Sig-nature_"), 8))
	for _, before := range []string{"", "a", "ab"} {
		value := []byte("token: " + before + token + "\n")
		v.add("somewhere", value)
		assert.NotEmpty(t, v.shows(value))
		encoded := base64.StdEncoding.EncodeToString(value)
		assert.Equal(t, []string{"somewhere, encoded"}, v.shows([]byte(encoded)))
	}
	assert.NotEmpty(t, v.shows([]byte("Authorization: Bearer "+token)))
	assert.Empty(t, v.shows([]byte("Authorization: Bearer <masked>")))
	v.add("planted", []byte(marker("x")))
	assert.Equal(t, []string{"planted"}, v.shows([]byte("https://user:"+marker("x")+"@host")))
	assert.Empty(t, v.shows([]byte(marker("y"))))
}
