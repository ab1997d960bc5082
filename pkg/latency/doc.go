// SPDX-License-Identifier: Apache-2.0

// Package latency measures how long a change of endpoints takes from its EndpointSlice to the gateway that has to hold it.
//
//	EndpointSlice ──Changed──► Tracker ──Expect──► what the gateway should hold ──Check──► histogram
//	     (lbservice, an event)          (lbservice, a pass)                 (natgateway, a call that is done)
//
// The time stays in the process: what Service controller and gateway handler say to each other goes by rules in the API server,
// and a rule would be written once more for every change if it carried the time along. So this works where both run in one
// process. Where another process runs the gateways, the Service controller itself looks whether the rules are ready, which adds the
// way of their status through the API server.
//
// The time is the slice's own, written by Kubernetes' controller for just this: the annotation
// endpoints.kubernetes.io/last-change-trigger-time; where it is not there, it is the time at which the change was seen. Changes from
// before the process started are not measured, and neither are those that change nothing in a gateway.
package latency
