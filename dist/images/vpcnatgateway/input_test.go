// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sync wraps lines into a state that would be fine but for them.
func full(lines ...string) string {
	return "share-state v1 full\n" + strings.Join(lines, "\n") + "\nend\n"
}

func delta(lines ...string) string {
	return "share-state v1 delta\n" + strings.Join(lines, "\n") + "\nend\n"
}

const (
	goodIdentity = "identity 203.0.113.10 443 tcp none 0"
	goodBackend  = "backend 10.1.0.4 8443"
)

type badInput struct {
	args  []string
	stdin string
	// want is in the error, after "nat-gateway.sh: VERB: ".
	want string
}

// badArguments are one bad argument a row, for each verb that takes them.
func badArguments() []badInput {
	table := map[string]map[string]string{
		"nft-dnat-map-add": {
			"":                                                                 `not EIP,DPORT,PROTO[,AFFINITY,TIMEOUT],BACKENDS: ""`,
			"203.0.113.10":                                                     "not EIP,DPORT,PROTO",
			"203.0.113.10,80,tcp":                                              "not EIP,DPORT,PROTO",
			"203.0.113.10,80,tcp,none,1.1.1.1:1":                               "not EIP,DPORT,PROTO",
			"203.0.113.10,80,tcp,none,0,1.1.1.1:1,":                            "not EIP,DPORT,PROTO",
			"203.0.113.256,80,tcp,10.1.0.4:80":                                 `line 1: not an IPv4 address: "203.0.113.256"`,
			"203.0.113,80,tcp,10.1.0.4:80":                                     "not an IPv4 address",
			"203.0.113.10.1,80,tcp,10.1.0.4:80":                                "not an IPv4 address",
			"203.0.113.010,80,tcp,10.1.0.4:80":                                 "not an IPv4 address",
			"203.0.113.-1,80,tcp,10.1.0.4:80":                                  "not an IPv4 address",
			"203.0.113.+1,80,tcp,10.1.0.4:80":                                  "not an IPv4 address",
			"203.0.113.1e1,80,tcp,10.1.0.4:80":                                 "not an IPv4 address",
			"203.0.113.0xa,80,tcp,10.1.0.4:80":                                 "not an IPv4 address",
			"203.0.113.,80,tcp,10.1.0.4:80":                                    "not an IPv4 address",
			" 203.0.113.10,80,tcp,10.1.0.4:80":                                 "not an IPv4 address",
			"203.0.113.10 ,80,tcp,10.1.0.4:80":                                 "not an IPv4 address",
			",80,tcp,10.1.0.4:80":                                              "not an IPv4 address",
			"2001:db8::1,80,tcp,10.1.0.4:80":                                   "not an IPv4 address",
			"::ffff:1.2.3.4,80,tcp,10.1.0.4:80":                                "not an IPv4 address",
			"example.com,80,tcp,10.1.0.4:80":                                   "not an IPv4 address",
			"203.0.113.10/32,80,tcp,10.1.0.4:80":                               "not an IPv4 address",
			"203.0.113.1٣,80,tcp,10.1.0.4:80":                                  "not plain ASCII",
			"203.0.113.10,0,tcp,10.1.0.4:80":                                   `not a port (1-65535): "0"`,
			"203.0.113.10,65536,tcp,10.1.0.4:80":                               "not a port",
			"203.0.113.10,99999999999999999999,tcp,10.1.0.4:80":                "not a port",
			"203.0.113.10,080,tcp,10.1.0.4:80":                                 "not a port",
			"203.0.113.10,-80,tcp,10.1.0.4:80":                                 "not a port",
			"203.0.113.10,+80,tcp,10.1.0.4:80":                                 "not a port",
			"203.0.113.10,80-90,tcp,10.1.0.4:80":                               "not a port",
			"203.0.113.10,http,tcp,10.1.0.4:80":                                "not a port",
			"203.0.113.10,0x50,tcp,10.1.0.4:80":                                "not a port",
			"203.0.113.10,8e1,tcp,10.1.0.4:80":                                 "not a port",
			"203.0.113.10,,tcp,10.1.0.4:80":                                    "not a port",
			"203.0.113.10,80,sctp,10.1.0.4:80":                                 `protocol is neither tcp nor udp: "sctp"`,
			"203.0.113.10,80,,10.1.0.4:80":                                     "protocol is neither",
			"203.0.113.10,80,tcp ,10.1.0.4:80":                                 "protocol is neither",
			"203.0.113.10,80,6,10.1.0.4:80":                                    "protocol is neither",
			"203.0.113.10,80,tcp+udp,10.1.0.4:80":                              "protocol is neither",
			"203.0.113.10,80,tcp,sticky,10,10.1.0.4:80":                        "affinity is neither none nor clientip",
			"203.0.113.10,80,tcp,,10,10.1.0.4:80":                              "affinity is neither",
			"203.0.113.10,80,tcp,None,0,10.1.0.4:80":                           "affinity is neither",
			"203.0.113.10,80,tcp,none,10,10.1.0.4:80":                          "timeout without affinity is not 0",
			"203.0.113.10,80,tcp,none,,10.1.0.4:80":                            "timeout without affinity is not 0",
			"203.0.113.10,80,tcp,clientip,0,10.1.0.4:80":                       "not a timeout (1-86400 seconds)",
			"203.0.113.10,80,tcp,clientip,86401,10.1.0.4:80":                   "not a timeout",
			"203.0.113.10,80,tcp,clientip,-1,10.1.0.4:80":                      "not a timeout",
			"203.0.113.10,80,tcp,clientip,010,10.1.0.4:80":                     "not a timeout",
			"203.0.113.10,80,tcp,clientip,10s,10.1.0.4:80":                     "not a timeout",
			"203.0.113.10,80,tcp,clientip,1.5,10.1.0.4:80":                     "not a timeout",
			"203.0.113.10,80,tcp,clientip,,10.1.0.4:80":                        "not a timeout",
			"203.0.113.10,80,tcp,clientip,999999,10.1.0.4:80":                  "not a timeout",
			"203.0.113.10,80,tcp,":                                             "no backends",
			"203.0.113.10,80,tcp,clientip,10,":                                 "no backends",
			"203.0.113.10,80,tcp,@":                                            `not a backend IP:PORT: ""`,
			"203.0.113.10,80,tcp,10.1.0.4:80@":                                 "not a backend IP:PORT",
			"203.0.113.10,80,tcp,@10.1.0.4:80":                                 "not a backend IP:PORT",
			"203.0.113.10,80,tcp,10.1.0.4:80@@10.1.0.5:80":                     "not a backend IP:PORT",
			"203.0.113.10,80,tcp,10.1.0.4":                                     "not a backend IP:PORT",
			"203.0.113.10,80,tcp,10.1.0.4:80:90":                               "not a backend IP:PORT",
			"203.0.113.10,80,tcp,10.1.0.4:":                                    "not a port",
			"203.0.113.10,80,tcp,:80":                                          "not an IPv4 address",
			"203.0.113.10,80,tcp,10.1.0.4:0":                                   "not a port",
			"203.0.113.10,80,tcp,10.1.0.4:70000":                               "not a port",
			"203.0.113.10,80,tcp,10.1.0.400:80":                                "not an IPv4 address",
			"203.0.113.10,80,tcp,[fd00::1]:80":                                 "not a backend IP:PORT",
			"203.0.113.10,80,tcp,10.1.0.4:80 ":                                 "not a port",
			"203.0.113.10,80,tcp,$(id):80":                                     "not an IPv4 address",
			"203.0.113.10,80,tcp,`id`:80":                                      "not an IPv4 address",
			"203.0.113.10,80,tcp;id,10.1.0.4:80":                               "protocol is neither",
			"203.0.113.10,80;flush ruleset,tcp,10.1.0.4:80":                    "not a port",
			"203.0.113.10 } ; flush ruleset ; #,80,tcp,1.1.1.1:1":              "not an IPv4 address",
			"203.0.113.10,80,tcp,10.1.0.4:80 }; delete table ip kube-ovn":      "not a port",
			"203.0.113.10,80,tcp,@backends:80":                                 "not a backend IP:PORT",
			"203.0.113.10,80,tcp,10.1.0.*:80":                                  "not an IPv4 address",
			"203.0.113.10,80,tcp,10.1.0.4:80\n203.0.113.10,81,tcp,10.1.0.4:80": "an argument must be one line",
			"203.0.113.10,80,tcp,10.1.0.4:80\r":                                "not plain ASCII",
			"203.0.113.10,80,tcp,10.1.0.4:80\t":                                "not plain ASCII",
			"-f,80,tcp,10.1.0.4:80":                                            "not an IPv4 address",
			"--":                                                               "not EIP,DPORT,PROTO",
			"%s%s%n,80,tcp,10.1.0.4:80":                                        "not an IPv4 address",
			`\\,80,tcp,10.1.0.4:80`:                                            "not an IPv4 address",
		},
		"nft-dnat-map-del": {
			"203.0.113.10,80":                        "not EIP,DPORT,PROTO",
			"203.0.113.10,80,tcp,":                   "not EIP,DPORT,PROTO",
			"203.0.113.10,80,tcp,10.1.0.4:80":        "not EIP,DPORT,PROTO",
			"203.0.113.300,80,tcp":                   "not an IPv4 address",
			"203.0.113.10,00,tcp":                    "not a port",
			"203.0.113.10,80,icmp":                   "protocol is neither",
			"203.0.113.10,80,tcp; nft flush ruleset": "protocol is neither",
		},
		"eip-add": {
			"203.0.113.20":                    "not an IPv4 address with its prefix length",
			"203.0.113.20/33":                 "not an IPv4 address with",
			"203.0.113.20/024":                "not an IPv4 address with",
			"203.0.113.2000/24":               "not an IPv4 address with",
			"203.0.113.20/24 dev lo":          "not an IPv4 address with",
			"2001:db8::1/64":                  "not an IPv4 address with",
			"203.0.113.20/24,203.0.113.21/24": "not an IPv4 address with",
		},
		"eip-del": {
			"203.0.113.20/": "not an IPv4 address with",
			"any/24":        "not an IPv4 address with",
			"0.0.0.0/0 dev": "not an IPv4 address with",
		},
		"subnet-route-add": {
			"10.2.0.0/16":            "not CIDR,NEXTHOP",
			"10.2.0.0/16,10.1.0.1,x": "not CIDR,NEXTHOP",
			"10.2.0.1/16,10.1.0.1":   "not an IPv4 prefix",
			"10.2.0.0,10.1.0.1":      "not an IPv4 prefix",
			"10.2.0.0/16,gateway":    "not an IPv4 address",
			"default,10.1.0.1":       "not an IPv4 prefix",
		},
		"subnet-route-del": {
			"10.2.0.0/16,": "not an IPv4 address",
			"all":          "not an IPv4 prefix",
		},
		"dnat-add": {
			"203.0.113.10,80,tcp":                      "not EIP,DPORT,PROTO,IP,PORT",
			"203.0.113.10,80,tcp,10.1.0.4":             "not EIP,DPORT,PROTO,IP,PORT",
			"203.0.113.10,80,tcp,10.1.0.4,80,":         "not EIP,DPORT,PROTO,IP,PORT",
			"203.0.113.10,80,icmp,10.1.0.4,80":         "protocol is neither",
			"203.0.113.10,80:90,tcp,10.1.0.4,80":       "not a port",
			"203.0.113.10,80,tcp,10.1.0.4-10.1.0.9,80": "not an IPv4 address",
			"203.0.113.10,80,tcp,10.1.0.4,80-90":       "not a port",
			"! 203.0.113.10,80,tcp,10.1.0.4,80":        "not an IPv4 address",
		},
		"dnat-del": {
			"203.0.113.10,80":                    "not EIP,DPORT,PROTO[,IP,PORT]",
			"203.0.113.10,80,tcp,":               "not EIP,DPORT,PROTO[,IP,PORT]",
			"203.0.113.10,80,tcp,10.1.0.4":       "not EIP,DPORT,PROTO[,IP,PORT]",
			"203.0.113.10,80,icmp":               "protocol is neither",
			"203.0.113.10,80,tcp,10.1.0.4,65537": "not a port",
			"203.0.113.10,80,tcp,,":              "not an IPv4 address",
		},
		"init": {
			"eth0":                   "not two interface names",
			"eth0,":                  "not two interface names",
			",net1":                  "not two interface names",
			"eth0,net1,x":            "not two interface names",
			"eth0,net 1":             "not two interface names",
			"eth0;id,net1":           "not two interface names",
			"aninterfacename17,net1": "not two interface names",
		},
	}
	var bad []badInput
	for verb, rows := range table {
		for arg, want := range rows {
			bad = append(bad, badInput{args: []string{verb, arg}, want: want})
		}
	}
	return bad
}

func badStates() []badInput {
	table := map[string]string{
		"":                                    "cut short",
		"share-state v1 full\n":               "cut short",
		"share-state v2 full\nend\n":          "not a share-state v1",
		"share-state v1\nend\n":               "not a share-state v1",
		"share-state v1 full \nend\n":         "not a share-state v1",
		"Share-State v1 full\nend\n":          "not a share-state v1",
		"end\n":                               "not a share-state v1",
		full(goodIdentity, goodBackend) + "x": "something after end",
		full(goodIdentity):                    "identity without a backend",
		full(goodIdentity, goodBackend, "identity 203.0.113.10 444 tcp none 0"): "identity without a backend",
		full(goodBackend): "backend of no identity",
		full(goodIdentity, goodBackend, goodBackend):                                         "backend named twice",
		full(goodIdentity, goodBackend, goodBackend+" masquerade"):                           "backend named twice",
		full(goodIdentity, goodBackend, goodIdentity, goodBackend):                           "identity named twice",
		full(goodIdentity, goodBackend, "identity 203.0.113.10 443 TCP none 0", goodBackend): "identity named twice",
		full("remove 203.0.113.10 80 tcp"):                                                   "remove in a full state",
		delta(goodIdentity, goodBackend, "remove 203.0.113.10 443 tcp"):                      "identity named twice",
		delta("remove 203.0.113.10 80 tcp", "remove 203.0.113.10 80 TCP"):                    "identity named twice",
		delta("remove 203.0.113.10 80 tcp", goodBackend):                                     "backend of no identity",
		delta("remove 203.0.113.10 80"):                                                      "unknown line",
		delta("remove 203.0.113.10 80 tcp keep"):                                             "unknown word",
		delta("forget 203.0.113.10 80 tcp 10.1.0.4"):                                         "unknown line",
		delta("forget 203.0.113.10 80 sctp 10.1.0.4 80"):                                     "protocol is neither",
		delta("forget 203.0.113.10 80 tcp 10.1.0.4 0"):                                       "not a port",
		delta("forget 203.0.113.10 80 tcp 10.1.0.444 80"):                                    "not an IPv4 address",
		delta("remove 203.0.113.10 0 tcp"):                                                   "not a port",
		full("identity 203.0.113.10 443 tcp none", goodBackend):                              "unknown line",
		full("identity  203.0.113.10 443 tcp none 0", goodBackend):                           "not an IPv4 address",
		full(" "+goodIdentity, goodBackend):                                                  "unknown line",
		full(goodIdentity+" ", goodBackend):                                                  "unknown word",
		full(goodIdentity+"\t", goodBackend):                                                 "not plain ASCII",
		full(goodIdentity+"\r", goodBackend):                                                 "not plain ASCII",
		full(goodIdentity, goodBackend+"\x00"):                                               "not plain ASCII",
		full(goodIdentity, "backend 10.1.0.4\x008443"):                                       "not plain ASCII",
		full(goodIdentity, "backend 10.1.0.4"):                                               "unknown line",
		full(goodIdentity, "backend 10.1.0.4:8443"):                                          "unknown line",
		full(goodIdentity, goodBackend+" snat"):                                              "unknown word",
		full(goodIdentity, goodBackend+" masquerade x"):                                      "unknown line",
		full(goodIdentity, goodBackend, ""):                                                  "unknown line",
		full("", goodIdentity, goodBackend):                                                  "unknown line",
		full("# comment"):                                                                    "unknown line",
		full(goodIdentity+" sources=", goodBackend):                                          "empty list of sources",
		full(goodIdentity+" sources=10.0.0.0/8,", goodBackend):                               "not an IPv4 prefix",
		full(goodIdentity+" sources=10.0.0.1/8", goodBackend):                                "not an IPv4 prefix",
		full(goodIdentity+" sources=10.0.0.0", goodBackend):                                  "not an IPv4 prefix",
		full(goodIdentity+" sources=10.0.0.0/33", goodBackend):                               "not an IPv4 prefix",
		full(goodIdentity+" sources=10.0.0.0/08", goodBackend):                               "not an IPv4 prefix",
		full(goodIdentity+" sources=fd00::/8", goodBackend):                                  "not an IPv4 prefix",
		full(goodIdentity+" sources=10.0.0.0/8;drop", goodBackend):                           "not an IPv4 prefix",
		full(goodIdentity+" source=10.0.0.0/8", goodBackend):                                 "unknown word",
		// The good ones before and after it are not applied either.
		full(goodIdentity, goodBackend, "identity 203.0.113.10 444 tcp none 0", "backend 10.1.0.4 0"): `line 5: not a port (1-65535): "0"`,
		strings.TrimSuffix(full(goodIdentity, goodBackend), "end\n"):                                  "cut short",
	}
	var bad []badInput
	for stdin, want := range table {
		bad = append(bad, badInput{args: []string{"nft-dnat-map-sync"}, stdin: stdin, want: want})
	}
	return bad
}

func TestBadInputChangesNothing(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.run("", "init")
	g.run("", "eip-add", eip+"/24")
	g.run("", "dnat-add", eip+",2222,tcp,10.1.0.9,22")
	g.set(share("tcp:80", "10.1.0.11:8080"), sticky(60, from(share("udp:53", "10.1.0.12:53"), "10.0.0.0/8")))
	before := g.state()

	bad := append(badArguments(), badStates()...)
	bad = append(bad,
		badInput{args: []string{}, want: "usage:"},
		badInput{args: []string{"no-such-verb"}, want: "unknown verb"},
		badInput{args: []string{"../nat-gateway"}, want: "unknown verb"},
		badInput{args: []string{"nft-dnat-map-add"}, want: "needs at least one argument"},
		badInput{args: []string{"nft-dnat-map-sync", "x"}, want: "takes no arguments"},
		badInput{args: []string{"nft-dnat-map-list", "x"}, want: "takes no arguments"},
		// One bad among good ones, and ones that contradict each other.
		badInput{args: []string{"nft-dnat-map-add", "203.0.113.10,81,tcp,10.1.0.4:80", "203.0.113.10,82,tcp,10.1.0.4:x"}, want: `line 2: not a port (1-65535): "x"`},
		badInput{args: []string{"nft-dnat-map-add", "203.0.113.10,81,tcp,10.1.0.4:80", "203.0.113.10,81,TCP,10.1.0.5:80"}, want: "identity named twice, differently"},
		badInput{args: []string{"nft-dnat-map-del", "203.0.113.10,80,tcp", "203.0.113.10,80,xyz"}, want: "line 2: protocol is neither"},
		badInput{args: []string{"dnat-add", "203.0.113.10,81,tcp,10.1.0.4,80", "203.0.113.10,81,tcp,10.1.0.5,80"}, want: "DNAT given twice, differently"},
		badInput{args: []string{"subnet-route-add", "10.2.0.0/16,10.1.0.1", "10.2.0.0/16,10.1.0.2"}, want: "route given twice, differently"},
		badInput{args: []string{"eip-add", "203.0.113.20/24", "203.0.113.20/25"}, want: "address given twice, differently"},
	)
	if len(bad) < 100 {
		t.Fatalf("%d bad inputs", len(bad))
	}
	for _, b := range bad {
		out, err := g.try(b.stdin, b.args...)
		name := fmt.Sprintf("%q <%q", b.args, b.stdin)
		switch {
		case err == nil:
			t.Errorf("%s: accepted", name)
		case !strings.Contains(err.Error(), b.want):
			t.Errorf("%s: %v, want %s", name, err, b.want)
		case len(b.args) > 0 && !strings.Contains(err.Error(), "nat-gateway.sh: "+b.args[0]+": "):
			t.Errorf("%s: %v does not name the verb", name, err)
		}
		if out != "" {
			t.Errorf("%s: printed %q", name, out)
		}
	}
	if diff := cmp.Diff(before, g.state()); diff != "" {
		t.Errorf("bad input changed the gateway (-before +after):\n%s", diff)
	}
}

func TestSpellings(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.run("", "nft-dnat-map-add", eip+",80,TCP,10.1.0.12:8080@10.1.0.11:8080", eip+",53,Udp,clientip,86400,10.1.0.11:53", eip+",81,tcp,none,0,10.1.0.11:81@10.1.0.11:81", eip+",81,tcp,10.1.0.11:81")
	g.holds(share("tcp:80", "10.1.0.11:8080", "10.1.0.12:8080"), sticky(86400, share("udp:53", "10.1.0.11:53")), share("tcp:81", "10.1.0.11:81"))
	g.run("", "nft-dnat-map-add", eip+",80,tcp,10.1.0.13:8080")
	g.run("", "nft-dnat-map-del", eip+",53,UDP", eip+",81,tcp", eip+",81,TCP", eip+",4711,tcp")
	g.holds(share("tcp:80", "10.1.0.13:8080"))
	g.run("share-state v1 full\nend", "nft-dnat-map-sync")
	g.holds()
}
