// SPDX-License-Identifier: Apache-2.0

// Package nfnl speaks netlink to netfilter: messages written into one buffer, answers read as they come. It is small on purpose. The
// libraries that there are hold a whole dump in memory, ask for an answer to each message of a batch, and put all elements of a set into
// one attribute, which ends at 64 KiB: a gateway has dumps of a million entries and batches of half a million messages.
package nfnl
