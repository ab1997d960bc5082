// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// lifetime of everything issued: a lab does not live longer.
const lifetime = 365 * 24 * time.Hour

// PKI is a certificate authority whose certificates are files in a directory.
type PKI struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

// Pair is a certificate and its key, as paths of PEM files.
type Pair struct{ Cert, Key string }

// Subject is whom a certificate is for. With Names or Addresses it is a server's, else a client's.
type Subject struct {
	CommonName   string
	Organization []string
	Names        []string
	Addresses    []netip.Addr
}

// NewPKI makes a certificate authority that keeps its files in dir.
func NewPKI(dir string) (*PKI, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := newTemplate("kube-ovn-lab")
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	p := &PKI{dir: dir, key: key, cert: cert, pem: encode("CERTIFICATE", der)}
	return p, os.WriteFile(p.CA(), p.pem, 0o644)
}

// CA returns the path of the authority's certificate.
func (p *PKI) CA() string { return filepath.Join(p.dir, "ca.crt") }

// CAData returns the authority's certificate in PEM.
func (p *PKI) CAData() []byte { return p.pem }

// Issue makes a certificate and a key, in files named after name.
func (p *PKI) Issue(name string, subject Subject) (Pair, error) {
	pair := Pair{Cert: filepath.Join(p.dir, name+".crt"), Key: filepath.Join(p.dir, name+".key")}
	template, err := newTemplate(subject.CommonName)
	if err != nil {
		return pair, fmt.Errorf("issue %s: %w", name, err)
	}
	template.Subject.Organization = subject.Organization
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.DNSNames = subject.Names
	for _, addr := range subject.Addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(addr.AsSlice()))
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(subject.Names)+len(subject.Addresses) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	key, err := p.newKey(pair.Key)
	if err != nil {
		return pair, fmt.Errorf("issue %s: %w", name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, key.Public(), p.key)
	if err != nil {
		return pair, fmt.Errorf("issue %s: %w", name, err)
	}
	return pair, os.WriteFile(pair.Cert, encode("CERTIFICATE", der), 0o644)
}

// SigningKey makes a key pair for service account tokens: Cert is the public key.
func (p *PKI) SigningKey(name string) (Pair, error) {
	pair := Pair{Cert: filepath.Join(p.dir, name+".pub"), Key: filepath.Join(p.dir, name+".key")}
	key, err := p.newKey(pair.Key)
	if err != nil {
		return pair, fmt.Errorf("make signing key %s: %w", name, err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return pair, fmt.Errorf("make signing key %s: %w", name, err)
	}
	return pair, os.WriteFile(pair.Cert, encode("PUBLIC KEY", der), 0o644)
}

func (p *PKI) newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(path, encode("EC PRIVATE KEY", der), 0o600)
}

func newTemplate(commonName string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(lifetime),
		BasicConstraintsValid: true,
	}, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
