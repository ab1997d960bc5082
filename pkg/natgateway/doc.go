// SPDX-License-Identifier: Apache-2.0

// Package natgateway runs VPC NAT gateways and keeps in them what the API server says: VpcNatGateway → workload,
// IptablesEIP → address, IptablesDnatRule → identity. The rules in the API server are its only input from the Service
// controller, which it does not know.
//
//	informers ──► desired state of a gateway (dnat.go, pure) ─┐
//	                                                          ├─► plan (plan.go, pure) ──► calls (exec.go) ──► pod
//	listing of a pod (sharenat.ParseListing) ─────────────────┘                              │
//	status, finalizers (rule.go, eip.go, gateway.go) ◄──── what each pod holds (pod.go) ◄────┘
//
// Everything is level-triggered. There are four queues:
//
//   - gateways: the workload, the finalizer and the status of a VpcNatGateway (gateway.go);
//   - pods: one gateway pod is listed when its content is not known, compared and brought up to date (pod.go). Each key
//     has a goroutine of its own while it is worked on, so a pod that does not answer delays nobody else;
//   - EIPs: one worker, so that two EIPs never get the same address (eip.go, allocator.go);
//   - rules: labels and finalizer before a rule is programmed, status after it (rule.go).
//
// What a pod holds is remembered under its UID and the ID of its container. It is not known after a start, a restart
// of the container, a failed call or when a check is due; then one listing tells it, and only the difference is sent.
//
// Objects of kubeovn.io are only ever patched: newer versions may have fields that this one does not know.
package natgateway
