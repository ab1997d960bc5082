// SPDX-License-Identifier: Apache-2.0

// Package supervise starts, stops and watches the processes a lab is made of. Each writes to a log file of its own; one
// that ends without having been asked to is reported with the end of its log.
package supervise
