package transport

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"
)

// maxHeaders limits the headers of one response, in bytes. The headers of an API server have about one kilobyte.
const maxHeaders = 64 << 10

// maxQuery limits the query of one request, in bytes. A server chooses the token with which the client continues a list, and could have the client keep
// one of megabytes until it answers. API servers choose tokens of less than a kilobyte.
const maxQuery = 16 << 10

var errLongQuery = fmt.Errorf("the query of a request is longer than %d kB: the token with which the server continues a list is too long", maxQuery>>10)

// ResponseLimits are limits of one response. 0 is no limit.
type ResponseLimits struct {
	Bytes int64 // after decompression
	// Values limits the values of JSON: a decoded value takes many times the memory of its text. With such a limit a response that is
	// not JSON is not decoded, because a server can answer in a format that it was not asked for.
	Values int
}

// Limited limits how much of a response the process reads, because client-go keeps a whole response in memory.
type Limited struct {
	Next http.RoundTripper
	Body ResponseLimits
	// Watch limits a watch as a whole, and Event each of its events in JSON: client-go has a whole event in memory before it compares its size
	// with a limit of its own. The answer of a server that does not begin the watch is a response as any other.
	Watch, Event ResponseLimits
	// Large, if not nil, limits how many responses that are larger than Small are in memory at the same time. Of the response of an error, the client
	// then gets no more than Small: an error may be kept for longer than a turn, and its code and the beginning of its text suffice.
	Small ResponseLimits
	Large *Turn
}

// limitsKey is the key of WithLimits.
type limitsKey struct{}

// WithLimits returns a context for requests whose responses have these limits instead of Limited.Body.
func WithLimits(ctx context.Context, l ResponseLimits) context.Context {
	return context.WithValue(ctx, limitsKey{}, l)
}

// TooLargeError is the error of reading a response that is larger than the limits.
type TooLargeError struct {
	Limits ResponseLimits
	// Event is whether one event of a watch is too large, and not the response.
	Event bool
}

func (e *TooLargeError) Error() string {
	what := "response"
	if e.Event {
		what = "event of the watch"
	}
	text := fmt.Sprintf("the %s is larger than %d kB", what, e.Limits.Bytes>>10)
	if e.Limits.Values > 0 {
		text += fmt.Sprintf(" or has more than %d values", e.Limits.Values)
	}
	return text + ", the limit of what this process reads"
}

// RoundTrip sends the request and limits the body of the response.
func (l Limited) RoundTrip(request *http.Request) (*http.Response, error) {
	if len(request.URL.RawQuery) > maxQuery {
		return nil, errLongQuery // the turn of the response with the token goes on
	}
	if l.Large != nil {
		l.Large.End() // ends the turn of the previous response
	}
	if limits, isSet := request.Context().Value(limitsKey{}).(ResponseLimits); isSet {
		l.Body = limits
	}
	if l.Body.Values > 0 {
		request = request.Clone(request.Context())
		request.Header.Set("Accept", onlyJSON(request.Header.Get("Accept")))
	}
	response, err := l.Next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if mediaType := response.Header.Get("Content-Type"); l.Body.Values > 0 && !isJSON(mediaType) {
		response.Header.Set("Content-Type", "text/plain")
	}
	body := &limitedBody{ReadCloser: response.Body, ctx: request.Context(), read: SizeCounter{Limits: l.Body}, small: l.Small, large: l.Large}
	if watch, _ := strconv.ParseBool(request.URL.Query().Get("watch")); watch && response.StatusCode == http.StatusOK {
		body.read.Limits, body.large = l.Watch, nil // a watch may last for hours, and its events are decoded one by one
		body.event = SizeCounter{Limits: l.Event, EachObject: l.Event != ResponseLimits{}}
	}
	body.isError = l.Large != nil && response.StatusCode >= http.StatusBadRequest
	response.Body = body
	return response, nil
}

// onlyJSON removes other types from a header Accept.
func onlyJSON(accept string) string {
	types := slices.DeleteFunc(strings.Split(accept, ","), func(mediaType string) bool { return !isJSON(mediaType) })
	return cmp.Or(strings.Join(types, ","), jsonType)
}

const jsonType = "application/json"

func isJSON(contentType string) bool {
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && (mediaType == jsonType || strings.HasSuffix(mediaType, "+json"))
}

// WrappedRoundTripper lets client-go reach the transport to close its connections.
func (l Limited) WrappedRoundTripper() http.RoundTripper { return l.Next }

type limitedBody struct {
	io.ReadCloser
	ctx   context.Context
	read  SizeCounter
	event SizeCounter // without limits, unless the response is a watch
	small ResponseLimits
	large *Turn
	// isError is whether the body ends where it exceeds small.
	isError bool
	// isLarge is set by Read, unless large is nil, when the response turns out to be larger than small.
	isLarge bool
	// exceeded is the error of the read that exceeded the limits, and of all later ones: client-go reads on after an error, to use the
	// connection again.
	exceeded error
}

// Read fails as soon as the body is larger than the limits. io.LimitReader would end it there, as if it were complete.
func (b *limitedBody) Read(into []byte) (int, error) {
	if b.exceeded != nil {
		return 0, b.exceeded
	}
	if room := b.read.Limits.Bytes + 1 - b.read.bytes; b.read.Limits.Bytes > 0 && int64(len(into)) > room {
		into = into[:room]
	}
	n, err := b.ReadCloser.Read(into)
	for _, counter := range []*SizeCounter{&b.read, &b.event} {
		if _, b.exceeded = counter.Write(into[:n]); b.exceeded != nil {
			return 0, b.exceeded
		}
	}
	if b.isError && b.read.Exceeds(b.small) {
		b.exceeded = io.EOF
		return 0, io.EOF
	}
	if b.large != nil && !b.isLarge && b.read.Exceeds(b.small) {
		if err := b.large.beginBody(b.ctx); err != nil {
			return 0, err
		}
		b.isLarge = true
	}
	return n, err
}

// Close lets the client read its next large response.
func (b *limitedBody) Close() error {
	if b.large != nil && b.isLarge {
		b.isLarge = false
		b.large.endBody()
	}
	return b.ReadCloser.Close()
}

// SizeCounter counts the bytes and the values of JSON that are written to it: a value follows a comma or an opening bracket outside of a string.
type SizeCounter struct {
	Limits ResponseLimits
	// EachObject is whether the limits are for each of the JSON objects that are written one after another, and not for all of them. What is
	// between two objects counts for the second one.
	EachObject bool

	bytes            int64
	values, depth    int
	inString, escape bool
}

// Write returns a TooLargeError when the limits are exceeded.
func (c *SizeCounter) Write(text []byte) (int, error) {
	for rest := text; len(rest) > 0; {
		length, ended := len(rest), false
		if c.Limits.Values > 0 || c.EachObject {
			length, ended = c.countValues(rest)
		}
		c.bytes += int64(length)
		if c.Exceeds(c.Limits) {
			return 0, &TooLargeError{Limits: c.Limits, Event: c.EachObject}
		}
		if rest = rest[length:]; ended {
			c.bytes, c.values = 0, 0
		}
	}
	return len(text), nil
}

// Exceeds reports whether more than a limit was written.
func (c *SizeCounter) Exceeds(l ResponseLimits) bool {
	return l.Bytes > 0 && c.bytes > l.Bytes || l.Values > 0 && c.values > l.Values
}

// countValues returns the length of the text that it has counted: all, or with EachObject the rest of the object, which has ended then.
func (c *SizeCounter) countValues(text []byte) (length int, ended bool) {
	for i, character := range text {
		switch {
		case c.escape:
			c.escape = false
		case c.inString:
			c.escape, c.inString = character == '\\', character != '"'
		case character == '"':
			c.inString = true
		case character == ',':
			c.values++
		case character == '{', character == '[':
			c.values++
			c.depth++
		case character == '}', character == ']':
			if c.depth--; c.EachObject && c.depth == 0 {
				return i + 1, true
			}
		}
	}
	return len(text), false
}

// Turn is the right of a client to have one large response in memory. The semaphore has one unit for each large response that may be in memory.
// A turn lasts as long as the response may be in memory, which no single function sees:
//
//  1. limitedBody.Read begins it when the response turns out to be larger than Limited.Small.
//  2. Limited.RoundTrip ends it when the client sends its next request, because then the client has decoded the response. It does not while the
//     client reads a large response.
//  3. The owner of the client ends it with Unpin after the last request.
//
// A client has one turn at most. If it sends requests at the same time, it reads their large responses one after another: each waits until the
// one before is closed. Pin makes the turn last over several requests, until Unpin: Helm keeps and parses a history while it sends further requests.
type Turn struct {
	Of *semaphore.Weighted

	mu            sync.Mutex
	taken, pinned bool
	body          chan struct{} // has an element while the client reads a large response; created by bodies
}

// bodies returns the channel body.
func (t *Turn) bodies() chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.body == nil {
		t.body = make(chan struct{}, 1)
	}
	return t.body
}

// beginBody waits until the client reads no other large response, and then for a turn. It returns the error of a context that ends first.
func (t *Turn) beginBody(ctx context.Context) error {
	bodies := t.bodies()
	select {
	case bodies <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := t.Begin(ctx)
	if err != nil {
		<-bodies
	}
	return err
}

// endBody is called after a successful beginBody.
func (t *Turn) endBody() { <-t.bodies() }

// Begin waits for a turn, unless the client has one already. It returns the error of a context that ends first.
func (t *Turn) Begin(ctx context.Context) error {
	if t.isTaken() {
		return nil
	}
	// Do not hold the lock meanwhile: End would wait with it, and the requests that call it.
	if err := t.Of.Acquire(ctx, 1); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken { // by a call at the same time
		t.Of.Release(1)
	}
	t.taken = true
	return nil
}

func (t *Turn) isTaken() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.taken
}

// Pin is Begin for a turn that End does not end.
func (t *Turn) Pin(ctx context.Context) error {
	if err := t.Begin(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pinned = true
	return nil
}

// End ends the turn, if the client has one, it is not pinned, and the client reads no large response.
func (t *Turn) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.pinned && len(t.body) == 0 {
		t.end()
	}
}

// Unpin ends the turn, if the client has one, even if it is pinned.
func (t *Turn) Unpin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end()
}

func (t *Turn) end() {
	if t.taken {
		t.Of.Release(1)
	}
	t.taken, t.pinned = false, false
}
