// SPDX-License-Identifier: Apache-2.0

// Package alerts holds the alert rules and the dashboard of dist/monitoring against the metrics that there are, and plays series to
// the rules. Prometheus' own parser and engine do it, which is why this is a module of its own.
package alerts
