package release

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	k8stesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/transport"
)

// stored returns the Secret of a revision whose content is the text, count times.
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

func TestHistorySecrets_deletedByAnother(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	client := fake.NewClientset(secret)
	history := &historySecrets{SecretInterface: client.CoreV1().Secrets("ns")}
	_, err := history.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.NoError(t, client.CoreV1().Secrets("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	require.NoError(t, history.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	_, err = history.Get(t.Context(), "a", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
}

// A user has stored far more revisions than the limits allow. Helm asks for all of them at once.
func TestHistorySecrets_pages(t *testing.T) {
	const count = 1000
	client, pages := fake.NewClientset(), 0
	client.PrependReactor("list", "secrets", func(a k8stesting.Action) (bool, runtime.Object, error) {
		options := a.(k8stesting.ListActionImpl).ListOptions
		at, _ := strconv.Atoi(options.Continue)
		pages++
		list := &corev1.SecretList{}
		for i := at; i < min(at+int(options.Limit), count); i++ {
			list.Items = append(list.Items, corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: secretName("app", i), Labels: map[string]string{"name": "app", "version": strconv.Itoa(i)}}, Data: map[string][]byte{"release": make([]byte, 1000)},
			})
		}
		if next := at + len(list.Items); next < count {
			list.Continue = fmt.Sprint(next)
		}
		return true, list, nil
	})
	for limit, want := range map[int64]int{50_000: 5, 10 << 20: count / historyPage} {
		pages = 0
		history := &historySecrets{SecretInterface: client.CoreV1().Secrets("ns"), limits: HistoryLimits{ResponseLimits: transport.ResponseLimits{Bytes: limit}}}
		list, err := history.List(t.Context(), metav1.ListOptions{LabelSelector: "name=app"})
		assert.Equal(t, want, pages)
		if want < count/historyPage {
			var tooLarge *transport.TooLargeError
			require.ErrorAs(t, err, &tooLarge, "it reads no further")
			continue
		}
		require.NoError(t, err)
		assert.Len(t, list.Items, count)
	}
}

// largeObjects are objects of which only so many fit into a response.
type largeObjects struct {
	metadata.ResourceInterface
	count, fit int
	requests   []string
}

// List returns a page.
func (l *largeObjects) List(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	l.requests = append(l.requests, fmt.Sprintf("%d after %s", o.Limit, o.Continue))
	at, _ := strconv.Atoi(o.Continue)
	end := min(at+int(o.Limit), l.count)
	if end-at > l.fit {
		return nil, fmt.Errorf("reading: %w", &transport.TooLargeError{})
	}
	list := &metav1.PartialObjectMetadataList{}
	for i := at; i < end; i++ {
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}})
	}
	if end < l.count {
		list.Continue = fmt.Sprint(end)
	}
	return list, nil
}

func TestEachObject(t *testing.T) {
	for _, row := range []struct {
		count, fit int
		want       []string
		tooLarge   bool
	}{
		{count: 0, fit: 1, want: []string{"500 after "}},
		{count: 600, fit: 500, want: []string{"500 after ", "500 after 500"}},
		{count: 501, fit: 499, want: []string{"500 after ", "250 after ", "250 after 250", "250 after 500"}},
		{count: 2, fit: 1, want: []string{"500 after ", "250 after ", "125 after ", "62 after ", "31 after ", "15 after ", "7 after ", "3 after ", "1 after ", "1 after 1"}},
		{count: 1, fit: 0, want: []string{"500 after ", "250 after ", "125 after ", "62 after ", "31 after ", "15 after ", "7 after ", "3 after ", "1 after "}, tooLarge: true},
	} {
		t.Run(fmt.Sprintf("%d objects, %d fit", row.count, row.fit), func(t *testing.T) {
			objects := &largeObjects{count: row.count, fit: row.fit}
			var visited []string
			err := eachObject(t.Context(), objects, "", func(o *metav1.PartialObjectMetadata) error {
				visited = append(visited, o.Name)
				return nil
			})
			assert.Equal(t, row.want, objects.requests)
			if row.tooLarge {
				var tooLarge *transport.TooLargeError
				require.ErrorAs(t, err, &tooLarge)
				return
			}
			require.NoError(t, err)
			require.Len(t, visited, row.count)
			for i, name := range visited {
				assert.Equal(t, fmt.Sprint(i), name)
			}
		})
	}
}

func TestReduceRevision(t *testing.T) {
	all := owner.LabelsFor("app", "one")
	for _, name := range []string{CopiesLabel, FieldManagerLabel, ServiceAccountLabel, keepResourcesLabel, deleteNamespaceLabel, deleteCRDsLabel} {
		all[name] = "true"
	}
	all["owner"], all["name"], all["version"], all["status"] = "helm", "app", "3", "deployed"
	secret := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: secretName("app", 3), ResourceVersion: "7", Labels: maps.Clone(all), Annotations: map[string]string{"large": "x"}, Finalizers: []string{"x/y"},
	}}
	secret.Labels["other"], secret.Labels[labelPrefix+"other"] = "x", "x"
	reduced, err := ReduceRevision(secret)
	require.NoError(t, err)
	want := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: secretName("app", 3), ResourceVersion: "7", Labels: all}}
	assert.Equal(t, want, reduced)
	assert.Equal(t, Found{Namespace: "ns", Name: "app", Version: 3, Deployed: true, Labels: all}, FoundIn(reduced.(*metav1.PartialObjectMetadata)))
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
		{"large and no release", []*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Data: map[string][]byte{"other": make([]byte, 2<<20)}}}, true},
		{"large annotations", []*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Annotations: map[string]string{"a": strings.Repeat("x", 2<<20)}}}}, true},
		{"no release", []*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Data: map[string][]byte{"release": []byte("?")}}}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := fake.NewClientset()
			for _, secret := range row.secrets {
				require.NoError(t, client.Tracker().Add(secret))
			}
			_, err := (&historySecrets{SecretInterface: client.CoreV1().Secrets("ns"), limits: HistoryLimits{ResponseLimits: limits}}).List(t.Context(), metav1.ListOptions{})
			var tooLarge *transport.TooLargeError
			if row.tooLarge {
				require.ErrorAs(t, err, &tooLarge)
			} else {
				require.NoError(t, err)
			}
			_, err = (&historySecrets{SecretInterface: client.CoreV1().Secrets("ns"), limits: HistoryLimits{}}).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err, "without limits")
			_, err = (&historySecrets{SecretInterface: client.CoreV1().Secrets("ns"), limits: HistoryLimits{ResponseLimits: limits}}).Get(t.Context(), "a", metav1.GetOptions{})
			assert.Equal(t, row.tooLarge && len(row.secrets) == 1, err != nil)
		})
	}
}

func manyAnchors() (text string) {
	for i := range 1001 {
		text += fmt.Sprintf(" &a%d", i)
	}
	return text
}

// bomb returns YAML with 40 anchors, each a list with two aliases of the anchor before.
func bomb() string {
	text := "- &a0 x\n"
	for i := range 40 {
		text += fmt.Sprintf("- &a%d [*a%d, *a%d]\n", i+1, i, i)
	}
	return text
}

func TestCheckYAML(t *testing.T) {
	const tooMany = "has more than 1000 nodes"
	for name, row := range map[string]struct{ text, asOne, asSeveral string }{
		"nothing":                          {"", "", ""},
		"as many as the limit":             {strings.Repeat("- a\n", 1000), "", ""},
		"a list":                           {strings.Repeat("- a\n", 1001), tooMany, tooMany},
		"a list in one line":               {"[" + strings.Repeat("[],", 501), tooMany, tooMany},
		"a list of lists":                  {strings.Repeat("- ", 1001), tooMany, tooMany},
		"a list with other ends of lines":  {strings.Repeat("-\u0085a\r", 1001), tooMany, tooMany},
		"a map":                            {strings.Repeat("a:\n", 1001), tooMany, tooMany},
		"a map in one line":                {"{" + strings.Repeat("a,", 1001), tooMany, tooMany},
		"long keys":                        {strings.Repeat("? a\n", 1001), tooMany, tooMany},
		"text":                             {"x: |\n" + strings.Repeat("  no-nodes in a text\n", 10_000), "", ""},
		"an alias":                         {"a: &x 1\nb: *x\n", "", ""},
		"merged maps in a text":            {"data:\n  ci.yaml: |\n    x: &defaults {a: b}\n    y:\n      <<: *defaults\n", "", ""},
		"JSON in texts":                    {strings.Repeat("---\na: |\n  ["+strings.Repeat("1,", 200)+"1]\n", 100), tooMany, ""},
		"many documents":                   {strings.Repeat("---\na: [1,2,3]\n", 300), tooMany, tooMany},
		"aliases that repeat a list":       {"a: &x [" + strings.Repeat("1,", 100) + "1]\nb: [" + strings.Repeat("*x,", 10) + "*x]\n", tooMany, tooMany},
		"aliases of aliases":               {bomb(), tooMany, tooMany},
		"aliases of a long text":           {"a: &x " + strings.Repeat("x", 100_000) + "\nb: [*x,*x,*x]\n", tooMany, tooMany},
		"an alias in its own anchor":       {"a: &x [*x]\n", tooMany, tooMany},
		"an alias in one line":             {"[&x-1 1,*x-1]", "", ""},
		"an alias in what may be a string": {"a: \"\n---x: &y\nz: *y\n\"", "", "cannot be parsed"},
		"an anchor only in a part":         {"a: &x " + strings.Repeat("x", 100_000) + "\n---&x y: 1\nb: [*x,*x,*x]\n", tooMany, ""},
		"thousands of anchors":             {"- &a0 x\n- |\n" + strings.ReplaceAll(manyAnchors(), "\n", " ") + " *b", "", ""},
		"an alias of no anchor":            {"a: &x 1\nb: *y\n", "", ""},
		"a shell":                          {"run: command 2>&1 && expr 2*1 & wait *x\nurl: /?a=1&x=2\ngo: (&x, *y)\n", "", ""},
		"schedules and markdown":           {"cron: '*/5 * * * *'\ntext: Ships & boats, *boats* and **Ships**\n", "", ""},
		"UTF-16":                           {"\xff\xfea\x00:\x00", "is not encoded in UTF-8", "is not encoded in UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			for says, err := range map[*string]error{&row.asOne: CheckYAML([]byte(row.text), 1000), &row.asSeveral: CheckDocuments([]byte(row.text), 1000)} {
				if *says == "" {
					require.NoError(t, err)
					continue
				}
				var refused *YAMLError
				require.ErrorAs(t, err, &refused)
				assert.EqualError(t, err, "YAML that "+*says)
			}
		})
	}
}

func TestSoundReleases(t *testing.T) {
	const many = "kind: X\nx: [,,,,,,,,,,]\n"
	key := []byte("key")
	for name, row := range map[string]struct {
		release string
		signed  bool
		says    string
		ignored bool
	}{
		"small":                                {release: `{"name":"a","namespace":"ns","version":1,"info":{},"manifest":"kind: X"}`},
		"a large manifest":                     {release: `{"name":"a","namespace":"ns","version":1,"info":{},"manifest":"` + strings.ReplaceAll(many, "\n", `\u000a`) + `"}`, says: "has more than 10 nodes"},
		"a large manifest, signed":             {release: `{"name":"a","namespace":"ns","version":1,"info":{},"manifest":"` + strings.ReplaceAll(many, "\n", `\u000a`) + `"}`, signed: true},
		"a large hook":                         {release: `{"name":"a","namespace":"ns","version":1,"info":{},"hooks":[{},{"manifest":"[,,,,,,,,,,]"}]}`, says: "has more than 10 nodes"},
		"a large CustomResourceDefinition":     {release: `{"name":"a","namespace":"ns","version":1,"info":{},"chart":{"metadata":{"name":"x"},"files":[{"name":"crds/a.yaml","data":"` + base64.StdEncoding.EncodeToString([]byte(many)) + `"}]}}`, says: "has more than 10 nodes"},
		"a large file that nobody parses":      {release: `{"name":"a","namespace":"ns","version":1,"info":{},"chart":{"metadata":{"name":"x"},"files":[{"name":"a.yaml","data":"` + base64.StdEncoding.EncodeToString([]byte(many)) + `"}]}}`},
		"no state":                             {release: `{"name":"a","namespace":"ns","version":1}`, ignored: true},
		"of another namespace":                 {release: `{"name":"a","namespace":"kube-system","version":1,"info":{}}`, ignored: true},
		"of no namespace":                      {release: `{"name":"a","version":1,"info":{}}`, ignored: true},
		"of another release":                   {release: `{"name":"b","namespace":"ns","version":1,"info":{}}`, ignored: true},
		"of another version":                   {release: `{"name":"a","namespace":"ns","version":2,"info":{}}`, ignored: true},
		"null in place of a hook":              {release: `{"name":"a","namespace":"ns","version":1,"info":{},"hooks":[null]}`, ignored: true},
		"null in place of a file of the chart": {release: `{"name":"a","namespace":"ns","version":1,"info":{},"chart":{"files":[null]}}`, ignored: true},
	} {
		t.Run(name, func(t *testing.T) {
			secret := stored(t, secretName("a", 1), row.release, 1)
			secret.Labels = map[string]string{"owner": "helm", "name": "a", "version": "1"}
			if row.signed {
				secret.Labels[signedLabel] = labelTrue
			}
			client := &Client{key: key, history: HistoryLimits{Nodes: 10, TrustSigned: true}}
			releases := soundReleases{driver.NewSecrets(fake.NewClientset(secret).CoreV1().Secrets("ns")), client, t.Context(), "ns"}
			found, err := releases.Query(map[string]string{"owner": "helm"})
			_, getErr := releases.Get(secret.Name)
			switch {
			case row.says != "":
				require.ErrorContains(t, err, "the history of the Helm release: YAML that "+row.says)
				require.ErrorContains(t, getErr, row.says)
				client.history.Nodes = 0
				_, err = releases.Query(map[string]string{"owner": "helm"})
				require.NoError(t, err, "without limits")
			case row.ignored:
				require.NoError(t, err)
				assert.Empty(t, found)
				require.ErrorContains(t, getErr, "is damaged")
			default:
				require.NoError(t, err)
				assert.Len(t, found, 1)
				require.NoError(t, getErr)
				client.history.TrustSigned = false
				_, err = releases.Query(map[string]string{"owner": "helm"})
				assert.Equal(t, row.signed, err != nil, "the hub trusts no signature")
			}
		})
	}
}
