// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// pinsACall is how many clients nft is told of at a time: it takes a kilobyte for each.
const pinsACall = 50_000

// pin puts clients into the map of an identity's pins, as their connections would.
func (g *gateway) pin(ctx context.Context, s sharenat.Share, clients int) error {
	sum := md5.Sum(fmt.Appendf(nil, "%s:%d:%s", s.EIP, s.Port, s.Protocol))
	for from := 0; from < clients; from += pinsACall {
		var b bytes.Buffer
		fmt.Fprintf(&b, "add element ip kube-ovn aff-%x { ", sum[:6])
		for i := from; i < min(clients, from+pinsACall); i++ {
			// Clients that the checks do not come from.
			fmt.Fprintf(&b, "100.%d.%d.%d timeout %ds : %d, ", 64+i>>16, i>>8&255, i&255, timeout, 1+i%len(s.Backends))
		}
		b.Truncate(b.Len() - len(", "))
		b.WriteString(" }\n")
		if _, err := g.run(ctx, b.Bytes(), "nft", "-f", "-"); err != nil {
			return err
		}
	}
	return nil
}
