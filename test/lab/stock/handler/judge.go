// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// changed tells whether a rule is another one than was programmed. Affinity is not looked at, nor is any annotation.
func changed(rule *kubeovnv1.IptablesDnatRule, eip string) bool {
	return programmed(rule) != wanted(rule, eip)
}

// due tells whether a rule has to be programmed: for the first time, anew in a new pod, or because it has changed.
func due(rule *kubeovnv1.IptablesDnatRule, eip string) bool {
	return !rule.Status.Ready || changed(rule, eip)
}

// complaint gives the first line of what a call said on standard error by which it has failed, whatever its exit code was.
func complaint(stderr string) string {
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "Warning:") {
			return line
		}
	}
	return ""
}

// duplicate gives an exclusive rule that has the identity of another one.
func duplicate(rule *kubeovnv1.IptablesDnatRule, all []*kubeovnv1.IptablesDnatRule) error {
	for _, other := range all {
		if other.Name == rule.Name || other.Spec.EIP != rule.Spec.EIP || other.Spec.ExternalPort != rule.Spec.ExternalPort ||
			!strings.EqualFold(other.Spec.Protocol, rule.Spec.Protocol) || isShare(rule) && isShare(other) {
			continue
		}
		return fmt.Errorf("dnat %s duplicates %s: eip %s, external port %s", rule.Name, other.Name, rule.Spec.EIP, rule.Spec.ExternalPort)
	}
	return nil
}

// settings are the two ConfigMaps of the gateways.
type settings struct {
	enabled           bool
	image, namePrefix string
}

func readSettings(image, gates *corev1.ConfigMap) settings {
	s := settings{namePrefix: "vpc-nat-gw-"}
	if image != nil {
		s.image = strings.TrimSpace(image.Data["image"])
		if prefix := image.Data["natGwNamePrefix"]; prefix != "" {
			s.namePrefix = prefix
		}
	}
	// Nothing but "false", or that nobody says anything, switches them off.
	s.enabled = gates != nil && gates.Data["enable-vpc-nat-gw"] != "false"
	return s
}

// firstPod gives the one pod of a gateway that is programmed; nil while there is none that runs.
func firstPod(pods []*corev1.Pod) *corev1.Pod {
	pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning
	})
	if len(pods) == 0 {
		return nil
	}
	return slices.MinFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
}
