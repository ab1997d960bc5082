// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parsed(t *testing.T, args string) (*options, error) {
	t.Helper()
	o := newOptions()
	o.environmentLookup = func(key string) string { return map[string]string{"POD_NAMESPACE": "net"}[key] }
	return o, o.parse(strings.Fields(args))
}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name    string
		args    string
		wantErr []string
	}{
		{name: "defaults"},
		{name: "the version, whatever else is asked for", args: "--version --port=0"},
		{name: "files", args: "--tls-cert-file=/a/tls.crt --tls-private-key-file=/a/tls.key --cert-secret-name= --service-name="},
		{name: "stock's way to write versions", args: "--tls-min-version=TLS13 --logging-format=json --v=3"},
		{name: "unknown flag", args: "--enable-everything", wantErr: []string{"unknown flag: --enable-everything"}},
		{name: "argument", args: "now", wantErr: []string{`unexpected argument "now"`}},
		{
			name: "all bad values at once",
			args: "--port=0 --health-port=70000 --controller-username= --live-read-timeout=0s --shutdown-delay=-1s --tls-min-version=VersionTLS11 " +
				"--tls-cipher-suites=ROT13 --tls-cert-file=/a --service-name=",
			wantErr: []string{
				"--port", "--health-port", "--controller-username", "--live-read-timeout", "--shutdown-delay", "--tls-min-version must be VersionTLS12 or VersionTLS13",
				"--tls-private-key-file must be given together with --tls-cert-file",
			},
		},
		{name: "cipher suites", args: "--tls-cipher-suites=ROT13", wantErr: []string{"--tls-cipher-suites", "ROT13"}},
		{name: "one port for both", args: "--port=8080", wantErr: []string{"--health-port"}},
		{name: "nothing to make a certificate of", args: "--service-name= --cert-secret-name=", wantErr: []string{"--service-name", "--cert-secret-name"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parsed(t, tc.args)
			if (err != nil) != (tc.wantErr != nil) {
				t.Fatalf("error %v, want %q", err, tc.wantErr)
			}
			for _, part := range tc.wantErr {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error has more than one line: %q", err)
			}
		})
	}
}

func TestTLSOptions(t *testing.T) {
	for args, want := range map[string]uint16{"": tls.VersionTLS12, "--tls-min-version=TLS12": tls.VersionTLS12, "--tls-min-version=VersionTLS13": tls.VersionTLS13} {
		o, err := parsed(t, args)
		if err != nil {
			t.Fatal(err)
		}
		set, err := o.tlsOptions()
		if err != nil {
			t.Fatal(err)
		}
		c := &tls.Config{} //nolint:gosec // what is missing is what is tested
		set(c)
		if c.MinVersion != want {
			t.Errorf("%q: lowest version %x, want %x", args, c.MinVersion, want)
		}
	}
}

func TestNames(t *testing.T) {
	o, err := parsed(t, "--service-name=hook --tls-extra-name=127.0.0.1,localhost")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"hook.net.svc", "127.0.0.1", "localhost"}, o.names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}
