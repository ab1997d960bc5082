// SPDX-License-Identifier: Apache-2.0

package gatewayip

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// natChains are the chains that init makes in the nat table.
var natChains = []string{"DNAT_FILTER", "SNAT_FILTER", "EXCLUSIVE_DNAT", "EXCLUSIVE_SNAT", "SHARED_DNAT", "SHARED_SNAT", "HAIRPIN_SNAT"}

// natRules are the wiring that init lays, as "iptables -S" prints it. Only what came from the VPC can be a hairpin: nothing else looks
// through the hairpin rules, of which there is one an EIP.
var natRules = []string{
	"-A PREROUTING -j DNAT_FILTER",
	"-A DNAT_FILTER -j EXCLUSIVE_DNAT",
	"-A DNAT_FILTER -j SHARED_DNAT",
	"-A POSTROUTING -j SNAT_FILTER",
	"-A SNAT_FILTER -j EXCLUSIVE_SNAT",
	"-A SNAT_FILTER -j SHARED_SNAT",
	"-A SNAT_FILTER -m mark --mark 0x1 -j HAIRPIN_SNAT",
}

const (
	// oldNATRule is as it was laid before, and is by the stock script.
	oldNATRule = "-D SNAT_FILTER -j HAIRPIN_SNAT"
	vpcMark    = "VPC_MARK"
	hairpins   = "HAIRPIN_SNAT"
	sharedDNAT = "SHARED_DNAT"
)

// tables are one of the kernel's two sets of iptables: "" is what iptables stands for, which is nf_tables, "-legacy" the other one.
type tables string

const legacy tables = "-legacy"

// chooseTables finds the set that the stock script takes, which runs in the same gateway for the verbs that are not here: the legacy one
// wherever that works.
func chooseTables() tables {
	if _, err := legacy.run("-w", "-t", "nat", "-S", "INPUT", "1"); err == nil {
		return legacy
	}
	return ""
}

func (t tables) run(args ...string) (string, error) {
	return run("iptables"+string(t), "", args...)
}

// run runs a program; its error is what the program says.
func run(program, stdin string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if said := strings.TrimSpace(stderr.String()); said != "" {
			err = errors.New(said[:min(len(said), 500)])
		}
		return stdout.String(), err
	}
	return stdout.String(), nil
}

// list reads a table's rules, as "iptables -S" prints them.
func (t tables) list(table string) ([]string, error) {
	out, err := t.run("-w", "-t", table, "-S")
	if err != nil {
		return nil, fmt.Errorf("iptables cannot list %s: %w", table, err)
	}
	return strings.Split(strings.TrimSuffix(out, "\n"), "\n"), nil
}

// want makes it so that a table that has some rules has others: "-N" a chain, "-A" a rule that is to be there, "-D" one that is not.
func (t tables) want(table string, have, want []string) error {
	input := restore(table, have, want)
	if input == "" {
		return nil
	}
	if _, err := run("iptables"+string(t)+"-restore", input, "-w", "--noflush"); err != nil {
		return fmt.Errorf("iptables refused: %w", err)
	}
	return nil
}

// restore is the input of iptables-restore --noflush that does so, "" where there is nothing to do. Chains are made as needed: declaring
// one that is there would empty it.
func restore(table string, have, want []string) string {
	chains, there := map[string]bool{}, map[string]int{}
	for _, line := range have {
		if f := strings.Fields(line); len(f) > 1 && (f[0] == "-N" || f[0] == "-P") {
			chains[f[1]] = true
		} else {
			there[line]++
		}
	}
	var made, rules strings.Builder
	for _, line := range want {
		op, rest, _ := strings.Cut(line, " ")
		switch op {
		case "-N":
			if !chains[rest] {
				fmt.Fprintf(&made, ":%s - [0:0]\n", rest)
				chains[rest] = true
			}
		case "-A":
			if there[line] == 0 {
				rules.WriteString(line + "\n")
				there[line] = 1
			}
		case "-D":
			if there["-A "+rest] > 0 {
				rules.WriteString(line + "\n")
				there["-A "+rest]--
			}
		}
	}
	if made.Len()+rules.Len() == 0 {
		return ""
	}
	return "*" + table + "\n" + made.String() + rules.String() + "COMMIT\n"
}

// deletion is the want that a rule be gone.
func deletion(rule string) string { return "-D" + strings.TrimPrefix(rule, "-A") }

// undone are the wants that take others back, given what was there before.
func undone(have, want []string) []string {
	before := map[string]bool{}
	for _, line := range have {
		before[line] = true
	}
	var out []string
	for _, line := range slices.Backward(want) {
		op, rest, _ := strings.Cut(line, " ")
		switch {
		case op == "-A" && !before[line]:
			out = append(out, "-D "+rest)
		case op == "-D" && before["-A "+rest]:
			out = append(out, "-A "+rest)
		}
	}
	return out
}

// moveRules brings to the legacy tables what is in those of nf_tables: an earlier version of this script knew no others. Nothing is
// without its rule for a moment, and whichever of two equal ones a connection meets first decides. What is not in the chains of init is
// somebody else's, and stays. The table nat comes last: as long as its chains are there, there is something to do.
func moveRules() error {
	const nft tables = "-nft"
	if there, err := nft.list("nat"); err != nil || !slices.Contains(there, "-N DNAT_FILTER") {
		return nil //nolint:nilerr // without nf_tables there is nothing in them
	}
	for _, table := range []string{"mangle", "nat"} {
		other, err := nft.list(table)
		if err != nil {
			return fmt.Errorf("iptables-nft: %w", err)
		}
		want, undo := moved(table, other)
		have, err := legacy.list(table)
		if err != nil {
			return err
		}
		if err := legacy.want(table, have, want); err != nil {
			return err
		}
		if _, err := run("iptables-nft-restore", undo, "-w", "--noflush"); err != nil {
			return fmt.Errorf("iptables-nft refused: %w", err)
		}
	}
	return nil
}

// moved splits the rules of a table: those of init's chains are wanted elsewhere, and undone here.
func moved(table string, rules []string) (want []string, undo string) {
	ours := func(chain string) bool { return chain == vpcMark || slices.Contains(natChains, chain) }
	var made []string
	var out strings.Builder
	out.WriteString("*" + table + "\n")
	for _, line := range rules {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case ours(f[1]):
			if f[0] == "-N" {
				made = append(made, f[1])
			}
			want = append(want, line)
		case f[0] == "-A" && len(f) > 3 && f[len(f)-2] == "-j" && ours(f[len(f)-1]):
			want = append(want, line)
			out.WriteString(deletion(line) + "\n")
		}
	}
	for _, op := range []string{"-F", "-X"} {
		for _, chain := range made {
			out.WriteString(op + " " + chain + "\n")
		}
	}
	out.WriteString("COMMIT\n")
	return want, out.String()
}

// option is what follows an option in a rule, "" without it.
func option(rule []string, name string) string {
	if i := slices.Index(rule, name); i >= 0 && i+1 < len(rule) {
		return rule[i+1]
	}
	return ""
}
