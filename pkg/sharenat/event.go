// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"crypto/sha256"
	"encoding/hex"
)

// EventAction gives the action of an event with a note. client-go's recorder takes events of one object, reason and action for
// one series, and shows the first one's note for all of them; what is told later would not be seen. So the action differs with the note.
func EventAction(action, note string) string {
	sum := sha256.Sum256([]byte(note))
	return action + "-" + hex.EncodeToString(sum[:4])
}
