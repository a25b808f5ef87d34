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
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/semaphore"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/release"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// HistoryLimits limit the history of one release. A revision is compressed, so a Secret of a few kilobytes could take gigabytes of memory. The
// hub sets limits because the owner of a member can write its Secrets; the agent sets limits because users of the member can write Secrets in
// their namespaces.
type HistoryLimits struct {
	// ResponseLimits are limits of all revisions together, decompressed.
	transport.ResponseLimits
	// Nodes limits the YAML of each manifest, hook and CustomResourceDefinition, see CheckDocuments. ResponseLimits count each of them as one string.
	Nodes int
	// TrustSigned applies Nodes only to revisions that are not signed, see WithHistoryKey. The hub must not set it: a member has its own key.
	TrustSigned bool
	// Reduces reduces each revision to what a removal of the release needs, see reduce.go. The limits then apply to what is left, and Scanned to all
	// revisions together, decompressed. Only Uninstall and Forget may then be called.
	Reduces bool
	Scanned int64
	// Small is the size up to which a history does not need Large or Turns. Small.Values is compared with the nodes of YAML as well. With TrustSigned,
	// signed revisions do not count.
	Small transport.ResponseLimits
	// Large, if not nil, is acquired for a larger history. The caller that set it releases it after each removal.
	Large *transport.Turn
	// Turns, if not nil, has one unit for each larger history that may be in memory. An action takes one until its end. A removal does not wait for
	// it, but fails: users of the member can store any number of such histories that have to be removed, and all workers would wait. Nor does Annotated.
	Turns *semaphore.Weighted

	turn *historyTurn // of the action; nil without Turns
}

// LimitHistory returns a client that returns an error for a release whose history exceeds the limits, before Helm decodes or parses it.
func (c *Client) LimitHistory(limits HistoryLimits) *Client {
	limited := *c
	limited.history = limits
	return &limited
}

// waitForTurn waits until no other client of Large, and no other action, has a large history in memory.
func (l HistoryLimits) waitForTurn(ctx context.Context) error {
	switch {
	case l.Large != nil:
		return l.Large.Pin(ctx)
	case l.turn != nil:
		return l.turn.take(ctx)
	}
	return nil
}

// ErrBusy is the error of Uninstall, Forget and Annotated if they would have to wait for a unit of HistoryLimits.Turns. The same call may succeed later.
var ErrBusy = errors.New("the Helm release has a large history that was not written by this agent, and another such history is being read")

// historyTurn is the right of one action to have a large history in memory.
type historyTurn struct {
	of    *semaphore.Weighted
	waits bool
	taken bool
}

func (t *historyTurn) take(ctx context.Context) error {
	switch {
	case t.taken:
		return nil
	case !t.waits && !t.of.TryAcquire(1):
		return ErrBusy
	case t.waits:
		if err := t.of.Acquire(ctx, 1); err != nil {
			return err
		}
	}
	t.taken = true
	return nil
}

func (t *historyTurn) end() {
	if t.taken {
		t.taken = false
		t.of.Release(1)
	}
}

// beginAction returns a client for one action, and a function that must be called at its end.
func (c *Client) beginAction(waits bool) (client *Client, end func()) {
	if c.history.Turns == nil || c.history.turn != nil { // no limit, or part of another action
		return c, func() {}
	}
	limited := *c
	limited.history.turn = &historyTurn{of: c.history.Turns, waits: waits}
	return &limited, limited.history.turn.end
}

// historySecrets are the Secrets of the revisions of one release, for one action. A read fails if what Helm would decompress and decode is larger
// than the limits. After the first List, every read returns what that List has returned, with the changes of the action itself: Helm reads
// the history several times, and must not get a revision that another user has stored after its signature was checked.
type historySecrets struct {
	corev1client.SecretInterface
	ctx    context.Context // of the action: Helm passes none
	limits HistoryLimits
	key    []byte                    // signs revisions; nil if there is none
	read   map[string]*corev1.Secret // by name; nil until the first List
	// created is the number of revisions that the action has stored.
	created int
	// onlySigned makes Get return ErrNotSigned for a revision that is not signed, whatever it contains.
	onlySigned bool
	// storesRemoved is whether status uninstalled is stored, see storeRemoved. Otherwise, only this action sees it.
	storesRemoved bool
}

// Get returns a Secret.
func (s *historySecrets) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error) {
	if s.read != nil {
		if secret, found := s.read[name]; found {
			return secret.DeepCopy(), nil
		}
		return nil, apierrors.NewNotFound(secrets.GroupResource(), name)
	}
	secret, err := s.SecretInterface.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	if s.onlySigned && s.key != nil && !hasSignature(s.key, secret) {
		return nil, ErrNotSigned
	}
	if s.limits.Reduces {
		return s.reduce(&historySize{}, secret)
	}
	return secret, s.check(&historySize{}, *secret)
}

// historyPage is the number of revisions that are read at a time. Helm keeps fewer of a release, but users may have stored thousands.
const historyPage = 10

// List returns Secrets, except those that do not have the name that Helm gives to the Secret of that revision. The first List of an action must select all
// revisions of the release.
func (s *historySecrets) List(ctx context.Context, o metav1.ListOptions) (*corev1.SecretList, error) {
	if s.read == nil {
		read, size, page := map[string]*corev1.Secret{}, &historySize{}, o
		for {
			page.Limit = s.pageSize()
			list, err := s.SecretInterface.List(ctx, page)
			if err != nil {
				return nil, err
			}
			if !s.limits.Reduces {
				if err := s.check(size, list.Items...); err != nil {
					return nil, err
				}
			}
			for i := range list.Items {
				secret := &list.Items[i]
				if s.limits.Reduces {
					if !hasLegalNames(secret) {
						continue // it is from no API server
					}
					if secret, err = s.reduce(size, secret); err != nil {
						return nil, err
					}
				}
				read[secret.Name] = secret
			}
			if page.Continue = list.Continue; page.Continue == "" {
				break
			}
		}
		s.read = read
	}
	selector, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, err
	}
	selected := &corev1.SecretList{}
	for _, name := range slices.Sorted(maps.Keys(s.read)) {
		secret := s.read[name]
		if _, hasHelmsName := versionOf(secret); hasHelmsName && selector.Matches(labels.Set(secret.Labels)) {
			selected.Items = append(selected.Items, *secret.DeepCopy())
		}
	}
	return selected, nil
}

// pageSize is 1 for reduced revisions: ten Secrets of a mebibyte are a large response, and each is reduced alone.
func (s *historySecrets) pageSize() int64 {
	if s.limits.Reduces {
		return 1
	}
	return historyPage
}

// Create creates a Secret.
func (s *historySecrets) Create(ctx context.Context, secret *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error) {
	stored, err := s.remember(s.SecretInterface.Create(ctx, secret, o))
	if err == nil {
		s.created++
	}
	return stored, err
}

// Update changes a Secret.
func (s *historySecrets) Update(ctx context.Context, secret *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error) {
	before := s.read[secret.Name]
	isUninstalling := secret.Labels[helmStatusLabel] == string(common.StatusUninstalling)
	switch {
	case isUninstalling && before != nil && before.Labels[helmStatusLabel] != string(common.StatusDeployed): // a repeated removal has to know that it failed
		return secret, nil
	case s.limits.Reduces:
		return secret, s.storeStatus(ctx, secret)
	case secret.Labels[helmStatusLabel] == string(common.StatusUninstalled) && !s.storesRemoved: // removeRest deletes the Secret
		return s.remember(secret, nil)
	}
	return s.remember(s.SecretInterface.Update(ctx, secret, o))
}

func (s *historySecrets) remember(stored *corev1.Secret, err error) (*corev1.Secret, error) {
	if err == nil && s.read != nil {
		s.read[stored.Name] = stored.DeepCopy()
	}
	return stored, err
}

// Delete deletes a Secret.
func (s *historySecrets) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	err := s.SecretInterface.Delete(ctx, name, o)
	if apierrors.IsNotFound(err) { // another client has deleted it since the List; Helm expects NotFound only from a read
		err = nil
	}
	if err == nil {
		delete(s.read, name)
	}
	return err
}

// historySize is the size of the Secrets of a history that were read so far, as they are and decompressed.
type historySize struct {
	stored int64
	read   transport.SizeCounter
	// storedCounted and readCounted do not include revisions that HistoryLimits.TrustSigned excepts.
	storedCounted int64
	readCounted   transport.SizeCounter
	// scanned is the size of what reduce has decompressed, kept and keptValues that of what it has kept; hasTurn is whether it has its turn.
	scanned, kept int64
	keptValues    int
	hasTurn       bool
}

// check adds the size of Secrets, and returns an error if it exceeds the limits. It decompresses the releases as Helm does, and keeps nothing. Beyond
// HistoryLimits.Small it first waits for its turn.
func (s *historySecrets) check(size *historySize, secrets ...corev1.Secret) error {
	limits := s.limits
	if limits.ResponseLimits == (transport.ResponseLimits{}) {
		return nil
	}
	size.read.Limits, size.readCounted.Limits = limits.ResponseLimits, limits.Small
	for i := range secrets {
		if size.stored += int64(secrets[i].Size()); limits.Bytes > 0 && size.stored > limits.Bytes {
			return fmt.Errorf("the history of the Helm release: %w", &transport.TooLargeError{Limits: limits.ResponseLimits})
		}
		isExcepted := limits.TrustSigned && s.key != nil && hasSignature(s.key, &secrets[i])
		if !isExcepted {
			size.storedCounted += int64(secrets[i].Size())
		}
		if limits.Small.Bytes > 0 && size.storedCounted > limits.Small.Bytes {
			if err := limits.waitForTurn(s.ctx); err != nil {
				return err
			}
		}
		var refused error // an error of reading is one that Helm will report
		_, _ = io.Copy(historyWriter(func(text []byte) (int, error) {
			if _, err := size.read.Write(text); err != nil {
				refused = fmt.Errorf("the history of the Helm release: %w", err)
				return 0, refused
			}
			if isExcepted {
				return len(text), nil
			}
			if _, err := size.readCounted.Write(text); err != nil {
				refused = limits.waitForTurn(s.ctx)
			}
			return len(text), refused
		}), unpacked(&secrets[i]))
		if refused != nil {
			return refused
		}
	}
	return nil
}

// unpacked decompresses the revision in a Secret as Helm does. Of one that Helm cannot decompress, it returns a part.
func unpacked(secret *corev1.Secret) io.Reader {
	stored := bufio.NewReader(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(secret.Data["release"])))
	if magic, _ := stored.Peek(3); bytes.Equal(magic, []byte{0x1f, 0x8b, 0x08}) {
		content, err := gzip.NewReader(stored)
		if err != nil {
			return strings.NewReader("") // Helm will report it
		}
		return content
	}
	return stored
}

// historyWriter gets the decompressed text of a history.
type historyWriter func([]byte) (int, error)

// Write calls the function.
func (f historyWriter) Write(text []byte) (int, error) { return f(text) }

// soundReleases are the revisions in the Secrets of a namespace. It ignores a damaged revision, as Helm ignores a revision that it cannot decode: Helm
// would panic when it reads the state or a hook, would continue a release in the namespace that the revision names, and would change or delete the
// Secret of the name and version in it. It returns an error if the YAML of a revision exceeds the limits, before Helm parses it.
type soundReleases struct {
	*driver.Secrets
	client    *Client
	ctx       context.Context
	namespace string
}

// Get returns a revision.
func (s soundReleases) Get(key string) (release.Releaser, error) {
	found, err := s.Secrets.Get(key)
	if err != nil {
		return nil, err
	}
	if r, ok := found.(*helm.Release); s.isDamaged(found) || !ok || secretName(r.Name, r.Version) != key {
		return nil, fmt.Errorf("the Secret %s of a Helm release is damaged", key)
	}
	return found, s.checkYAML(found)
}

// Query returns revisions.
func (s soundReleases) Query(labels map[string]string) ([]release.Releaser, error) {
	found, err := s.Secrets.Query(labels)
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(found release.Releaser) bool {
		r, ok := found.(*helm.Release)
		return s.isDamaged(found) || !ok || r.Labels[helmNameLabel] != r.Name || r.Labels[helmVersionLabel] != strconv.Itoa(r.Version)
	})
	for _, found := range found {
		if r, ok := found.(*helm.Release); ok && isRemovalStatus(r.Labels[helmStatusLabel]) { // see storeStatus
			r.Info.Status = common.Status(r.Labels[helmStatusLabel])
		}
	}
	return found, s.checkYAML(found...)
}

// isDamaged reports whether a revision has no state, null in place of a hook or of a file of its chart, or another namespace than its Secret.
func (s soundReleases) isDamaged(found release.Releaser) bool {
	r, ok := found.(*helm.Release)
	return !ok || r.Info == nil || r.Namespace != s.namespace || slices.Contains(r.Hooks, nil) || r.Chart != nil && slices.Contains(r.Chart.Files, nil)
}

func (s soundReleases) checkYAML(found ...release.Releaser) error {
	limits := s.client.history
	for _, revision := range found {
		if limits.Nodes == 0 || limits.TrustSigned && s.client.isSigned(revision) {
			continue
		}
		for text := range parsedTexts(revision) {
			var err error
			if limits.Small.Values > 0 && registration.MostNodes(text) > limits.Small.Values {
				err = limits.waitForTurn(s.ctx)
			}
			if err == nil {
				err = CheckDocuments(text, limits.Nodes)
			}
			if err != nil {
				return fmt.Errorf("the history of the Helm release: %w", err)
			}
		}
	}
	return nil
}

// parsedTexts yields the texts of a revision that Helm may parse as YAML. It copies a manifest only when its turn comes, to save memory.
func parsedTexts(found release.Releaser) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		r, ok := found.(*helm.Release)
		if !ok || !yield([]byte(r.Manifest)) {
			return
		}
		for _, hook := range r.Hooks {
			if !yield([]byte(hook.Manifest)) {
				return
			}
		}
		if r.Chart == nil {
			return
		}
		for _, crd := range r.Chart.CRDObjects() {
			if !yield(crd.File.Data) {
				return
			}
		}
	}
}

// YAMLError is the error of CheckYAML and CheckDocuments. It contains no part of the text.
type YAMLError struct{ why string }

func (e *YAMLError) Error() string { return "YAML that " + e.why }

// CheckYAML returns a YAMLError if a text that is decoded as one document has more nodes than the limit. An alias counts as the nodes that it repeats.
// When the text is parsed, each node takes some 250 bytes of memory, up to 800, while it may have only two bytes in the text. Most texts need not be
// parsed for the check: they have few characters with which a node can begin, and no aliases. Any encoding but UTF-8 could hide nodes, and is refused.
func CheckYAML(text []byte, limit int) error {
	return checkYAML(text, limit, func(text []byte) []string { return []string{string(text)} })
}

// CheckDocuments is CheckYAML for a text of several documents, such as a manifest: all of them together have the limit. Each is parsed alone, so that
// the check needs the memory of one, and others, such as a ConfigMap with JSON in a string, may have more characters with which a node can begin. It
// must not check a text that is decoded undivided: such a text may have an anchor at another place than its parts.
func CheckDocuments(text []byte, limit int) error {
	return checkYAML(text, limit, func(text []byte) []string { return documentStart.Split(string(text), -1) })
}

func checkYAML(text []byte, limit int, divide func([]byte) []string) error {
	if !utf8.Valid(text) {
		return &YAMLError{"is not encoded in UTF-8"}
	}
	if registration.MostNodes(text) <= limit && !hasAliases(text) {
		return nil
	}
	tooMany := &YAMLError{fmt.Sprintf("has more than %d nodes", limit)}
	nodes := 0
	for _, part := range divide(text) {
		document := []byte(part)
		if registration.MostNodes(document) > limit {
			return tooMany
		}
		var root yaml.Node
		if err := yaml.Unmarshal(document, &root); err != nil {
			return &YAMLError{"cannot be parsed"}
		}
		if nodes += countNodes(&root, map[*yaml.Node]int{}, limit); nodes > limit {
			return tooMany
		}
	}
	return nil
}

// documentStart is where Helm and client-go divide a text into documents, even in a string.
var documentStart = regexp.MustCompile(`(?m)^---`)

// nodeSize is the number of bytes of a text that count as a further node: an alias can repeat a long text.
const nodeSize = 250

// countNodes counts a node and the nodes below it, including repetitions by aliases, and stops above the limit. known has the counts of nodes.
func countNodes(node *yaml.Node, known map[*yaml.Node]int, limit int) (nodes int) {
	if node.Kind == yaml.AliasNode {
		return countNodes(node.Alias, known, limit)
	}
	if count, isKnown := known[node]; isKnown {
		return count
	}
	known[node] = limit + 1 // until it is counted: it may contain itself
	nodes = 1 + len(node.Value)/nodeSize
	for _, below := range node.Content {
		if nodes += countNodes(below, known, limit); nodes > limit {
			return nodes
		}
	}
	known[node] = nodes
	return nodes
}

// hasAliases reports whether a text may have aliases: whether an alias (*NAME) of the text has the name of an anchor (&NAME), both where YAML allows them.
func hasAliases(text []byte) bool {
	if !bytes.ContainsRune(text, '&') || !bytes.ContainsRune(text, '*') {
		return false
	}
	const anchorsMax = 1000
	anchors := map[string]bool{}
	for name := range namesAfter(text, '&') {
		if anchors[string(name)] = true; len(anchors) > anchorsMax {
			return true
		}
	}
	for name := range namesAfter(text, '*') {
		if anchors[string(name)] {
			return true
		}
	}
	return false
}

// namesAfter returns the names that follow an indicator, if a space, the end of a line or another indicator precedes it.
func namesAfter(text []byte, indicator byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i, character := range text {
			if character != indicator || i > 0 && (isNameCharacter(text[i-1]) || bytes.IndexByte([]byte(`/=.>()*&;"'`), text[i-1]) >= 0) {
				continue
			}
			end := i + 1
			for end < len(text) && isNameCharacter(text[end]) {
				end++
			}
			if end > i+1 && !yield(text[i+1:end]) {
				return
			}
		}
	}
}

func isNameCharacter(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || c == '_' || c == '-'
}

// ChartBudget is the rest of the limits of a chart, with all archives in it and with its downloaded dependencies. Helm limits each archive alone.
type ChartBudget struct {
	bytes               int64
	files, dependencies int
}

// Limits of a chart.
const (
	chartBytes        = 64 << 20
	chartFiles        = 100_000
	chartDependencies = 100
)

// NewChartBudget returns the budget for one chart.
func NewChartBudget() *ChartBudget {
	return &ChartBudget{bytes: chartBytes, files: chartFiles, dependencies: chartDependencies}
}

// Unpack returns the files of an archive. It charges the budget for them, and for the files of archives among them, which Helm unpacks when it
// loads the chart.
func (b *ChartBudget) Unpack(data []byte) ([]*archive.BufferedFile, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("not a chart archive: %w", err)
	}
	// Helm limits the size of the files, but not of the tar headers between them.
	size, err := io.Copy(io.Discard, io.LimitReader(unzipped, b.bytes+1))
	if err != nil {
		return nil, fmt.Errorf("the archive is damaged: %w", err)
	}
	if err := b.charge(size); err != nil {
		return nil, err
	}
	files, err := archive.LoadArchiveFiles(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if b.files -= len(files); b.files < 0 {
		return nil, fmt.Errorf("the chart with its dependencies has more than %d files", chartFiles)
	}
	return files, b.unpackDependencies(files)
}

// AddDependency charges the budget for an archive that is added to the files of the chart.
func (b *ChartBudget) AddDependency(data []byte) error {
	if err := b.countDependency(); err != nil {
		return err
	}
	if err := b.charge(int64(len(data))); err != nil {
		return err
	}
	_, err := b.Unpack(data)
	return err
}

func (b *ChartBudget) countDependency() error {
	if b.dependencies--; b.dependencies < 0 {
		return fmt.Errorf("the chart has more than %d dependencies", chartDependencies)
	}
	return nil
}

func (b *ChartBudget) charge(size int64) error {
	if b.bytes -= size; b.bytes < 0 {
		return fmt.Errorf("the unpacked chart with its dependencies is larger than %d MiB", chartBytes>>20)
	}
	return nil
}

// dependencyArchive matches the names of the files that Helm unpacks when it loads a chart.
var dependencyArchive = regexp.MustCompile(`^(charts/[^/_.][^/]*/)*charts/[^/_.][^/]*\.tgz$`)

// unpackDependencies charges the budget for the archives among the files of a chart.
func (b *ChartBudget) unpackDependencies(files []*archive.BufferedFile) error {
	for _, f := range files {
		if !dependencyArchive.MatchString(f.Name) {
			continue
		}
		if err := b.countDependency(); err != nil {
			return err
		}
		if _, err := b.Unpack(f.Data); err != nil {
			return fmt.Errorf("dependency %s: %w", f.Name, err)
		}
	}
	return nil
}
