package deploy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/muster-fleet/muster/internal/pki"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/release"
)

// registry runs an OCI registry, and returns its address.
func registry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(containerregistry.New(containerregistry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func push(t *testing.T, reference, tag, mediaType string, layer []byte, annotations map[string]string) {
	t.Helper()
	to, err := remote.NewRepository(reference)
	require.NoError(t, err)
	to.PlainHTTP = true
	descriptor, err := oras.PushBytes(t.Context(), to, mediaType, layer)
	require.NoError(t, err)
	descriptor.Annotations = annotations
	manifest, err := oras.PackManifest(t.Context(), to, oras.PackManifestVersion1_1, "application/x", oras.PackManifestOptions{Layers: []ocispec.Descriptor{descriptor}})
	require.NoError(t, err)
	require.NoError(t, to.Tag(t.Context(), manifest, tag))
}

// chartArchive packs the chart hc, version 0.1.0, with one template.
func chartArchive(t *testing.T, template string) []byte {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	for name, data := range map[string]string{"hc/Chart.yaml": "apiVersion: v2\nname: hc\nversion: 0.1.0\n", "hc/templates/cm.yaml": template} {
		require.NoError(t, archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data))}))
		_, err := archive.Write([]byte(data))
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	require.NoError(t, zipped.Close())
	return packed.Bytes()
}

// chartRepository serves the recorded chart hc over HTTP, and returns its URL.
func chartRepository(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(chartHandler(t))
	t.Cleanup(server.Close)
	return server.URL
}

func chartHandler(t *testing.T) http.Handler {
	t.Helper()
	packed := chartArchive(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hc}\ndata: {a: \"1\"}\n")
	mux := http.NewServeMux()
	mux.HandleFunc("/index.yaml", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "apiVersion: v1\nentries: {hc: [{apiVersion: v2, name: hc, version: 0.1.0, urls: [hc-0.1.0.tgz]}]}\n")
	})
	mux.HandleFunc("/hc-0.1.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(packed) })
	return mux
}

func (s *stage) secret(name string, data map[string]string) {
	s.t.Helper()
	_, err := s.Kubernetes.CoreV1().Secrets(s.hub).Create(s.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

func TestRun_ociContents(t *testing.T) {
	sample.Long(t)
	s := onStage(t)
	s.run()
	host := registry(t)
	resources := []fleet.BundleResource{{Name: "all.yaml", Content: configMap("a", "one")}}
	id, _, err := content.Digest(resources)
	require.NoError(t, err)
	document, err := json.Marshal(map[string]any{"resources": resources})
	require.NoError(t, err)
	push(t, host+"/bundles/"+id, "latest", "application/fleet.file", append(document, '\n'), map[string]string{"id": id})
	s.secret(id, map[string]string{"reference": "oci://" + host + "/bundles", "basicHTTP": "true"})
	s.put("app", resources[0].Content, func(bd *fleet.BundleDeployment) { bd.Spec.OCIContents = true })
	s.state("app", fleet.Ready)
	s.value("a", "one")
	assert.Empty(t, s.hubWire.Requests("/contents/"), "no Content is read")
}

// TestRun_helmOp deploys a chart that was recorded with Fleet's own agent, from a registry that needs a Secret.
func TestRun_helmOp(t *testing.T) {
	s := onStage(t)
	s.run()
	host := registry(t)
	packed := chartArchive(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hc}\ndata: {k: '{{ .Values.a }}'}\n")
	push(t, host+"/charts/hc", "0.1.0", "application/vnd.cncf.helm.chart.content.v1.tar+gzip", packed, nil)
	s.secret("access", map[string]string{"basicHTTP": "true"})
	s.put("s21-op", "", func(bd *fleet.BundleDeployment) {
		bd.Spec.HelmChartOptions = &fleet.GenericMap{Data: map[string]any{"helmOpSecretName": "access"}}
		bd.Spec.Options.Helm = &fleet.HelmOptions{Repo: "oci://" + host + "/charts/hc", Version: "0.1.0", Values: &fleet.GenericMap{Data: map[string]any{"a": "one"}}}
	})
	bd := s.state("s21-op", fleet.Ready)
	s.value("hc", "one")
	assert.Equal(t, s.target+"/s21-op:1", bd.Status.Release)
	require.Len(t, bd.Status.Resources, 1)
	assert.Equal(t, "hc", bd.Status.Resources[0].Name)
}

// The options of a HelmOp say which certificate of the server is accepted. A Secret with authorities precedes them.
func TestRun_helmOpCertificate(t *testing.T) {
	s := onStage(t)
	s.run()
	server := httptest.NewTLSServer(chartHandler(t))
	t.Cleanup(server.Close)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	other, err := pki.NewAuthority("other", time.Now())
	require.NoError(t, err)
	s.secret("other", map[string]string{"cacerts": string(other.Pair.Cert)})
	s.secret("careless", map[string]string{"insecureSkipVerify": "true"})
	for name, row := range map[string]struct {
		options map[string]any
		want    string // condition Deployed
	}{
		"careless": {map[string]any{"helmOpSecretName": "careless"}, "False Error: "}, // the spec decides
		"none":     {map[string]any{}, "False Error: "},
		"bundle":   {map[string]any{"helmOpCABundle": authority}, "True"},
		"insecure": {map[string]any{"helmOpInsecureSkipTLSVerify": true}, "True"},
		"secret":   {map[string]any{"helmOpCABundle": authority, "helmOpSecretName": "other"}, "False Error: "},
	} {
		s.put(name, "", func(bd *fleet.BundleDeployment) {
			data, err := json.Marshal(row.options)
			require.NoError(t, err)
			bd.Spec.HelmChartOptions = &fleet.GenericMap{}
			require.NoError(t, json.Unmarshal(data, bd.Spec.HelmChartOptions))
			bd.Spec.Options.DefaultNamespace = s.Namespace(t)
			bd.Spec.Options.Helm = &fleet.HelmOptions{Repo: server.URL, Chart: "hc", Version: "0.1.0"}
		})
		s.condition(name, fleet.ConditionDeployed, row.want)
	}
}

// TestRun_copies plays the recorded scene of downstreamResources. One difference is on purpose: Fleet's agent deploys a second
// revision only to note the generation.
func TestRun_copies(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	ctx := context.Background()
	hub, member := s.Kubernetes.CoreV1().ConfigMaps(s.hub), s.Kubernetes.CoreV1().Secrets(s.target)
	chart := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: one}\n"
	wants := func(generation int64) func(*fleet.BundleDeployment) {
		return func(bd *fleet.BundleDeployment) {
			bd.Spec.Options.DownstreamResources = []fleet.DownstreamResource{{Kind: "Secret", Name: "cred"}, {Kind: "configmap", Name: "conf"}}
			bd.Spec.Options.Helm = &fleet.HelmOptions{ValuesFrom: []fleet.ValuesFrom{{ConfigMapKeyRef: &fleet.KeySelector{Name: "conf"}}}}
			bd.Spec.DownstreamResourcesGeneration = generation
		}
	}
	s.secret("cred", map[string]string{"password": "first"})
	s.put("app", chart, wants(1))
	s.condition("app", fleet.ConditionDeployed, "False Error: fetching configmap conf, which downstreamResources names")
	_, err := hub.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf"}, Data: map[string]string{"values.yaml": "b: from-copy"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	bd := s.state("app", fleet.Ready)
	assert.Equal(t, int64(1), bd.Status.DownstreamResourcesGeneration)
	copied, err := member.Get(ctx, "cred", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "first", string(copied.Data["password"]))
	assert.Equal(t, map[string]string{release.CopyLabel: "app"}, copied.Labels)

	source, err := s.Kubernetes.CoreV1().Secrets(s.hub).Get(ctx, "cred", metav1.GetOptions{})
	require.NoError(t, err)
	source.Data["password"] = []byte("second")
	_, err = s.Kubernetes.CoreV1().Secrets(s.hub).Update(ctx, source, metav1.UpdateOptions{})
	require.NoError(t, err)
	s.put("app", chart, wants(2))
	testenv.Eventually(t, func() (bool, string) {
		bd = s.get("app")
		return bd.Status.DownstreamResourcesGeneration == 2 && bd.Status.Release == s.target+"/app:2", fmt.Sprint("the copies are not updated: ", bd.Status)
	})
	copied, err = member.Get(ctx, "cred", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "second", string(copied.Data["password"]))

	// A restarted agent knows what it copied. Another BundleDeployment that needs the same keeps it.
	require.NoError(t, stop())
	s.run()
	s.put("other", configMap("b", "one"), wants(7))
	s.state("other", fleet.Ready)
	assert.Equal(t, s.target+"/app:2", s.get("app").Status.Release)
	s.remove("other")
	s.gone("b")
	testenv.Eventually(t, func() (bool, string) {
		copied, err = member.Get(ctx, "cred", metav1.GetOptions{})
		return err == nil && copied.Labels[release.CopyLabel] == "app", fmt.Sprint(copied, err)
	})
	s.remove("app")
	s.gone("a")
	s.gone("conf")
	testenv.Eventually(t, func() (bool, string) {
		_, err := member.Get(ctx, "cred", metav1.GetOptions{})
		return apierrors.IsNotFound(err), "the copied Secret is still there"
	})

	// A Secret of another owner is not overwritten.
	_, err = member.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cred"}, StringData: map[string]string{"password": "theirs"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.put("third", configMap("c", "one"), wants(1))
	s.condition("third", fleet.ConditionDeployed, "False Error: copying Secret cred from the hub into namespace "+s.target+": it exists and is not a copy")
	copied, err = member.Get(ctx, "cred", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "theirs", string(copied.Data["password"]))
}

// A copy that no option names any more goes with the release, as with Fleet's own agent: it may be a Secret.
func TestRun_copiesOfEarlierOptions(t *testing.T) {
	s := onStage(t)
	s.run()
	s.deployWithCopy()
	s.put("app", configMap("a", "two"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.DownstreamResources = nil })
	s.state("app", fleet.Ready)
	s.removeWithCopy()
}

// A deployment that fails before it stores a release has copied Secrets already. They are removed as a release is: when the hub confirms that the
// BundleDeployment is gone.
func TestRun_copiesWithoutARelease(t *testing.T) {
	sample.Long(t)
	start := func(t *testing.T, run func(*stage)) *stage {
		t.Helper()
		s := onStage(t)
		run(s)
		s.put(s.ownBundle(), configMap("agent", "one"))
		s.state(s.ownBundle(), fleet.Ready)
		s.failWithCopy()
		return s
	}
	run := func(s *stage) { s.run() }
	t.Run("the hub has deleted the BundleDeployment", func(t *testing.T) {
		s := start(t, run)
		s.remove("app")
		s.copyGone()
	})
	t.Run("keepResources", func(t *testing.T) {
		s := start(t, run)
		s.update("app", func(bd *fleet.BundleDeployment) { bd.Spec.StagedOptions.KeepResources = true })
		s.state("app", fleet.ErrApplied)
		s.remove("app")
		s.still()
		s.requireCopy()
	})
	for name, reply := range map[string]func(*http.Request) (*http.Response, error){
		"a page of a proxy":      answer(404, `<html>not found</html>`),
		"a rejected credential":  answer(401, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`),
		"an error of the server": answer(500, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`),
	} {
		t.Run("unconfirmed: "+name, func(t *testing.T) {
			s := start(t, run)
			s.answerAsks(reply)
			s.remove("app")
			s.asksAgain("app")
			s.requireCopy()
			s.hubWire.Inject(nil)
			s.copyGone()
		})
	}
	t.Run("the hub has lost its objects", func(t *testing.T) {
		s := start(t, run)
		s.removeAll()
		s.asksAgain("app")
		s.requireCopy()
		s.put(s.ownBundle(), configMap("agent", "two"))
		s.state(s.ownBundle(), fleet.Ready)
		s.still()
		s.requireCopy()
	})
	t.Run("the agent uninstalls itself", func(t *testing.T) {
		var ended func() error
		s := start(t, func(s *stage) { ended = s.ends() })
		s.put(s.ownBundle(), configMap("agent", "one"), func(bd *fleet.BundleDeployment) {
			bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true"}
		})
		require.ErrorIs(t, ended(), deploy.ErrUninstall)
		s.copyGone()
	})
}

// Two agents on one member have BundleDeployments of the same name for the same namespace. What the second one may not deploy, it does not remove either.
func TestRun_copiesOfAnotherAgent(t *testing.T) {
	sample.Long(t)
	start := func(t *testing.T, betweenAgents func(first *stage, stop func() error), run func(*stage)) (first, second *stage) {
		t.Helper()
		first = onStage(t)
		stop := first.run()
		first.deployWithCopy()
		betweenAgents(first, stop)
		second = stageOn(t, first.Cluster)
		second.target = first.target
		run(second)
		second.put(second.ownBundle(), configMap("other-agent", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.DefaultNamespace = second.agent })
		second.state(second.ownBundle(), fleet.Ready)
		second.putWithCopy("theirs")
		second.condition("app", fleet.ConditionDeployed, "False Error: Helm release "+first.target+"/app ")
		return first, second
	}
	requireKept := func(first *stage) {
		first.requireCopy()
		first.value("a", "one")
	}
	run := func(s *stage) { s.run() }
	t.Run("the hub has deleted the BundleDeployment", func(t *testing.T) {
		first, second := start(t, func(*stage, func() error) {}, run)
		second.removeAndWait("app")
		requireKept(first)
		first.removeWithCopy()
	})
	t.Run("the second agent uninstalls itself", func(t *testing.T) {
		var ended func() error
		first, second := start(t, func(*stage, func() error) {}, func(s *stage) { ended = s.ends() })
		second.update(second.ownBundle(), func(bd *fleet.BundleDeployment) { bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true"} })
		require.ErrorIs(t, ended(), deploy.ErrUninstall)
		requireKept(first)
		first.removeWithCopy()
	})
	t.Run("the first agent sets no labels", func(t *testing.T) {
		first, second := start(t, func(first *stage, stop func() error) {
			require.NoError(t, stop())
			secret, err := first.Kubernetes.CoreV1().Secrets(first.target).Get(t.Context(), "sh.helm.release.v1.app.v1", metav1.GetOptions{})
			require.NoError(t, err)
			maps.DeleteFunc(secret.Labels, func(key, _ string) bool { return strings.Contains(key, "/") })
			_, err = first.Kubernetes.CoreV1().Secrets(first.target).Update(t.Context(), secret, metav1.UpdateOptions{})
			require.NoError(t, err)
		}, run)
		second.removeAndWait("app")
		requireKept(first)
	})
}

// Hooks of the release may need the copies until it is removed.
func TestRun_copiesWhileTheRemovalFails(t *testing.T) {
	for name, remove := range map[string]func(s *stage){
		"the hub has deleted the BundleDeployment": func(s *stage) { s.remove("app") },
		"the agent uninstalls itself": func(s *stage) {
			s.put(s.ownBundle(), configMap("agent", "one"), func(bd *fleet.BundleDeployment) {
				bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true"}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			s.ends()
			s.put("app", configMap("a", "one"))
			s.state("app", fleet.Ready)
			s.failWithCopy()
			object := "/configmaps/a"
			s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
				if req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, object) {
					return answer(http.StatusServiceUnavailable, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":503}`)(req)
				}
				return send()
			})
			remove(s)
			testenv.Eventually(t, func() (bool, string) {
				return len(s.member.Requests("DELETE /api/v1/namespaces/"+s.target+object)) > 2, "it does not try again"
			})
			s.requireCopy()
			s.member.Inject(nil)
			s.gone("a")
			s.copyGone()
		})
	}
}

// A success removes the copies of an earlier failure with its release only if the release is labelled as one with copies.
func TestRun_copiesOfAFailureBeforeASuccess(t *testing.T) {
	s := onStage(t)
	s.run()
	withoutCopies := func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.DownstreamResources, bd.Spec.CorrectDrift = nil, &fleet.CorrectDrift{Enabled: true}
	}
	s.put("app", configMap("a", "one"), withoutCopies)
	s.state("app", fleet.Ready)
	s.failWithCopy()
	s.put("app", configMap("a", "one"), withoutCopies)
	s.state("app", fleet.Ready)
	s.change("theirs")
	s.value("a", "one")
	s.state("app", fleet.Ready)
	s.removeWithCopy()
}

func (s *stage) requireCopy() {
	s.t.Helper()
	_, err := s.Kubernetes.CoreV1().Secrets(s.target).Get(context.Background(), "cred", metav1.GetOptions{})
	require.NoError(s.t, err)
}

// removeAndWait removes a BundleDeployment, and waits until the agent has asked the hub about it and sends no requests any more.
func (s *stage) removeAndWait(name string) {
	s.t.Helper()
	before := s.asks(name)
	s.remove(name)
	testenv.Eventually(s.t, func() (bool, string) { return s.asks(name) > before, "it does not ask" })
	s.still()
}

// deployWithCopy deploys app with a copy of Secret cred.
func (s *stage) deployWithCopy() {
	s.t.Helper()
	s.putWithCopy("one")
	s.state("app", fleet.Ready)
}

// putWithCopy creates app, with a value of ConfigMap a, and a copy of Secret cred.
func (s *stage) putWithCopy(value string) {
	s.t.Helper()
	s.secret("cred", map[string]string{"password": "first"})
	s.put("app", configMap("a", value), wantsCopy)
}

// failWithCopy deploys app, which fails after Secret cred was copied.
func (s *stage) failWithCopy() {
	s.t.Helper()
	s.secret("cred", map[string]string{"password": "first"})
	s.putFiles("app", []fleet.BundleResource{{Name: "templates/a.yaml", Content: `{{ fail "no" }}`}}, wantsCopy)
	s.state("app", fleet.ErrApplied)
	s.requireCopy()
}

// wantsCopy lets a BundleDeployment copy Secret cred.
func wantsCopy(bd *fleet.BundleDeployment) {
	bd.Spec.Options.DownstreamResources = []fleet.DownstreamResource{{Kind: "Secret", Name: "cred"}}
	bd.Spec.DownstreamResourcesGeneration = 1
}

// removeWithCopy removes app, and waits until the copy of Secret cred is gone as well.
func (s *stage) removeWithCopy() {
	s.t.Helper()
	s.remove("app")
	s.gone("a")
	s.copyGone()
}

func (s *stage) copyGone() {
	s.t.Helper()
	testenv.Eventually(s.t, func() (bool, string) {
		_, err := s.Kubernetes.CoreV1().Secrets(s.target).Get(context.Background(), "cred", metav1.GetOptions{})
		return apierrors.IsNotFound(err), "the copied Secret is still there"
	})
}
