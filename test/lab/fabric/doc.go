// SPDX-License-Identifier: Apache-2.0

// Package fabric plays OVN's data plane with what every Linux kernel has: a bridge for each Subnet, a router namespace
// for each Vpc, and an external network with clients. It also plays Kube-OVN's IPAM: which NICs a Pod has, in which
// Subnets, with which addresses, and the annotations that say so.
//
//	                 client1 client2 client3   upstream (.1)
//	                    |       |       |         |
//	  node ---ext0---[        bridge "ext", 203.0.113.0/24        ]
//	   |                                  | net1
//	  ovn0 100.64.0.2                 gateway pod
//	   | 100.64.0.1                       | eth0 (lanIp)
//	vpc-ovn-cluster               [ bridge of Subnet a ]----pods
//	   | .1                               | .1
//	[ bridge of Subnet ovn-default ]   vpc-a (router of Vpc a)
//	   |
//	  pods
//
// All bridges live in a namespace of their own ("fabric"), never in the one that plays the node: with bridge netfilter
// on, the node's nat rules would see bridged frames.
//
// Topology is level-triggered: the informers' Subnets and Vpcs are planned into bridges, legs and routes (pure), and the
// difference to what stands is applied.
//
// What stock Kube-OVN refuses is not processed here either (package stockrules): neither router nor bridge comes of it, and
// its Pods wait. The log, an event, and a Subnet's conditions say why. They also say it of gateways, EIPs and rules made by
// hand, which others process.
package fabric
