// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Keys of the Secret.
const (
	currentCert = "ca.crt"
	currentKey  = "ca.key"
	nextCert    = "next.crt"
	nextKey     = "next.key"
	formerCert  = "old.crt"
)

// skew is how far the clocks of a cluster's machines may be apart.
const skew = 5 * time.Minute

// Lifetimes of what is made.
type Lifetimes struct {
	// Authority is how long an authority is valid. In the last third of it the next one is made.
	Authority time.Duration
	// Overlap is how long an authority is trusted before anything is signed with it.
	Overlap time.Duration
	// Serving is how long a serving certificate is valid. It is renewed in the last third of it.
	Serving time.Duration
}

// DefaultLifetimes are what is used unless something else is asked for.
func DefaultLifetimes() Lifetimes {
	return Lifetimes{Authority: 2 * 365 * 24 * time.Hour, Overlap: time.Hour, Serving: 30 * 24 * time.Hour}
}

// authority is a certificate that signs others, with its key.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func (a *authority) valid(now time.Time) bool {
	return a != nil && !now.Before(a.cert.NotBefore) && now.Before(a.cert.NotAfter)
}

// authorities is what the Secret holds.
type authorities struct {
	current, next *authority
	former        *x509.Certificate
}

// decode reads a Secret's data. What is missing or cannot be read counts as not there: it is made anew.
func decode(data map[string][]byte) authorities {
	former, err := parseCert(data[formerCert])
	if err != nil {
		former = nil
	}
	return authorities{
		current: parseAuthority(data[currentCert], data[currentKey]),
		next:    parseAuthority(data[nextCert], data[nextKey]),
		former:  former,
	}
}

func parseAuthority(certPEM, keyPEM []byte) *authority {
	certificate, err := parseCert(certPEM)
	if err != nil {
		return nil
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil
	}
	key, ok := parsed.(crypto.Signer)
	if !ok || !certificate.IsCA {
		return nil
	}
	public, ok := certificate.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key.Public()) {
		return nil
	}
	return &authority{certificate, key}
}

func parseCert(text []byte) (*x509.Certificate, error) {
	certs, err := cert.ParseCertsPEM(text)
	if err != nil {
		return nil, err
	}
	return certs[0], nil
}

// encode is the reverse of decode.
func (a *authorities) encode() (map[string][]byte, error) {
	data := map[string][]byte{}
	var errs []error
	put := func(a *authority, certName, keyName string) {
		if a == nil {
			return
		}
		key, err := keyutil.MarshalPrivateKeyToPEM(a.key)
		errs = append(errs, err)
		data[certName], data[keyName] = encodeCert(a.cert), key
	}
	put(a.current, currentCert, currentKey)
	put(a.next, nextCert, nextKey)
	if a.former != nil {
		data[formerCert] = encodeCert(a.former)
	}
	return data, errors.Join(errs...)
}

// bundle is whom to trust, in PEM: always the same text for the same authorities.
func (a *authorities) bundle() []byte {
	var out bytes.Buffer
	for _, x := range []*authority{a.current, a.next} {
		if x != nil {
			out.Write(encodeCert(x.cert))
		}
	}
	if a.former != nil {
		out.Write(encodeCert(a.former))
	}
	return out.Bytes()
}

func encodeCert(c *x509.Certificate) []byte {
	text, err := cert.EncodeCertificates(c)
	if err != nil {
		return nil // encoding into memory does not fail
	}
	return text
}

// rotate takes the authorities one step further where it is time, and says whether it has. Steps that are due at once are taken by the next
// calls; until is when the next one is due otherwise.
func (a *authorities) rotate(now time.Time, life Lifetimes) (changed bool, until time.Time, err error) {
	if a.former != nil && !now.Before(a.former.NotAfter) {
		a.former, changed = nil, true
	}
	switch {
	case !a.current.valid(now) && a.next.valid(now):
		// Too late for an overlap, or never mind it: nobody trusts what has expired.
		a.promote()
		return true, now, nil
	case !a.current.valid(now):
		a.next = nil
		a.current, err = newAuthority(now, life.Authority)
		return true, now, err
	case a.next != nil && !now.Before(a.next.cert.NotBefore.Add(skew+life.Overlap)):
		a.promote()
		return true, now, nil
	case a.next != nil:
		return changed, a.next.cert.NotBefore.Add(skew + life.Overlap), nil
	case !now.Before(lastThird(a.current.cert)):
		a.next, err = newAuthority(now, life.Authority)
		return true, now, err
	}
	return changed, lastThird(a.current.cert), nil
}

func (a *authorities) promote() {
	if a.current != nil {
		a.former = a.current.cert
	}
	a.current, a.next = a.next, nil
}

// lastThird is when the last third of a certificate's life begins.
func lastThird(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

func newAuthority(now time.Time, life time.Duration) (*authority, error) {
	key, template, err := newTemplate("kube-ovn-webhook-ca", now, now.Add(life))
	if err != nil {
		return nil, fmt.Errorf("make certificate authority: %w", err)
	}
	template.IsCA, template.MaxPathLenZero = true, true
	template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign
	certificate, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make certificate authority: %w", err)
	}
	return &authority{certificate, key}, nil
}

// issue makes a serving certificate for names, each a DNS name or an IP address.
func (a *authority) issue(names []string, now time.Time, life time.Duration) (*tls.Certificate, error) {
	end := now.Add(life)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	key, template, err := newTemplate("kube-ovn-webhook", now, end)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	certificate, err := sign(template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{certificate.Raw}, PrivateKey: key, Leaf: certificate}, nil
}

func newTemplate(name string, now, end time.Time) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	return key, &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-skew),
		NotAfter:              end,
		BasicConstraintsValid: true,
	}, nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
