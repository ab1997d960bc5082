// SPDX-License-Identifier: Apache-2.0

package packets

import "testing"

func TestDrawn(t *testing.T) {
	const table = `table ip kube-proxy {
	map service-ips {
		elements = { 10.96.1.1 . tcp . 1000 : goto service-a }
	}
	chain service-a {
		meta l4proto tcp dnat ip to numgen random mod 3 map { 0 : 10.2.0.1 . 8080, 1 : 10.2.0.2 . 8080, 2 : 10.2.0.3 . 8080 }
	}
	chain service-b {
		ip saddr @affinity-x goto endpoint-x
		numgen random mod 1 vmap { 0 : goto endpoint-x }
	}
}
`
	if got := drawn(table); got != 4 {
		t.Errorf("%d, want 4", got)
	}
}
