// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Audit is whose requests are written down, and where: one audit.k8s.io/v1 Event a line, of level Metadata.
type Audit struct {
	Users []string
	Log   string
}

// auditArgs writes the API server's audit policy and gives the flags for it.
func (c *ControlPlane) auditArgs() ([]string, error) {
	audit := c.config.Audit
	if audit == nil {
		return nil, nil
	}
	policy, err := json.Marshal(map[string]any{
		"apiVersion": "audit.k8s.io/v1",
		"kind":       "Policy",
		// That a request came in says nothing about whether it was allowed.
		"omitStages": []string{"RequestReceived"},
		"rules":      []map[string]any{{"level": "Metadata", "users": audit.Users}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode audit policy: %w", err)
	}
	path := filepath.Join(c.config.Dir, "audit-policy.json")
	if err := os.WriteFile(path, policy, 0o600); err != nil {
		return nil, fmt.Errorf("write audit policy: %w", err)
	}
	return []string{"--audit-policy-file=" + path, "--audit-log-path=" + audit.Log}, nil
}
