// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"os"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"
)

func TestMonitoring(t *testing.T) {
	data, err := os.ReadFile("../../dist/monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := sigsyaml.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	const rule, controllers, webhooks = "PrometheusRule/kube-system/kube-ovn-nftable-lb", "PodMonitor/kube-system/kube-ovn-nftable-lb", "PodMonitor/kube-system/kube-ovn-webhook"
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			values := set(l.enabled, true, "webhook.enabled", true, "monitoring.enabled", true, "monitoring.labels", map[string]any{"release": "prometheus"})
			got := mustRender(t, l.chart, request{values: values, cluster: cluster(t, stockCRD)}).objects
			if diff := gocmp.Diff(want, got[rule].Object["spec"]); diff != "" {
				t.Errorf("alerts (-dist/monitoring +chart):\n%s", diff)
			}
			for monitor, pods := range map[string]string{controllers: "kube-ovn-nftable-lb", webhooks: "kube-ovn-webhook"} {
				checkMonitor(t, got[monitor], got["Deployment/kube-system/"+pods])
			}
			without := mustRender(t, l.chart, request{values: set(l.enabled, true, "monitoring.enabled", true), cluster: cluster(t, stockCRD)}).objects
			if without[webhooks] != nil || without[controllers] == nil {
				t.Error("a PodMonitor of a webhook that is not there, or none of the controller")
			}
		})
	}
}

// checkMonitor looks whether a PodMonitor chooses the Pods of a Deployment, and a port that they have.
func checkMonitor(t *testing.T, monitor, deployment *unstructured.Unstructured) {
	t.Helper()
	if monitor == nil || deployment == nil {
		t.Fatalf("PodMonitor %v of Deployment %v", monitor, deployment)
	}
	if monitor.GetLabels()["release"] != "prometheus" {
		t.Errorf("labels %v", monitor.GetLabels())
	}
	selector, _, _ := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
	want, _, _ := unstructured.NestedStringMap(deployment.Object, "spec", "selector", "matchLabels")
	if diff := gocmp.Diff(want, selector); diff != "" {
		t.Errorf("selector of %s (-Deployment +PodMonitor):\n%s", monitor.GetName(), diff)
	}
	endpoints, _, _ := unstructured.NestedSlice(monitor.Object, "spec", "podMetricsEndpoints")
	ports := podSpecs(t, []*unstructured.Unstructured{deployment})[deployment.GetName()].Containers[0].Ports
	for _, endpoint := range endpoints {
		for i := range ports {
			if endpoint.(map[string]any)["port"] == ports[i].Name {
				return
			}
		}
	}
	t.Errorf("PodMonitor %s asks %v, the Pods have %v", monitor.GetName(), endpoints, ports)
}
