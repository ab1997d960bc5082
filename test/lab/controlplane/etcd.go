// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/errgroup"
)

// Erase removes all keys of etcd that begin with prefix, such as "/registry/kubeovn.io/iptables-dnat-rules/", in one transaction, and returns how
// many there were. The API server tells its watchers as if each object had been deleted, finalizers or not. It must be called in the
// network namespace of the control plane.
//
// This and Plant speak to etcd's JSON gateway, https://etcd.io/docs/v3.6/dev-guide/api_grpc_gateway/.
func Erase(ctx context.Context, prefix string) (int64, error) {
	if prefix == "" || prefix[len(prefix)-1] == 0xff {
		return 0, fmt.Errorf("not a prefix of keys: %q", prefix)
	}
	end := []byte(prefix)
	end[len(end)-1]++ // the first key behind those with the prefix
	answer, err := callEtcd(ctx, "deleterange", map[string][]byte{"key": []byte(prefix), "range_end": end})
	if err != nil {
		return 0, err
	}
	var deleted struct {
		Deleted int64 `json:"deleted,string"`
	}
	if err := json.Unmarshal(answer, &deleted); err != nil {
		return 0, fmt.Errorf("delete keys of etcd: %w: %s", err, answer)
	}
	return deleted.Deleted, nil
}

// Plant puts values into etcd by key, as the API server stores its objects. It tells its watchers as if each had been created. What no
// request could make, it does not check. It must be called in the network namespace of the control plane.
func Plant(ctx context.Context, values map[string][]byte) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(plantAtOnce)
	for key, value := range values {
		// Each in a transaction of its own: who watches goes on from a version, so that no two objects may have the same.
		group.Go(func() error {
			_, err := callEtcd(ctx, "put", map[string][]byte{"key": []byte(key), "value": value})
			return err
		})
	}
	return group.Wait()
}

const plantAtOnce = 16

// callEtcd calls a method of etcd's KV service.
func callEtcd(ctx context.Context, method string, request any) ([]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, etcdURL+"/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(post)
	if err != nil {
		return nil, fmt.Errorf("etcd, %s: %w", method, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("etcd, %s: %w", method, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("etcd, %s: %s: %s", method, response.Status, answer)
	}
	return answer, nil
}
