// SPDX-License-Identifier: Apache-2.0

package stock

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

var (
	element = regexp.MustCompile(`([0-9.]+) \. (6|17) \. (\d+) : goto (dnat-[0-9a-f]+)`)
	chain   = regexp.MustCompile(`(?s)\tchain (\S+) \{\n(.*?)\n\t\}`)
	pair    = regexp.MustCompile(`: ([0-9.]+) \. (\d+)`)
	door    = regexp.MustCompile(`: goto (ep-[0-9a-f]+-[0-9a-f]+)`)
	to      = regexp.MustCompile(`dnat to ([0-9.]+):(\d+)`)
	timeout = regexp.MustCompile(`ip saddr timeout (\d+)s`)
)

// Shares reads from the text of "nft -n -T list table ip kube-ovn" what Script has put there.
func Shares(table string) ([]sharenat.Share, error) {
	chains := map[string]string{}
	for _, match := range chain.FindAllStringSubmatch(table, -1) {
		chains[match[1]] = match[2]
	}
	var shares []sharenat.Share
	for _, match := range element.FindAllStringSubmatch(table, -1) {
		eip, err := sharenat.ParseIPv4(match[1])
		if err != nil {
			return nil, err
		}
		port, err := sharenat.ParsePort(match[3])
		if err != nil {
			return nil, err
		}
		share := sharenat.Share{Identity: sharenat.Identity{EIP: eip, Port: port, Protocol: map[string]sharenat.Protocol{"6": sharenat.TCP, "17": sharenat.UDP}[match[2]]}}
		body, ok := chains[match[4]]
		if !ok {
			return nil, fmt.Errorf("%s leads to chain %s, which is not there", share.Identity, match[4])
		}
		targets := pair.FindAllStringSubmatch(body, -1)
		for _, name := range door.FindAllStringSubmatch(body, -1) {
			targets = append(targets, to.FindAllStringSubmatch(chains[name[1]], -1)...)
			if seconds := timeout.FindStringSubmatch(chains[name[1]]); seconds != nil {
				share.Affinity.ClientIP = true
				if _, err := fmt.Sscan(seconds[1], &share.Affinity.TimeoutSeconds); err != nil {
					return nil, err
				}
			}
		}
		for _, target := range targets {
			backend, err := netip.ParseAddrPort(strings.Join(target[1:], ":"))
			if err != nil {
				return nil, err
			}
			share.Backends = append(share.Backends, sharenat.Backend{Addr: backend})
		}
		share.Normalize()
		shares = append(shares, share)
	}
	return shares, nil
}
