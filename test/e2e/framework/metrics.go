// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/test/lab"
)

// Metrics are metric families by name.
type Metrics map[string]*dto.MetricFamily

// matching are the series of a metric that have all these labels.
func (m Metrics) matching(name string, labels map[string]string) []*dto.Metric {
	return slices.DeleteFunc(slices.Clone(m[name].GetMetric()), func(metric *dto.Metric) bool {
		have := labelsOf(metric)
		for name, value := range labels {
			if have[name] != value {
				return true
			}
		}
		return false
	})
}

func labelsOf(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, pair := range metric.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}

// Sum adds up the series of a counter or gauge that have all these labels.
func (m Metrics) Sum(name string, labels map[string]string) float64 {
	sum := 0.0
	for _, metric := range m.matching(name, labels) {
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
	}
	return sum
}

// Histogram adds up the series of a histogram that have all these labels.
func (m Metrics) Histogram(name string, labels map[string]string) (count uint64, sum float64) {
	for _, metric := range m.matching(name, labels) {
		count += metric.GetHistogram().GetSampleCount()
		sum += metric.GetHistogram().GetSampleSum()
	}
	return count, sum
}

// Series counts the series of a metric that have all these labels.
func (m Metrics) Series(name string, labels map[string]string) int {
	return len(m.matching(name, labels))
}

func parseMetrics(r io.Reader) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return families, nil
}

// labMetrics is where the lab's controller serves its metrics.
var labMetrics = fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.ControllerPort)

// metricsAt reads metrics.
func metricsAt(ctx context.Context, url string) (Metrics, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return parseMetrics(response.Body)
}

// ControllerMetrics are those of kube-ovn-controller, of each of its Pods where it runs in some. E2E_METRICS names the URL
// of one that does not run in a Pod.
func (c *Cluster) ControllerMetrics(ctx context.Context) ([]Metrics, error) {
	url := os.Getenv("E2E_METRICS")
	if c.Lab != nil {
		url = labMetrics
	}
	if url != "" {
		metrics, err := metricsAt(ctx, url)
		return []Metrics{metrics}, err
	}
	pods, err := c.Kube.CoreV1().Pods(SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=kube-ovn-controller"})
	if err != nil {
		return nil, err
	}
	if len(pods.Items) == 0 {
		return nil, errors.New("no Pod has the label app=kube-ovn-controller")
	}
	var all []Metrics
	for i := range pods.Items {
		data, err := c.Kube.CoreV1().Pods(SystemNamespace).ProxyGet("http", pods.Items[i].Name, "10660", "metrics", nil).DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		metrics, err := parseMetrics(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		all = append(all, metrics)
	}
	return all, nil
}

// StartTime is when the lab's controller was started, in seconds since 1970.
func (c *Cluster) StartTime(ctx context.Context) float64 {
	GinkgoHelper()
	metrics, err := metricsAt(ctx, labMetrics)
	must(err, "read the controller's metrics")
	return metrics.Sum("process_start_time_seconds", nil)
}

// Calls counts the runs of nat-gateway.sh in a gateway, by verb.
type Calls map[string]int

// Calls reads how often the controller called a gateway since it started.
func (c *Cluster) Calls(ctx context.Context, gateway string) Calls {
	GinkgoHelper()
	all, err := c.ControllerMetrics(ctx)
	must(err, "read the controller's metrics")
	calls := Calls{}
	for _, metrics := range all {
		for _, metric := range metrics["kube_ovn_nat_gateway_calls_total"].GetMetric() {
			labels := labelsOf(metric)
			if labels["gateway"] == gateway {
				calls[labels["verb"]] += int(metric.GetCounter().GetValue())
			}
		}
	}
	return calls
}

// Since are the calls that came after earlier ones.
func (c Calls) Since(before Calls) Calls {
	after := Calls{}
	for verb, n := range c {
		if n > before[verb] {
			after[verb] = n - before[verb]
		}
	}
	return after
}

// String implements fmt.Stringer.
func (c Calls) String() string {
	var items []string
	for _, verb := range slices.Sorted(maps.Keys(c)) {
		items = append(items, fmt.Sprintf("%s: %d", verb, c[verb]))
	}
	return strings.Join(items, ", ")
}
