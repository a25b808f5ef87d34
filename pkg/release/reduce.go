package release

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// A removal needs little of a revision: of each object in the manifest its kind, its name and few marks, the hooks of a removal, and the annotations of
// the chart. HistoryLimits.Reduces makes historySecrets reduce each revision to that while it decompresses it, so that the chart, the values and the
// contents of the objects are never in memory. A reduced revision is signed in memory if the stored one is. It is never stored; only its status
// is, see storeStatus.

// errReduced is the error of storing a reduced revision. Helm's removal stores the state of the release and ignores an error.
var errReduced = errors.New("the revision was reduced to what its removal needs, and is not stored")

// errNotJSON is the error of reading a revision that Helm cannot decode.
var errNotJSON = errors.New("the release is not JSON")

// reducedRevision is what is left of a revision, with the names of the fields of helm.Release.
type reducedRevision struct {
	Name      string            `json:"name,omitempty"`
	Namespace string            `json:"namespace,omitempty"`
	Version   int               `json:"version,omitempty"`
	Info      json.RawMessage   `json:"info,omitempty"`
	Chart     *reducedChart     `json:"chart,omitempty"`
	Manifest  string            `json:"manifest,omitempty"`
	Hooks     []json.RawMessage `json:"hooks,omitempty"`
}

type reducedChart struct {
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// reducedHead is what is left of an object in a manifest.
type reducedHead struct {
	APIVersion string `json:"apiVersion" yaml:"apiVersion"`
	Kind       string `json:"kind" yaml:"kind"`
	Metadata   struct {
		Name        string            `json:"name" yaml:"name"`
		Namespace   string            `json:"namespace,omitempty" yaml:"namespace"`
		Labels      map[string]string `json:"labels,omitempty" yaml:"labels"`
		Annotations map[string]string `json:"annotations,omitempty" yaml:"annotations"`
	} `json:"metadata" yaml:"metadata"`
	Items any `json:"-" yaml:"items"`
}

// secretSize is about the memory that a Secret takes in addition to its texts.
const secretSize = 1 << 10

// reduce returns a Secret with the reduced revision of a Secret, and adds its size. The content of one that Helm cannot decode stays unreadable.
func (s *historySecrets) reduce(size *historySize, secret *corev1.Secret) (*corev1.Secret, error) {
	isSigned := s.key != nil && hasSignature(s.key, secret)
	kept := &corev1.Secret{
		ObjectMeta: reducedMeta(secret), Data: map[string][]byte{"release": []byte("?")},
	}
	r := &revisionReader{history: s, size: size, Reader: bufio.NewReader(&scannedReader{Reader: unpacked(secret), ctx: s.ctx, size: size, limit: s.limits.Scanned})}
	if err := r.add(secretSize + kept.Size()); err != nil {
		return nil, err
	}
	revision, err := r.revision()
	var tooLarge *transport.TooLargeError
	switch {
	case r.refused != nil:
		return nil, r.refused
	case s.ctx.Err() != nil:
		return nil, context.Cause(s.ctx)
	case errors.As(err, &tooLarge):
		return nil, fmt.Errorf("the history of the Helm release: %w", err)
	case err == nil:
		text, err := json.Marshal(revision)
		if err != nil {
			break
		}
		kept.Data["release"] = make([]byte, base64.StdEncoding.EncodedLen(len(text)))
		base64.StdEncoding.Encode(kept.Data["release"], text)
	}
	if isSigned {
		kept.Annotations = map[string]string{signatureAnnotation: signature(s.key, kept.Namespace, kept)}
		for _, status := range removalStatuses {
			removed := *secret
			removed.Labels = labels.Merge(secret.Labels, labels.Set{helmStatusLabel: string(status)})
			kept.Annotations[signatureOf(string(status))] = signature(s.key, kept.Namespace, &removed)
		}
	}
	return kept, nil
}

// removalStatuses are the statuses that are stored of a reduced revision: while its objects are removed, and after that.
var removalStatuses = []common.Status{common.StatusUninstalling, common.StatusUninstalled}

func isRemovalStatus(status string) bool {
	return slices.Contains(removalStatuses, common.Status(status))
}

// signatureOf is the annotation of a reduced revision with the signature of the stored one for a status. It is never stored under this name.
func signatureOf(status string) string { return signatureAnnotation + "-" + status }

// storeStatus stores, in the label of a revision, that its removal has begun, or that only its history is left: if the removal does not end, an agent
// must not find that the release is deployed.
func (s *historySecrets) storeStatus(ctx context.Context, reduced *corev1.Secret) error {
	kept, status := s.read[reduced.Name], reduced.Labels[helmStatusLabel]
	if kept == nil || !isRemovalStatus(status) || status == string(common.StatusUninstalled) && !s.storesRemoved {
		return errReduced
	}
	metadata := map[string]any{"resourceVersion": kept.ResourceVersion, "labels": map[string]string{helmStatusLabel: status}}
	if signature, isSigned := kept.Annotations[signatureOf(status)]; isSigned {
		metadata["annotations"] = map[string]string{signatureAnnotation: signature}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	stored, err := s.SecretInterface.Patch(ctx, kept.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: registration.FieldManager})
	if err == nil {
		kept.ResourceVersion = stored.ResourceVersion
	}
	return err
}

// scannedReader counts what is decompressed of all revisions.
type scannedReader struct {
	io.Reader
	ctx   context.Context
	size  *historySize
	limit int64
}

// Read fails as soon as there is more than the limit, and when the context ends: a Secret of some kilobytes can take seconds.
func (c *scannedReader) Read(into []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.Reader.Read(into)
	if c.size.scanned += int64(n); c.limit > 0 && c.size.scanned > c.limit {
		return 0, &transport.TooLargeError{Limits: transport.ResponseLimits{Bytes: c.limit}}
	}
	return n, err
}

// revisionReader reads the JSON of a revision. It has no more in memory than it keeps.
type revisionReader struct {
	*bufio.Reader
	history *historySecrets
	size    *historySize
	refused error // why the history is refused, whatever the rest of it is
}

// add adds to the size of what is kept of the history; a negative size is that of something that is kept no longer.
func (r *revisionReader) add(bytes int) error {
	r.size.kept += int64(bytes)
	return r.checkSize()
}

func (r *revisionReader) checkSize() error {
	limits := r.history.limits
	exceeds := func(l transport.ResponseLimits) bool {
		return l.Bytes > 0 && r.size.kept > l.Bytes || l.Values > 0 && r.size.keptValues > l.Values
	}
	if exceeds(limits.Small) {
		r.refused = r.waitForTurn()
	}
	if r.refused == nil && exceeds(limits.ResponseLimits) {
		r.refused = fmt.Errorf("the history of the Helm release: %w", &transport.TooLargeError{Limits: limits.ResponseLimits})
	}
	return r.refused
}

// waitForTurn waits for the turn of a large history, once.
func (r *revisionReader) waitForTurn() error {
	if r.size.hasTurn {
		return nil
	}
	err := r.history.limits.waitForTurn(r.history.ctx)
	r.size.hasTurn = err == nil
	return err
}

func (r *revisionReader) revision() (*reducedRevision, error) {
	revision := &reducedRevision{}
	decode := func(into any) error {
		raw, err := r.raw()
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, into)
	}
	err := r.object(func(name string) (err error) {
		switch name {
		case "name":
			return decode(&revision.Name)
		case "namespace":
			return decode(&revision.Namespace)
		case "version":
			return decode(&revision.Version)
		case "info":
			revision.Info, err = r.raw()
			return err
		case "chart":
			revision.Chart = &reducedChart{}
			return r.object(func(name string) (err error) {
				if name != "metadata" {
					return r.skip()
				}
				revision.Chart.Metadata, err = r.raw()
				return err
			})
		case "manifest":
			heads := &headWriter{reader: r}
			if err = r.text(heads.WriteByte); err == nil {
				err = heads.endDocument()
			}
			revision.Manifest = heads.manifest.String()
			return err
		case "hooks":
			return r.array(func() error {
				values := r.size.keptValues
				raw, err := r.raw()
				if err != nil {
					return err
				}
				var hook *helm.Hook
				if err := json.Unmarshal(raw, &hook); err != nil {
					return err
				}
				isOfRemoval := func(e helm.HookEvent) bool { return e == helm.HookPreDelete || e == helm.HookPostDelete }
				if hook != nil && !slices.ContainsFunc(hook.Events, isOfRemoval) {
					r.size.keptValues = values
					return r.add(-len(raw))
				}
				revision.Hooks = append(revision.Hooks, raw)
				return nil
			})
		}
		return r.skip()
	})
	return revision, err
}

// next returns the next character that is not white space.
func (r *revisionReader) next() (byte, error) {
	for {
		c, err := r.ReadByte()
		if err != nil || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c, err
		}
	}
}

// object reads an object, and calls a function for each of its fields, which reads the value. It skips any other value.
func (r *revisionReader) object(field func(name string) error) error {
	return r.elements('{', func() error {
		name := []byte{}
		if c, err := r.next(); err != nil || c != '"' {
			return cmp.Or(err, errNotJSON)
		}
		if err := r.UnreadByte(); err != nil {
			return err
		}
		const longest = 64 // of the names that matter; others may be longer
		err := r.text(func(c byte) error {
			if len(name) < longest {
				name = append(name, c)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if c, err := r.next(); err != nil || c != ':' {
			return cmp.Or(err, errNotJSON)
		}
		return field(string(name))
	})
}

// array reads an array, and calls a function for each of its elements, which reads the value. It skips any other value.
func (r *revisionReader) array(element func() error) error { return r.elements('[', element) }

func (r *revisionReader) elements(begin byte, element func() error) error {
	c, err := r.next()
	if err != nil {
		return err
	}
	if c != begin {
		if err := r.UnreadByte(); err != nil {
			return err
		}
		return r.skip()
	}
	for {
		switch c, err = r.next(); {
		case err != nil:
			return err
		case c == begin+2: // the closing bracket: ASCII has ']' two behind '[', and '}' two behind '{'
			return nil
		case c == ',':
			continue
		}
		if err := r.UnreadByte(); err != nil {
			return err
		}
		if err := element(); err != nil {
			return err
		}
	}
}

func (r *revisionReader) skip() error { return r.value(func(byte, bool) error { return nil }) }

// raw returns a value as it is, and keeps it.
func (r *revisionReader) raw() (raw []byte, err error) {
	err = r.value(func(c byte, inString bool) error {
		raw = append(raw, c)
		if !inString && (c == ',' || c == '{' || c == '[') {
			r.size.keptValues++
		}
		return r.add(1)
	})
	return raw, err
}

// value reads a value.
func (r *revisionReader) value(into func(c byte, inString bool) error) error {
	c, err := r.next()
	inString, escaped := false, false
	for depth, first := 0, true; err == nil; c, err = r.ReadByte() {
		isScalar := depth == 0 && !inString
		if isScalar && !first && strings.IndexByte(",]} \t\r\n", c) >= 0 { // behind a number or a word
			return r.UnreadByte()
		}
		first = false
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped, inString = c == '\\', c != '"'
		case c == '"':
			inString = true
		case c == '{', c == '[':
			depth++
		case c == '}', c == ']':
			depth--
		}
		if err := into(c, inString); err != nil {
			return err
		}
		if depth <= 0 && !inString && (c == '"' || c == '}' || c == ']') {
			return nil
		}
	}
	return err
}

// text reads a string, and passes on the bytes that it stands for. It skips null.
func (r *revisionReader) text(into func(byte) error) error {
	c, err := r.next()
	if err != nil {
		return err
	}
	if c != '"' {
		if err := r.UnreadByte(); err != nil {
			return err
		}
		return r.skip()
	}
	for {
		if c, err = r.ReadByte(); err != nil {
			return err
		}
		plain := []byte{c}
		switch c {
		case '"':
			return nil
		case '\\':
			if plain, err = r.escaped(); err != nil {
				return err
			}
		}
		for _, c := range plain {
			if err := into(c); err != nil {
				return err
			}
		}
	}
}

// escaped reads what follows a backslash in a string.
func (r *revisionReader) escaped() ([]byte, error) {
	c, err := r.ReadByte()
	if err != nil {
		return nil, err
	}
	if at := strings.IndexByte("nrtbf", c); at >= 0 {
		return []byte{"\n\r\t\b\f"[at]}, nil
	}
	if c != 'u' {
		return []byte{c}, nil
	}
	const digits, pair = 4, 6 // of \uXXXX without and with the beginning
	code, err := r.Peek(digits)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(string(code), 16, 16)
	if err != nil {
		return nil, errNotJSON
	}
	_, _ = r.Discard(digits)
	character := rune(number)
	if utf16.IsSurrogate(character) {
		character = utf8.RuneError
		if second, err := r.Peek(pair); err == nil && bytes.HasPrefix(second, []byte(`\u`)) {
			low, err := strconv.ParseUint(string(second[2:]), 16, 16)
			if both := utf16.DecodeRune(rune(number), rune(low)); err == nil && both != utf8.RuneError {
				character = both
				_, _ = r.Discard(pair)
			}
		}
	}
	return utf8.AppendRune(nil, character), nil
}

// headWriter gets a manifest, and keeps the heads of its objects. Of each document it keeps the fields of heads at the beginning of a line, with the lines
// that belong to them, and any text of which it cannot tell where its fields are: indented documents, and those in JSON. Agents store objects as
// sigs.k8s.io/yaml writes them. Of rarer layouts, such as a flow mapping whose lines are not indented, it may keep a part that cannot be parsed, and Helm
// then reports that the revision is damaged.
//
// A crafted text may give Helm other objects than the original. That gives its author nothing: they could have written the other objects.
type headWriter struct {
	reader   *revisionReader
	manifest bytes.Buffer
	head     []byte // of the document
	line     []byte // the beginning of the line, until isDecided
	// skipsSpace is whether the line follows the beginning of a document. inKeptField is whether the lines that follow belong to a field that is kept.
	isDecided, isKept, inKeptField, skipsSpace bool
	hasField                                   bool // whether a field of the document has begun
}

// headFields are the fields of an object that are kept. A list has items, which are kept as they are.
var headFields = []string{"apiVersion", "kind", "metadata", "items"}

// separator begins a document.
const separator = "---"

// longestField is longer than each of headFields with a colon.
const longestField = 12

// WriteByte writes a byte of the manifest.
func (h *headWriter) WriteByte(c byte) error {
	if !h.isDecided {
		if h.skipsSpace && (c == ' ' || c == '\t') {
			return nil
		}
		h.skipsSpace = false
		h.line = append(h.line, c)
		switch first := h.line[0]; {
		case string(h.line) == separator:
			h.line, h.skipsSpace = h.line[:0], true
			return h.endDocument()
		case len(h.line) < len(separator) && string(h.line) == separator[:len(h.line)]:
			return nil
		case isNameCharacter(first) && first != '-' && c != ':' && c != '\n' && len(h.line) < longestField:
			return nil
		}
		h.decide()
		line := h.line
		h.line = h.line[:0]
		return h.write(line...)
	}
	return h.write(c)
}

// decide decides from the beginning of a line whether the line is kept.
func (h *headWriter) decide() {
	h.isDecided = true
	first, inKeptField := h.line[0], h.inKeptField || !h.hasField
	switch {
	case first == '#':
		h.isKept = false
		return
	case strings.IndexByte(" \t\r\n-}]", first) >= 0: // continues the field
	case isNameCharacter(first):
		if name, _, found := bytes.Cut(h.line, []byte(":")); found || len(h.line) >= longestField {
			inKeptField, h.hasField = slices.Contains(headFields, strings.TrimSpace(string(name))), true
		}
	default: // a quoted name, JSON, or what else YAML permits
		inKeptField, h.hasField = true, true
	}
	h.inKeptField, h.isKept = inKeptField, inKeptField
}

func (h *headWriter) write(text ...byte) error {
	if text[len(text)-1] == '\n' {
		h.isDecided = false
	}
	if !h.isKept {
		return nil
	}
	h.head = append(h.head, text...)
	return h.reader.add(len(text))
}

// endDocument adds the head of the document to the manifest.
func (h *headWriter) endDocument() error {
	if len(h.line) > 0 { // the manifest ends in the first characters of a line
		h.decide()
		if err := h.write(h.line...); err != nil {
			return err
		}
	}
	head := h.head
	h.head, h.line = head[:0], h.line[:0]
	h.isDecided, h.isKept, h.inKeptField, h.hasField = false, false, false, false
	if len(bytes.TrimSpace(head)) == 0 {
		return h.reader.add(-len(head))
	}
	limits := h.reader.history.limits
	if limits.Small.Values > 0 && registration.MostNodes(head) > limits.Small.Values {
		if h.reader.refused = h.reader.waitForTurn(); h.reader.refused != nil {
			return h.reader.refused
		}
	}
	if limits.Nodes > 0 {
		if err := CheckYAML(head, limits.Nodes); err != nil {
			h.reader.refused = fmt.Errorf("the history of the Helm release: %w", err)
			return h.reader.refused
		}
	}
	var object reducedHead
	reduced := head // Helm reports that it is damaged
	if yaml.Unmarshal(head, &object) == nil && object.Items == nil && object.Kind != "" {
		object.Metadata.Labels = withNames(object.Metadata.Labels, SetHashLabel)
		object.Metadata.Annotations = withNames(object.Metadata.Annotations, kube.ResourcePolicyAnno, helm.HookAnnotation)
		if text, err := json.Marshal(object); err == nil {
			reduced = text
		}
	}
	before := h.manifest.Len()
	fmt.Fprintf(&h.manifest, "---\n%s\n", bytes.TrimRight(reduced, "\n"))
	return h.reader.add(h.manifest.Len() - before - len(head))
}

// withNames returns the entries with these names.
func withNames(all map[string]string, names ...string) map[string]string {
	kept := map[string]string{}
	for _, name := range names {
		if value, found := all[name]; found {
			kept[name] = value
		}
	}
	return kept
}

// reducedMeta returns the metadata that a removal reads.
func reducedMeta(object metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
		Labels: withNames(object.GetLabels(), revisionLabels...),
	}
}
