// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// whoServes is a case of the table that the controller has its rule tested with.
type whoServes struct{ name, image, args, known, claim string }

func whoServesCases(t *testing.T) []whoServes {
	t.Helper()
	table, err := os.ReadFile("../../cmd/kube-ovn-controller/testdata/who-serves.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var cases []whoServes
	for line := range strings.Lines(string(table)) {
		if row := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); !strings.HasPrefix(line, "#") {
			cases = append(cases, whoServes{row[0], row[1], row[2], row[3], row[4]})
		}
	}
	return cases
}

// want is what is said where a setting has this name, with the way out of each kind of claim; "" where nothing is said.
func (c *whoServes) want(setting, off, no string) string {
	claim := strings.ReplaceAll(c.claim, "SETTING", setting)
	switch {
	case claim == "-":
		return ""
	case strings.HasPrefix(claim, "may "):
		return claim + ": set --enable-nftable-lb-svc=false there, or " + no + " here"
	}
	return claim + ": switch it off there with --enable-nftable-lb-svc=false, or here with " + off
}

func TestWhoServes(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			for _, tc := range whoServesCases(t) {
				t.Run(tc.name, func(t *testing.T) {
					stock := stockController(tc.image, strings.Fields(tc.args)...)
					_, err := render(t, l.chart, request{values: set(l.enabled, true, "stockServes", tc.known), cluster: cluster(t, stockCRD, stock)})
					got := ""
					if err != nil {
						_, got, _ = strings.Cut(err.Error(), "Deployment kube-system/kube-ovn-controller ")
						if got == "" {
							t.Fatal(err)
						}
					}
					want := tc.want("stockServes", "--set "+l.enabled+"=false", "--set stockServes=no")
					if diff := gocmp.Diff(want, got); diff != "" {
						t.Errorf("claim (-want +got):\n%s", diff)
					}
				})
			}
		})
	}
}

// function runs a function of install.sh, without a cluster.
func function(t *testing.T, call string, settings []string, args ...string) string {
	t.Helper()
	script, err := os.ReadFile("../../install.sh")
	if err != nil {
		t.Fatal(err)
	}
	definitions, ok := strings.CutSuffix(string(script), "\nmain \"$@\"\n")
	if !ok {
		t.Fatal("install.sh does not end with its call of main")
	}
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{"-s", "--"}, args...)...)
	cmd.Env = append(os.Environ(), settings...)
	cmd.Stdin = strings.NewReader(definitions + "\n" + call + "\n")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return string(output)
}

func TestInstallScriptWhoServes(t *testing.T) {
	for _, tc := range whoServesCases(t) {
		t.Run(tc.name, func(t *testing.T) {
			args := append([]string{tc.image}, strings.Fields(tc.args)...)
			got := strings.TrimSpace(function(t, `claim "$@"`, []string{"STOCK_SERVES=" + tc.known}, args...))
			want := tc.want("STOCK_SERVES", "ENABLE_NFTABLE_LB_SVC=false", "STOCK_SERVES=no")
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("claim (-want +got):\n%s", diff)
			}
		})
	}
}

// TestInstallScriptFlags wants of install.sh the flags that the chart gives with the same settings.
func TestInstallScriptFlags(t *testing.T) {
	l := layouts[0]
	for _, tc := range []struct {
		name     string
		settings []string
		values   map[string]any
	}{
		{"by default", nil, set(l.enabled, true)},
		{
			"what is known of Kube-OVN's own controller", []string{"STOCK_SERVES=no", "NAT_GW_HANDLER_ABILITIES=affinity,masquerade"},
			set(l.enabled, true, "stockServes", "no", l.abilities, "affinity,masquerade"),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := podSpecs(t, mustRender(t, l.chart, request{values: tc.values, cluster: cluster(t, stockCRD)}).sorted())
			got := podSpecs(t, decode(t, function(t, "check_settings; manifest_beside | fill", tc.settings)))
			const name = "kube-ovn-nftable-lb"
			if diff := gocmp.Diff(want[name].Containers[0].Args, got[name].Containers[0].Args); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
}
