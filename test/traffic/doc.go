// SPDX-License-Identifier: Apache-2.0

// Package traffic is a client that measures what its users would notice: who answers, who does not, and for how long.
// It talks to agnhost netexec, over TCP (HTTP, GET /hostname) and UDP ("hostname").
//
//   - Spread opens a number of connections, one after the other, each a new one, and says who answered.
//   - Stream opens new connections at a constant rate until it is told to stop, and says which failed, how, and for how
//     long there was no answer.
//   - Hold keeps connections open and uses them, and says which were cut, and whose they were.
//   - Flow sends datagrams from one and the same port, and says who answered and when nobody did.
//
// A client has to run where its packets are to come from: in a network namespace, as a process of its own. So each of
// these also is a subcommand of kube-ovn-traffic, whose reports are lines of JSON, the same structs as here. A program
// that calls Init first thing in main is that command as well, and Start runs it and follows its reports:
//
//	options := traffic.StreamOptions{Endpoint: traffic.Endpoint{Target: "203.0.113.10:80"}, Rate: 200}
//	stream, err := traffic.Start[traffic.Stream](exec.Command("ip", append([]string{"netns", "exec", "client1"}, options.Argv()...)...))
//	…
//	result, err := stream.Stop(ctx)
package traffic
