// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestReadyz(t *testing.T) {
	for name, tc := range map[string]struct {
		waitsForLease bool
		caches        func() bool // nil: the work has not begun
		want          int
	}{
		"waits for its lease":      {true, nil, http.StatusOK},
		"alone, has not begun":     {false, nil, http.StatusServiceUnavailable},
		"caches are not there yet": {true, func() bool { return false }, http.StatusServiceUnavailable},
		"caches are there":         {false, func() bool { return true }, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHealth(tc.waitsForLease)
			if tc.caches != nil {
				h.setReady(tc.caches)
			}
			answer := httptest.NewRecorder()
			h.readyz(answer, httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody))
			if answer.Code != tc.want {
				t.Errorf("answers %d, want %d", answer.Code, tc.want)
			}
		})
	}
}
