// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// Backend is one address and port that an identity's connections go to.
type Backend struct {
	Addr netip.AddrPort
	// Masquerade asks the gateway to put its own VPC address in place of the client's, for a backend whose answers
	// would otherwise leave by another way than the gateway.
	Masquerade bool
}

func compareBackends(a, b Backend) int { return a.Addr.Compare(b.Addr) }

// Affinity says whether a client stays with its backend. The zero value is no affinity.
type Affinity struct {
	ClientIP bool
	// TimeoutSeconds since the client's last new connection, 1–86400 with ClientIP, else 0.
	TimeoutSeconds int32
}

// String gives the two fields of an identity line: "none 0" or "clientip 10800".
func (a Affinity) String() string {
	if !a.ClientIP {
		return "none 0"
	}
	return "clientip " + strconv.FormatInt(int64(a.TimeoutSeconds), 10)
}

func (a Affinity) validate() error {
	switch {
	case !a.ClientIP && a.TimeoutSeconds != 0:
		return fmt.Errorf("affinity timeout %d: must be 0 without ClientIP", a.TimeoutSeconds)
	case a.ClientIP && (a.TimeoutSeconds < 1 || a.TimeoutSeconds > MaxAffinityTimeout):
		return fmt.Errorf("affinity timeout %d: must be from 1 to %d seconds", a.TimeoutSeconds, MaxAffinityTimeout)
	}
	return nil
}

// Share is an identity with all that a gateway holds for it.
type Share struct {
	Identity
	Affinity Affinity
	// Sources are the prefixes that clients must come from; none: from anywhere.
	Sources  []netip.Prefix
	Backends []Backend
}

// Normalize brings the share into its canonical form: backends and sources in order, sources masked and without duplicates.
// The slices are replaced, never changed in place.
func (s *Share) Normalize() {
	s.Backends = slices.SortedFunc(slices.Values(s.Backends), compareBackends)
	s.Sources = NormalizeSources(s.Sources)
}

// NormalizeSources masks the prefixes, orders them by address and length and drops duplicates.
func NormalizeSources(in []netip.Prefix) []netip.Prefix {
	if len(in) == 0 {
		return nil
	}
	out := make([]netip.Prefix, len(in))
	for i, p := range in {
		out[i] = p.Masked()
	}
	slices.SortFunc(out, comparePrefixes)
	return slices.Compact(out)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// Validate says what nat-gateway.sh would refuse. The share must be in its canonical form.
func (s *Share) Validate() error {
	if !s.EIP.Is4() {
		return fmt.Errorf("identity %s: EIP must be IPv4", s.Identity)
	}
	if s.Port == 0 {
		return fmt.Errorf("identity %s: port must not be 0", s.Identity)
	}
	if _, err := ParseProtocol(string(s.Protocol)); err != nil {
		return fmt.Errorf("identity %s: %w", s.Identity, err)
	}
	if err := s.Affinity.validate(); err != nil {
		return fmt.Errorf("identity %s: %w", s.Identity, err)
	}
	if len(s.Backends) == 0 {
		return fmt.Errorf("identity %s: %w", s.Identity, ErrNoBackends)
	}
	for i, b := range s.Backends {
		if !b.Addr.Addr().Is4() || b.Addr.Port() == 0 {
			return fmt.Errorf("identity %s: backend %s: must be an IPv4 address and a port", s.Identity, b.Addr)
		}
		if i > 0 && compareBackends(s.Backends[i-1], b) >= 0 {
			return fmt.Errorf("identity %s: backend %s: twice, or out of order", s.Identity, b.Addr)
		}
	}
	for _, p := range s.Sources {
		if !p.Addr().Is4() {
			return fmt.Errorf("identity %s: source %s: must be IPv4", s.Identity, p)
		}
	}
	return nil
}

// ErrNoBackends is the error of a share without backends; such an identity is removed, not programmed.
var ErrNoBackends = errors.New("no backends")

// Digest is the first 16 hexadecimal digits of the SHA-256 of the share's canonical lines (docs/gateway-protocol.md).
func (s *Share) Digest() string {
	sum := sha256.Sum256(s.appendLines(nil))
	return hex.EncodeToString(sum[:])[:16]
}
