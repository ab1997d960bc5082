// SPDX-License-Identifier: Apache-2.0

package lab

// AuditLog is the name, as Handle.Log takes it, of the record of what the accounts of an installation have asked of the API server.
const AuditLog = "audit"

// Account is the user that a ServiceAccount of Kube-OVN's namespace is.
func Account(name string) string { return "system:serviceaccount:" + SystemNamespace + ":" + name }

// installedAccounts are those that charts/ make. Nobody else is audited, so that it costs nothing where it is not wanted.
func installedAccounts() []string {
	return []string{
		Account("kube-ovn-nftable-lb"), Account("kube-ovn-webhook"),
		Account("kube-ovn-nftable-lb-setup-crd"), Account("kube-ovn-nftable-lb-setup-withdraw"),
	}
}
