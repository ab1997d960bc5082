// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	"github.com/kubeovn/kube-ovn/test/lab"
)

// metrics are those of a process, at one moment.
type metrics map[string]*dto.MetricFamily

// sum adds up the values of a metric's series that a function selects by their labels.
func (m metrics) sum(name string, selects func(labels map[string]string) bool) float64 {
	total := 0.0
	for _, series := range m[name].GetMetric() {
		labels := map[string]string{}
		for _, pair := range series.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		if selects(labels) {
			total += series.GetCounter().GetValue() + series.GetGauge().GetValue() + series.GetUntyped().GetValue()
		}
	}
	return total
}

// with selects the series that have a label's value.
func with(pairs ...string) func(map[string]string) bool {
	return func(labels map[string]string) bool {
		for i := 0; i < len(pairs); i += 2 {
			if labels[pairs[i]] != pairs[i+1] {
				return false
			}
		}
		return true
	}
}

func parseMetrics(r io.Reader) (metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return families, nil
}

// controllerMetrics are the controller's.
func (p *place) controllerMetrics(ctx context.Context) (metrics, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.ControllerPort), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept-Encoding", "identity") // To compress it would cost the controller more than all the rest.
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return parseMetrics(response.Body)
}

// serverMetrics are the API server's.
func (p *place) serverMetrics(ctx context.Context) (metrics, error) {
	data, err := p.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	return parseMetrics(bytes.NewReader(data))
}

// cpu is what has been used of the processors, in seconds.
type cpu struct {
	machine, server float64
}

func (c cpu) since(before cpu) cpu { return cpu{c.machine - before.machine, c.server - before.server} }

// cpu is what the API server and the whole machine have used so far.
func (p *place) cpu(ctx context.Context) (cpu, error) {
	m, err := p.serverMetrics(ctx)
	if err != nil {
		return cpu{}, err
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return cpu{}, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return cpu{}, err
	}
	all := stat.CPUTotal
	return cpu{all.User + all.Nice + all.System + all.IRQ + all.SoftIRQ, m.sum("process_cpu_seconds_total", with())}, nil
}

// calls counts the controller's calls to gateways, by verb; "" counts all.
func (p *place) calls(ctx context.Context, verb string) (float64, error) {
	m, err := p.controllerMetrics(ctx)
	return m.sum("kube_ovn_nat_gateway_calls_total", func(labels map[string]string) bool { return verb == "" || labels["verb"] == verb }), err
}

// writes counts what the API server was asked to write, of the kinds that the controller writes.
func (p *place) writes(ctx context.Context, resources ...string) (float64, error) {
	m, err := p.serverMetrics(ctx)
	if err != nil {
		return 0, err
	}
	wanted := map[string]bool{}
	for _, resource := range resources {
		wanted[resource] = true
	}
	verbs := map[string]bool{"POST": true, "PUT": true, "PATCH": true, "APPLY": true, "DELETE": true}
	return m.sum("apiserver_request_total", func(labels map[string]string) bool {
		// Calls of gateways are POSTs, or GETs, of pods/exec.
		return wanted[labels["resource"]] && verbs[labels["verb"]] && labels["subresource"] != "exec"
	}), nil
}

// written are the kinds that the controller writes, events aside.
var written = []string{"iptables-dnat-rules", "iptables-eips", "vpc-nat-gateways", "services", "pods", "statefulsets"}
