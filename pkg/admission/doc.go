// SPDX-License-Identifier: Apache-2.0

// Package admission is the validating webhook: it says at once, at kubectl's prompt, what the controllers would otherwise say later in a
// condition.
//
//	AdmissionReview ─► handler.go ─► Snapshot ─► Policy.Decide ─► Verdict ─► AdmissionReview
//	                                (caches)       (pure)        │     ▲
//	                                                             ▼     │
//	                                       live reads of what a refusal rests on (live.go)
//
// The decision is a pure function of the request and of a snapshot of what is there. What the controllers judge too, it judges by the same
// functions (pkg/sharenat).
//
// The caches may be behind the API server, and the webhook may be away. So:
//
//   - Nothing is refused for what the cache alone says. A refusal names the objects it rests on; they are read live, and the decision
//     is made again, before it is spoken. An EIP that the cache does not have is read live too. An EIP that does not exist is no reason to
//     refuse a rule: objects are applied in any order, and the rule waits for its EIP.
//   - What is admitted though it should not have been (two conflicting rules at the same instant, a webhook that was down) is
//     settled by the controllers, which are the authority: an identity has one owner there, derived from what exists.
//   - Updates that change nothing but metadata pass unjudged, and what is being deleted counts for nothing: neither finalizers
//     nor a cleaning up ever wait for this webhook.
//
// Only the controllers' own users may set, change or remove the labels that say which Service owns a rule.
//
// The rules of one identity have one affinity and the same source ranges, and a rule that joins them has to agree. What is there already is
// changed in place, rule by rule, since to delete all but one would leave clients without backends: by the Service controller, which may make
// its rules differ in both, and by hand in the affinity, with a warning that says which rules are left. The handler keeps all of them
// programmed meanwhile, with what the first by name says.
//
// Like the controllers, the package registers on informer factories that it is given and starts none.
package admission
