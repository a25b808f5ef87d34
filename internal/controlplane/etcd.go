package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"
)

// etcdTimeout limits one request to etcd.
const etcdTimeout = 30 * time.Second

// registryPrefix is the prefix of all keys of the API server, and registryEnd is the first key after them.
var registryPrefix, registryEnd = []byte("/registry/"), []byte("/registry0")

// etcdClient uses the JSON gateway of etcd, without the API server. etcd's client library would be a large dependency for two calls.
type etcdClient struct{ http *http.Client }

// etcdKey is a key with its value. Revision is the revision of its last write.
type etcdKey struct {
	Key      []byte `json:"key"`
	Value    []byte `json:"value,omitempty"`
	Revision int64  `json:"mod_revision,string,omitempty"`
	Lease    int64  `json:"lease,string,omitempty"`
}

// etcdOperation puts or deletes one key.
type etcdOperation struct {
	Put    *etcdKey `json:"requestPut,omitempty"`
	Delete *etcdKey `json:"requestDeleteRange,omitempty"`
}

func newEtcdClient(dir string) *etcdClient {
	socket := filepath.Join(dir, etcdSocket)
	return &etcdClient{http: &http.Client{Timeout: etcdTimeout, Transport: &http.Transport{
		MaxIdleConnsPerHost: 16,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// keys lists all keys of the API server in ascending order.
func (e *etcdClient) keys(ctx context.Context, withValues bool) ([]etcdKey, error) {
	var answer struct {
		Keys []etcdKey `json:"kvs"`
	}
	err := e.call(ctx, "range", map[string]any{"key": registryPrefix, "range_end": registryEnd, "keys_only": !withValues}, &answer)
	return answer.Keys, err
}

// apply runs the operations in transactions and returns the revision of each operation. A transaction has one key of each resource: all its
// events have the same revision, and a client of the API server that resumes its watch after the first of them would not get the others.
func (e *etcdClient) apply(ctx context.Context, operations []etcdOperation) (revisions []int64, err error) {
	var transactions [][]int // indexes of operations
	next := map[string]int{}
	for i, operation := range operations {
		resource := resourceOf(operation.key())
		n := next[resource]
		next[resource]++
		if n == len(transactions) {
			transactions = append(transactions, nil)
		}
		transactions[n] = append(transactions[n], i)
	}
	revisions = make([]int64, len(operations))
	for _, transaction := range transactions {
		var some []etcdOperation
		for _, i := range transaction {
			some = append(some, operations[i])
		}
		var answer struct {
			Header struct {
				Revision int64 `json:"revision,string"`
			} `json:"header"`
		}
		if err := e.call(ctx, "txn", map[string]any{"success": some}, &answer); err != nil {
			return nil, err
		}
		for _, i := range transaction {
			revisions[i] = answer.Header.Revision
		}
	}
	return revisions, nil
}

func (o etcdOperation) key() string {
	if o.Put != nil {
		return string(o.Put.Key)
	}
	return string(o.Delete.Key)
}

// resourceOf returns the part of a key that all objects of its resource have: "secrets" of /registry/secrets/NAMESPACE/NAME and
// "fleet.cattle.io/clusters" of /registry/fleet.cattle.io/clusters/NAMESPACE/NAME.
func resourceOf(key string) string {
	parts := strings.SplitN(strings.TrimPrefix(key, string(registryPrefix)), "/", 3)
	if len(parts) == 3 && strings.Contains(parts[0], ".") {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

func (e *etcdClient) call(ctx context.Context, method string, question, answer any) error {
	reply, err := e.post(ctx, "kv/"+method, question)
	if err != nil {
		return err
	}
	defer reply.Close()
	body, err := io.ReadAll(reply)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, answer)
}

// post returns the body of the response, which the caller closes.
func (e *etcdClient) post(ctx context.Context, method string, question any) (io.ReadCloser, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd/v3/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := e.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return nil, errors.Join(fmt.Errorf("etcd answers %s to %s: %s", response.Status, method, text), err)
	}
	return response.Body, nil
}
