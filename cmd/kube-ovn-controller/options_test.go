// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name    string
		args    string
		wantErr []string
		wantSvc bool
	}{
		{name: "defaults do not watch Services"},
		{name: "the feature", args: "--enable-nftable-lb-svc", wantSvc: true},
		{name: "the feature without load balancing does nothing", args: "--enable-nftable-lb-svc --enable-lb=false"},
		{name: "stock's way to write flags", args: "--enable-nftable-lb-svc=true --enable-lb=true --v=3 --logging-format=json", wantSvc: true},
		{name: "the version, whatever else is asked for", args: "--version --worker-num=0"},
		{name: "unknown flag", args: "--enable-everything", wantErr: []string{"unknown flag: --enable-everything"}},
		{name: "argument", args: "now", wantErr: []string{`unexpected argument "now"`}},
		{name: "not a boolean", args: "--enable-lb=perhaps", wantErr: []string{"--enable-lb"}},
		{
			name:    "all bad values at once",
			args:    "--worker-num=0 --nat-gw-worker-num=-1 --pprof-port=70000 --nat-gw-check-interval=-1s --leader-elect-renew-deadline=20s --leader-elect-retry-period=0s",
			wantErr: []string{"--worker-num", "--nat-gw-worker-num", "--pprof-port", "--nat-gw-check-interval", "--leader-elect-renew-deadline", "--leader-elect-retry-period"},
		},
		{name: "what is known of another controller", args: "--stock-serves=no"},
		{name: "what cannot be known of it", args: "--stock-serves=maybe", wantErr: []string{"--stock-serves must be auto, yes or no"}},
		{name: "log format", args: "--logging-format=xml", wantErr: []string{"xml"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := newOptions()
			o.environmentLookup = func(string) string { return "" }
			err := o.parse(strings.Fields(tc.args))
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
			if err == nil && o.serveServices() != tc.wantSvc {
				t.Errorf("serves Services: %v, want %v", o.serveServices(), tc.wantSvc)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	o := newOptions()
	o.environmentLookup = func(key string) string {
		return map[string]string{"POD_NAME": "controller-0", "POD_NAMESPACE": "net"}[key]
	}
	if err := o.parse(nil); err != nil {
		t.Fatal(err)
	}
	if o.podName != "controller-0" || o.podNamespace != "net" || o.leaderElection.ResourceNamespace != "net" {
		t.Errorf("name %q, namespace %q, lease in %q", o.podName, o.podNamespace, o.leaderElection.ResourceNamespace)
	}
}

// The lease is whose name is in it: two processes of one name would both lead.
func TestNamelessProcessesDiffer(t *testing.T) {
	names := map[string]bool{}
	for range 2 {
		o := newOptions()
		o.environmentLookup = func(string) string { return "" }
		if err := o.parse(nil); err != nil {
			t.Fatal(err)
		}
		names[o.podName] = true
	}
	if len(names) != 2 {
		t.Errorf("two processes are called %v", names)
	}
}
