// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Erase removes all keys of etcd that begin with prefix, such as "/registry/kubeovn.io/iptables-dnat-rules/", in one transaction, and returns how
// many there were. The API server tells its watchers as if each object had been deleted, finalizers or not. It must be called in the
// network namespace of the control plane.
//
// It speaks to etcd's JSON gateway, https://etcd.io/docs/v3.6/dev-guide/api_grpc_gateway/.
func Erase(ctx context.Context, prefix string) (int64, error) {
	if prefix == "" || prefix[len(prefix)-1] == 0xff {
		return 0, fmt.Errorf("not a prefix of keys: %q", prefix)
	}
	end := []byte(prefix)
	end[len(end)-1]++ // the first key behind those with the prefix
	body, err := json.Marshal(map[string][]byte{"key": []byte(prefix), "range_end": end})
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, etcdURL+"/v3/kv/deleterange", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("delete keys of etcd: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, fmt.Errorf("delete keys of etcd: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("delete keys of etcd: %s: %s", response.Status, answer)
	}
	var deleted struct {
		Deleted int64 `json:"deleted,string"`
	}
	if err := json.Unmarshal(answer, &deleted); err != nil {
		return 0, fmt.Errorf("delete keys of etcd: %w: %s", err, answer)
	}
	return deleted.Deleted, nil
}
