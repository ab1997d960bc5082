// SPDX-License-Identifier: Apache-2.0

package sharenat

import "testing"

func TestEventAction(t *testing.T) {
	a, b := EventAction("ClaimPort", "port 80 belongs to a"), EventAction("ClaimPort", "port 81 belongs to a")
	if a == b {
		t.Errorf("two notes, one series: %s", a)
	}
	if again := EventAction("ClaimPort", "port 80 belongs to a"); again != a {
		t.Errorf("one note, two series: %s and %s", a, again)
	}
}
