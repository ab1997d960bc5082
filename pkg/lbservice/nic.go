// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/pkg/vpcnet"
)

// What Kube-OVN and Multus write on a Pod. A NIC's annotations are <provider>.kubernetes.io/<one of these>.
const (
	logicalSwitchSuffix = ".kubernetes.io/logical_switch"
	ipAddressSuffix     = ".kubernetes.io/ip_address"
	allocatedSuffix     = ".kubernetes.io/allocated"
	defaultRouteSuffix  = ".kubernetes.io/default_route"
	routesSuffix        = ".kubernetes.io/routes"

	networksAnnotation       = "k8s.v1.cni.cncf.io/networks"
	defaultNetworkAnnotation = "v1.multus-cni.io/default-network"

	// multusNamespace is where Multus looks for a default network that names no namespace.
	multusNamespace = "kube-system"
)

// NIC is one Kube-OVN interface of a Pod.
type NIC struct {
	Provider string
	Subnet   string
	// IPv4 is not valid while the NIC has no address, and for one that only has IPv6.
	IPv4 netip.Addr
	// Pending: Kube-OVN has not finished with it.
	Pending bool
	Primary bool
	// DefaultRoute: the Pod's answers leave by this NIC.
	DefaultRoute bool
	// Routed: the Pod was given routes by this NIC.
	Routed bool
}

// Pod is what a backend decision needs to know of a Pod.
type Pod struct {
	Name string
	UID  types.UID
	// Ended: it succeeded or failed, and its addresses may be another's by now.
	Ended bool
	// HasIP: it has been through CNI, so that its annotations are complete.
	HasIP bool
	// NICs are its Kube-OVN interfaces, by provider; a Pod without any is not Kube-OVN's.
	NICs []NIC
}

// ParsePod reads a Pod's interfaces from its annotations.
func ParsePod(pod *corev1.Pod) Pod {
	p := Pod{
		Name:  pod.Name,
		UID:   pod.UID,
		Ended: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		HasIP: pod.Status.PodIP != "",
	}
	for provider, primary := range attachedProviders(pod) {
		p.NICs = append(p.NICs, parseNIC(pod, provider, primary))
	}
	slices.SortFunc(p.NICs, func(a, b NIC) int { return strings.Compare(a.Provider, b.Provider) })
	decideDefaultRoute(pod, p.NICs)
	return p
}

func (p Pod) equal(o Pod) bool {
	return p.Name == o.Name && p.UID == o.UID && p.Ended == o.Ended && p.HasIP == o.HasIP && slices.Equal(p.NICs, o.NICs)
}

func parseNIC(pod *corev1.Pod, provider string, primary bool) NIC {
	nic := NIC{
		Provider: provider,
		Primary:  primary,
		Subnet:   pod.Annotations[provider+logicalSwitchSuffix],
		Routed:   strings.TrimSpace(pod.Annotations[provider+routesSuffix]) != "",
	}
	addresses := pod.Annotations[provider+ipAddressSuffix]
	// An address can be asked for by annotation before it is allocated.
	allocated := pod.Annotations[provider+allocatedSuffix] == "true" || pod.Status.PodIP != ""
	if nic.Subnet == "" || strings.TrimSpace(addresses) == "" || !allocated {
		nic.Pending = true
		return nic
	}
	for address := range strings.SplitSeq(addresses, ",") {
		if addr, err := sharenat.ParseIPv4(strings.TrimSpace(address)); err == nil {
			nic.IPv4 = addr
			break
		}
	}
	return nic
}

// decideDefaultRoute: the NICs that say so carry it; when none does, the primary one, unless it says it does not.
func decideDefaultRoute(pod *corev1.Pod, nics []NIC) {
	said := false
	for i := range nics {
		nics[i].DefaultRoute = pod.Annotations[nics[i].Provider+defaultRouteSuffix] == "true"
		said = said || nics[i].DefaultRoute
	}
	if said {
		return
	}
	for i := range nics {
		nics[i].DefaultRoute = nics[i].Primary && pod.Annotations[nics[i].Provider+defaultRouteSuffix] != "false"
	}
}

// attachedProviders lists the providers of the NICs that the Pod has now, and whether each is the primary one. Only those of
// networks that the Pod names count: annotations may outlive a NIC, and users may ask for subnets by them.
func attachedProviders(pod *corev1.Pod) map[string]bool {
	annotated := annotatedProviders(pod.Annotations)
	out := make(map[string]bool, len(annotated))
	if len(annotated) == 0 {
		return out
	}
	for _, network := range parseNetworks(pod.Annotations[networksAnnotation], pod.Namespace) {
		for _, provider := range annotated {
			if network.provides(provider) {
				out[provider] = false
			}
		}
	}
	if provider, ok := primaryProvider(pod, annotated); ok {
		out[provider] = true
	}
	return out
}

// annotatedProviders lists every provider the annotations speak of, in order.
func annotatedProviders(annotations map[string]string) []string {
	var out []string
	for key := range annotations {
		for _, suffix := range []string{logicalSwitchSuffix, ipAddressSuffix, allocatedSuffix} {
			if provider, ok := strings.CutSuffix(key, suffix); ok && provider != "" {
				out = append(out, provider)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// primaryProvider finds the primary NIC's provider: "ovn", unless a default network names another.
func primaryProvider(pod *corev1.Pod, annotated []string) (string, bool) {
	hasOVN := slices.Contains(annotated, vpcnet.OVNProvider)
	value := pod.Annotations[defaultNetworkAnnotation]
	if value == "" {
		return vpcnet.OVNProvider, hasOVN
	}
	candidates := parseNetworks(value, pod.Namespace)
	if !strings.Contains(value, "/") {
		candidates = append(candidates, parseNetworks(value, multusNamespace)...)
	}
	for _, n := range candidates {
		for _, provider := range annotated {
			if n.provides(provider) {
				return provider, true
			}
		}
	}
	// The named network may be one whose provider is "ovn" itself; then Kube-OVN has allocated it.
	return vpcnet.OVNProvider, hasOVN && pod.Annotations[vpcnet.OVNProvider+allocatedSuffix] == "true"
}

// network is a NetworkAttachmentDefinition by name.
type network struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// provides tells whether a provider is this network's: <nad>.<ns>.ovn, <nad>.<ns>.ovn.<interface> where a Pod attaches the
// network twice, or <nad>.<ns> where Kube-OVN only manages its addresses.
func (n network) provides(provider string) bool {
	base := n.Name + "." + n.Namespace
	rest, ok := strings.CutPrefix(provider, base)
	if !ok {
		return false
	}
	return rest == "" || rest == "."+vpcnet.OVNProvider || strings.HasPrefix(rest, "."+vpcnet.OVNProvider+".")
}

// parseNetworks reads a network selection: "ns/name@if, name" or a JSON list of objects. What cannot be read attaches nothing, as in
// Multus, which then does not start the Pod.
func parseNetworks(value, defaultNamespace string) []network {
	value = strings.TrimSpace(value)
	if value == "" {
		return nil
	}
	var out []network
	if strings.HasPrefix(value, "[") {
		if err := json.Unmarshal([]byte(value), &out); err != nil {
			return nil
		}
	} else {
		for item := range strings.SplitSeq(value, ",") {
			item, _, _ = strings.Cut(strings.TrimSpace(item), "@")
			n := network{Name: item}
			if namespace, name, ok := strings.Cut(item, "/"); ok {
				n = network{Namespace: namespace, Name: name}
			}
			out = append(out, n)
		}
	}
	for i := range out {
		out[i].Name, out[i].Namespace = strings.TrimSpace(out[i].Name), strings.TrimSpace(out[i].Namespace)
		if out[i].Namespace == "" {
			out[i].Namespace = defaultNamespace
		}
	}
	return slices.DeleteFunc(out, func(n network) bool { return n.Name == "" })
}

// nicChoice is what became of looking for a Pod's NIC.
type nicChoice int

const (
	// nicFound: the NIC's address is the backend.
	nicFound nicChoice = iota
	// nicNone: the Pod is not Kube-OVN's; the endpoint's own address is the backend.
	nicNone
	// nicNotYet: more is to come, so it is no backend for now.
	nicNotYet
	// nicElsewhere: its NICs are in other VPCs, or have no IPv4 address.
	nicElsewhere
)

// chooseNIC finds the NIC in the VPC: of several, the one with the lowest IPv4 address. subnetVPCs has the VPCs of the Subnets there
// are.
func (p Pod) chooseNIC(vpc string, subnetVPCs map[string]string) (NIC, nicChoice) {
	if len(p.NICs) == 0 {
		if !p.HasIP {
			return NIC{}, nicNotYet
		}
		return NIC{}, nicNone
	}
	var (
		best    NIC
		pending bool
	)
	for _, nic := range p.NICs {
		nicVPC, known := subnetVPCs[nic.Subnet]
		switch {
		case !known, nic.Pending && nicVPC == vpc:
			pending = true
		case nicVPC != vpc || !nic.IPv4.IsValid():
		case !best.IPv4.IsValid() || nic.IPv4.Less(best.IPv4):
			best = nic
		}
	}
	switch {
	case best.IPv4.IsValid():
		return best, nicFound
	case pending || !p.HasIP:
		return NIC{}, nicNotYet
	}
	return NIC{}, nicElsewhere
}

// reach says whether the nodes reach a Pod's primary address: they are in the default VPC.
type reach int

const (
	reachUnknown reach = iota
	reachable
	unreachable
)

func (p Pod) nodesReach(subnetVPCs map[string]string) reach {
	for _, nic := range p.NICs {
		if !nic.Primary {
			continue
		}
		switch vpc, known := subnetVPCs[nic.Subnet]; {
		case !known:
			return reachUnknown
		case vpc == sharenat.DefaultVPC:
			return reachable
		}
		return unreachable
	}
	if !p.HasIP {
		return reachUnknown
	}
	return reachable
}
