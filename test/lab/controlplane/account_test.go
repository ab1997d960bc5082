// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// Pods can be made once the service account is there, which comes after the managers are healthy.
func TestServiceAccountIsAwaited(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasSuffix(r.URL.Path, "/namespaces/default/serviceaccounts/default") {
			t.Errorf("asked for %s", r.URL.Path)
		}
		if asked++; asked < 3 {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		_, _ = w.Write([]byte(`{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"default","namespace":"default"}}`))
	}))
	defer server.Close()
	plane := &ControlPlane{Admin: &rest.Config{Host: server.URL}}
	if err := plane.awaitServiceAccount(t.Context()); err != nil || asked != 3 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	server.Close()
	if err := plane.awaitServiceAccount(t.Context()); err == nil {
		t.Error("no error where nobody answers")
	}
}
