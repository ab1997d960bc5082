// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnused(t *testing.T) {
	const allowed = `"annotations":{"authorization.k8s.io/decision":"allow"}`
	user := func(name string) string { return `"user":{"username":"` + name + `"}` }
	pods := func(verbs ...string) []Permission {
		var out []Permission
		for _, verb := range verbs {
			out = append(out, Permission{Verb: verb, Resource: "pods"})
		}
		return out
	}
	for _, tc := range []struct {
		name    string
		granted []Permission
		log     []string
		want    []string
	}{
		{name: "nothing was done", granted: pods("get", "create"), want: []string{"create /pods", "get /pods"}},
		{
			name: "only one of two", granted: pods("get", "list"),
			log:  []string{`{"verb":"get",` + user("me") + `,"objectRef":{"resource":"pods","namespace":"a","name":"p"},` + allowed + `}`},
			want: []string{"list /pods"},
		},
		{
			name: "by somebody else, and not allowed", granted: pods("get"),
			log: []string{
				`{"verb":"get",` + user("you") + `,"objectRef":{"resource":"pods"},` + allowed + `}`,
				`{"verb":"get",` + user("me") + `,"objectRef":{"resource":"pods"},"annotations":{"authorization.k8s.io/decision":"forbid"}}`,
			},
			want: []string{"get /pods"},
		},
		{
			name: "in another namespace, and of another name",
			granted: []Permission{
				{"get", "coordination.k8s.io", "leases", "kube-system", "mine"}, {"get", "coordination.k8s.io", "leases", "a", ""},
			},
			log:  []string{`{"verb":"get",` + user("me") + `,"objectRef":{"apiGroup":"coordination.k8s.io","resource":"leases","namespace":"kube-system","name":"other"},` + allowed + `}`},
			want: []string{"get coordination.k8s.io/leases in a", "get coordination.k8s.io/leases in kube-system of mine"},
		},
		{
			name: "a subresource is not its resource", granted: append(pods("patch"), Permission{Verb: "patch", Resource: "pods/status"}),
			log:  []string{`{"verb":"patch",` + user("me") + `,"objectRef":{"resource":"pods","subresource":"status"},` + allowed + `}`},
			want: []string{"patch /pods"},
		},
		{
			name: "a list that is streamed", granted: pods("list", "watch"),
			log:  []string{`{"verb":"watch","requestURI":"/api/v1/pods?sendInitialEvents=true&watch=true",` + user("me") + `,"objectRef":{"resource":"pods"},` + allowed + `}`},
			want: []string{},
		},
		{
			name: "a watch alone is no list", granted: pods("list", "watch"),
			log:  []string{`{"verb":"watch","requestURI":"/api/v1/pods?watch=true",` + user("me") + `,"objectRef":{"resource":"pods"},` + allowed + `}`},
			want: []string{"list /pods"},
		},
		{
			name: "an apply that creates", granted: pods("create", "patch"),
			log:  []string{`{"verb":"patch",` + user("me") + `,"objectRef":{"resource":"pods"},"responseStatus":{"code":201},` + allowed + `}`},
			want: []string{},
		},
		{
			name: "an apply that does not", granted: pods("create", "patch"),
			log:  []string{`{"verb":"patch",` + user("me") + `,"objectRef":{"resource":"pods"},"responseStatus":{"code":200},` + allowed + `}`},
			want: []string{"create /pods"},
		},
		{
			name: "a WebSocket", granted: []Permission{{Verb: "get", Resource: "pods/exec"}, {Verb: "create", Resource: "pods/exec"}},
			log:  []string{`{"verb":"get",` + user("me") + `,"objectRef":{"resource":"pods","subresource":"exec"},` + allowed + `}`},
			want: []string{},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := unused(tc.granted, "me", strings.NewReader(strings.Join(tc.log, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := unused(nil, "me", strings.NewReader("{")); err == nil {
		t.Error("half a line is read")
	}
}
