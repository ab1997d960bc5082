// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIssue(t *testing.T) {
	pki, err := NewPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		subject  Subject
		usage    x509.ExtKeyUsage
		verifyAs string
	}{
		{"client", Subject{CommonName: "someone", Organization: []string{"system:masters"}}, x509.ExtKeyUsageClientAuth, ""},
		{
			"server by name",
			Subject{CommonName: "server", Names: []string{"kubernetes.default.svc"}},
			x509.ExtKeyUsageServerAuth, "kubernetes.default.svc",
		},
		{
			"server by address",
			Subject{CommonName: "server", Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.1")}},
			x509.ExtKeyUsageServerAuth, "10.96.0.1",
		},
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pki.CAData()) {
		t.Fatal("the authority's certificate is no PEM")
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pair, err := pki.Issue("x", test.subject)
			if err != nil {
				t.Fatal(err)
			}
			loaded, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
			if err != nil {
				t.Fatal(err)
			}
			options := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{test.usage}, DNSName: test.verifyAs}
			if _, err := loaded.Leaf.Verify(options); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(test.subject.Organization, loaded.Leaf.Subject.Organization); diff != "" {
				t.Errorf("organization (-want +got):\n%s", diff)
			}
			info, err := os.Stat(pair.Key)
			if err != nil {
				t.Fatal(err)
			}
			if mode := info.Mode().Perm(); mode != 0o600 {
				t.Errorf("key has mode %o", mode)
			}
		})
	}
}
