package transport

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// maxHeaders limits the headers of one response, in bytes. The headers of an API server have about one kilobyte.
const maxHeaders = 64 << 10

// Limited limits how much of a response the process reads, because client-go keeps a whole response in memory. A watch is not
// limited as a whole: client-go limits each of its events to 16 MiB.
type Limited struct {
	Next http.RoundTripper
	Body int64 // bytes of one response, after decompression
}

// TooLargeError is the error of reading a response that is larger than the limit.
type TooLargeError struct {
	Limit int64 // in bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the response is larger than %d kB, which no response of an API server to this request can be", e.Limit>>10)
}

// RoundTrip sends the request and limits the body of the response.
func (l Limited) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.Next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if watch, _ := strconv.ParseBool(request.URL.Query().Get("watch")); !watch {
		response.Body = &limitedBody{ReadCloser: response.Body, left: l.Body, limit: l.Body}
	}
	return response, nil
}

// WrappedRoundTripper lets client-go reach the transport to close its connections.
func (l Limited) WrappedRoundTripper() http.RoundTripper { return l.Next }

type limitedBody struct {
	io.ReadCloser
	left, limit int64
}

// Read fails as soon as the body has more bytes than the limit. io.LimitReader would end it there, as if it were complete.
func (b *limitedBody) Read(into []byte) (int, error) {
	if int64(len(into)) > b.left+1 {
		into = into[:b.left+1]
	}
	n, err := b.ReadCloser.Read(into)
	if int64(n) > b.left {
		return int(b.left), &TooLargeError{Limit: b.limit}
	}
	b.left -= int64(n)
	return n, err
}
