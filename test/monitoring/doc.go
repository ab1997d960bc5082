// SPDX-License-Identifier: Apache-2.0

// Package monitoring reads docs/monitoring.md and holds it against the metrics that there are: those of both controllers and of
// the webhook, which run here against fake API servers until each has shown all of its metrics (world_test.go).
//
// test/alerts holds the alert rules and the dashboard against the document, so that they only use what is really served. It is a module of
// its own, for the parser and the engine of Prometheus.
package monitoring
