// SPDX-License-Identifier: Apache-2.0

// Package servingcert gives the webhook its serving certificate, and tells API servers whom to trust.
//
// An authority of its own lives in a Secret that all replicas share. Each replica signs a certificate for itself with it, in memory: serving
// keys never leave their process, and renewing one concerns nobody else. The authority's certificate goes into the
// ValidatingWebhookConfiguration as its caBundle.
//
//	         Secret                               each replica
//	current  ca.crt, ca.key      ── signs ──►  serving certificate, renewed after two thirds of its life
//	next     next.crt, next.key  ── trusted ─┐
//	former   old.crt             ── trusted ─┼─►  caBundle
//	                       current trusted ──┘
//
// No API server ever meets a certificate that it does not trust yet: a new authority is trusted for a while (Overlap) before anything is
// signed with it, and the former one stays trusted as long as it is valid. Who acts does not matter. Every replica does the same, and the
// Secret's resourceVersion decides between two that do it at once, so no leader is needed.
//
// Libraries that do this (open-policy-agent/cert-controller, as used by Gatekeeper) hand the keys out as a mounted Secret, which the kubelet
// brings up to a minute and more later than the caBundle reaches the API server, and replace the authority in one step: calls fail in
// between. They also need a manager of their own, with leave to watch every webhook configuration and Secrets. What is
// left to write here is a state machine of three steps, on crypto/x509 and client-go's util/cert and util/keyutil.
package servingcert
