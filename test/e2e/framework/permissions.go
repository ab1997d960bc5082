// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeovn/kube-ovn/test/lab"
)

// Permission is one verb on one resource, where and for which object it holds: "" is everywhere, and for all of them.
type Permission struct {
	Verb, Group, Resource, Namespace, Name string
}

// String gives "patch apps/deployments in kube-system of web".
func (p Permission) String() string {
	text := p.Verb + " " + p.Group + "/" + p.Resource
	if p.Namespace != "" {
		text += " in " + p.Namespace
	}
	if p.Name != "" {
		text += " of " + p.Name
	}
	return text
}

// covers tells whether a use is one of what is permitted.
func (p Permission) covers(use Permission) bool {
	return p.Verb == use.Verb && p.Group == use.Group && p.Resource == use.Resource &&
		(p.Namespace == "" || p.Namespace == use.Namespace) && (p.Name == "" || p.Name == use.Name)
}

// Granted is all that the roles among some objects permit.
func Granted(objects []*unstructured.Unstructured) []Permission {
	GinkgoHelper()
	var out []Permission
	for _, object := range objects {
		if kind := object.GetKind(); kind != "Role" && kind != "ClusterRole" {
			continue
		}
		var role rbacv1.Role // a ClusterRole's rules are the same
		must(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role), "decode %s", object.GetName())
		for _, rule := range role.Rules {
			out = append(out, permissions(&rule, object.GetNamespace())...)
		}
	}
	return out
}

func permissions(rule *rbacv1.PolicyRule, namespace string) []Permission {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	var out []Permission
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					out = append(out, Permission{verb, group, resource, namespace, name})
				}
			}
		}
	}
	return out
}

// auditEvent is what matters of an audit.k8s.io/v1 Event.
type auditEvent struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup, Resource, Subresource, Namespace, Name string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Annotations map[string]string `json:"annotations"`
}

// uses are the permissions that a request needed, with those that the API server asks for on the way.
func (e *auditEvent) uses() []Permission {
	ref := &e.ObjectRef
	resource := ref.Resource
	if ref.Subresource != "" {
		resource += "/" + ref.Subresource
	}
	use := Permission{e.Verb, ref.APIGroup, resource, ref.Namespace, ref.Name}
	created, listed := use, use
	created.Verb, listed.Verb = "create", "list"
	switch {
	case e.Verb == "patch" && e.ResponseStatus.Code == http.StatusCreated:
		return []Permission{use, created} // an apply that made the object
	case resource == "pods/exec" && e.Verb == "get":
		return []Permission{use, created} // since Kubernetes 1.35, of whoever opens a WebSocket
	case e.Verb == "watch" && strings.Contains(e.RequestURI, "sendInitialEvents=true"):
		return []Permission{use, listed} // an informer's list, which it asks for as such where the API server cannot stream it
	}
	return []Permission{use}
}

// Unused are the permissions which an account was granted and has not used since an offset of the audit log.
func (c *Cluster) Unused(granted []Permission, account string, offset int64) []string {
	GinkgoHelper()
	file, err := os.Open(c.Lab.Log(lab.AuditLog))
	must(err, "open the audit log")
	defer file.Close()
	_, err = file.Seek(offset, io.SeekStart)
	must(err, "read the audit log")
	left, err := unused(granted, lab.Account(account), file)
	must(err, "read the audit log")
	return left
}

// unused names, in order, what a user was granted and has not used in an audit log.
func unused(granted []Permission, user string, log io.Reader) ([]string, error) {
	left := slices.Clone(granted)
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("decode %q: %w", lines.Text(), err)
		}
		if event.User.Username != user || event.Annotations["authorization.k8s.io/decision"] != "allow" {
			continue
		}
		for _, use := range event.uses() {
			left = slices.DeleteFunc(left, func(p Permission) bool { return p.covers(use) })
		}
	}
	texts := make([]string, len(left))
	for i, p := range left {
		texts[i] = p.String()
	}
	slices.Sort(texts)
	return slices.Compact(texts), lines.Err()
}
