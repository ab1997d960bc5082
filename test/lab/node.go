// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

func (l *Lab) startNode(ctx context.Context) error { return nil }

func (l *Lab) waitUsable(ctx context.Context) error { return nil }

func podNetns(pod *corev1.Pod) string { return "pod-" + string(pod.UID) }
