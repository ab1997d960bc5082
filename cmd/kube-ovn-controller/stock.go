// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// stockName is how Kube-OVN names its own controller: the Deployment, the container in it, and the Pods' label "app".
	stockName = "kube-ovn-controller"
	// stockNamespace is where Kube-OVN is usually installed.
	stockNamespace = "kube-system"

	serveFlag = "enable-nftable-lb-svc"
	lbFlag    = "enable-lb"

	// stockServesFlag is this process's own.
	stockServesFlag = "stock-serves"
)

// What the operator knows of Kube-OVN's own controller, where its flags do not say whether it serves Services.
const (
	stockServesAuto = "auto" // nothing: a release that may is taken for one that does
	stockServesYes  = "yes"
	stockServesNo   = "no"
)

// stock is what is there of Kube-OVN's own controller.
type stock struct {
	// serves is one of the above.
	serves      string
	deployments []*appsv1.Deployment
	pods        []*corev1.Pod
}

// claim is why Kube-OVN's own controller serves the same Services, or may; none: it does not.
type claim struct {
	why string
	// open: nothing says whether it does.
	open bool
}

func (c claim) none() bool { return c == claim{} }

// of says who has the claim, and how to end it.
func (c claim) of(who string) string {
	if c.open {
		return fmt.Sprintf("%s may serve the same Services (%s): set --%s=false there, or --%s=%s here",
			who, c.why, serveFlag, stockServesFlag, stockServesNo)
	}
	return fmt.Sprintf("%s serves the same Services already (%s): switch it off there with --%s=false, "+
		"or here with the same flag", who, c.why, serveFlag)
}

// The two would give and take the same rules and addresses in turns. So whoever is told to serve the same Services stands in the
// way, whether it runs at the moment or not; and so does a Pod that was told to before its Deployment was told otherwise, until it
// has ended. Objects that are this process's own do not count.

// rival says which Deployment is told to serve the same Services, and how to end that; "" where none is.
func (s *stock) rival(self identity) string {
	for _, d := range s.deployments {
		if self.isOf(d.Namespace, d.Name) {
			continue
		}
		if c := servesServices(d.Spec.Template.Spec.Containers, s.serves); !c.none() {
			return c.of("Deployment " + d.Namespace + "/" + d.Name)
		}
	}
	return ""
}

// leaving gives the claims of Pods that were told to serve the same Services and have not ended yet, by their names.
func (s *stock) leaving(self identity) map[string]claim {
	claims := map[string]claim{}
	for _, pod := range s.pods {
		if ended(pod) || self.isOf(pod.Namespace, stockName) {
			continue
		}
		if c := servesServices(pod.Spec.Containers, s.serves); !c.none() {
			claims[pod.Namespace+"/"+pod.Name] = c
		}
	}
	return claims
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// identity is this process as a Pod.
type identity struct{ namespace, name string }

// isOf tells whether the Pod is one of a Deployment's, whose names end with the hash of a template and five characters.
func (i identity) isOf(namespace, deployment string) bool {
	rest, ok := strings.CutPrefix(i.name, deployment+"-")
	return ok && i.namespace == namespace && podSuffix.MatchString(rest)
}

var podSuffix = regexp.MustCompile(`^[a-z0-9]+-[a-z0-9]{5}$`)

// servesServices says why Kube-OVN's own controller serves Services with these containers. Its own flags count most,
// then what the operator knows, then its version: releases after v1.17 may serve them by default.
func servesServices(containers []corev1.Container, known string) claim {
	c := stockContainer(containers)
	if c == nil {
		return claim{}
	}
	args := slices.Concat(c.Command, c.Args)
	if lb, _, told := boolFlag(args, lbFlag); told && !lb {
		return claim{}
	}
	switch on, said, told := boolFlag(args, serveFlag); {
	case told && on:
		return claim{why: said}
	case told || known == stockServesNo:
		return claim{}
	case known == stockServesYes:
		return claim{why: "--" + stockServesFlag + "=" + known}
	}
	if version := imageVersion(c.Image); afterV117(version) {
		return claim{open: true, why: version +
			" is newer than v1.17: releases after it may serve them by default, and nothing says whether this one does"}
	}
	return claim{}
}

// boolFlag gives the value of a boolean flag as pflag reads it, and the argument that says so: the last one counts. What cannot be read
// counts as true, to be on the safe side.
func boolFlag(args []string, name string) (value bool, said string, told bool) {
	for _, arg := range args {
		text, dashed := strings.CutPrefix(arg, "-")
		text = strings.TrimPrefix(text, "-")
		flag, assigned, hasValue := strings.Cut(text, "=")
		if !dashed || flag != name {
			continue
		}
		value, said, told = true, arg, true
		if parsed, err := strconv.ParseBool(assigned); hasValue && err == nil {
			value = parsed
		}
	}
	return value, said, told
}

var tag = regexp.MustCompile(`:(v?([0-9]+)\.([0-9]+)\.[0-9]+[^:/]*)$`)

// imageVersion gives the tag of an image if it is a version, else "".
func imageVersion(image string) string {
	name, _, _ := strings.Cut(image, "@") // a digest says nothing
	if m := tag.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return ""
}

func afterV117(version string) bool {
	m := tag.FindStringSubmatch(":" + version)
	if m == nil {
		return false
	}
	major, majorErr := strconv.Atoi(m[2])
	minor, minorErr := strconv.Atoi(m[3])
	return majorErr == nil && minorErr == nil && (major > 1 || major == 1 && minor > 17)
}
