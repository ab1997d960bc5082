// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
)

const (
	annotationNetworks       = "k8s.v1.cni.cncf.io/networks"
	annotationNetworkStatus  = "k8s.v1.cni.cncf.io/network-status"
	annotationDefaultNetwork = "v1.multus-cni.io/default-network"
	// AnnotationHoldNIC on a Pod names providers, separated by commas, whose NICs are neither annotated nor attached while
	// it is there. It stands for a CNI that is late.
	AnnotationHoldNIC = "lab.kubeovn.io/hold-nic"

	primaryInterface = "eth0"
)

// Attachment is one NIC that a Pod asks for.
type Attachment struct {
	// Providers are the names the NIC's annotations may have, the preferred one first.
	Providers []string
	// SubnetProviders are the same as a Subnet's spec.provider would name them.
	SubnetProviders []string
	Interface       string
	// Network is the NAD as namespace/name; empty for the primary NIC.
	Network string
	Addrs   []netip.Addr
	MAC     string
}

type networkSelection struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace"`
	Interface string   `json:"interface"`
	IPs       []string `json:"ips"`
	MAC       string   `json:"mac"`
}

// Attachments reads from a Pod's annotations which NICs it asks for, the primary one first.
func Attachments(pod *corev1.Pod) ([]Attachment, error) {
	primary := Attachment{Providers: []string{OVNProvider}, SubnetProviders: []string{OVNProvider}, Interface: primaryInterface}
	if text := pod.Annotations[annotationDefaultNetwork]; text != "" {
		selection, err := parseSelection(text, pod.Namespace)
		if err != nil {
			return nil, err
		}
		provider := strings.Join([]string{selection.Name, selection.Namespace, OVNProvider}, ".")
		primary.Providers, primary.SubnetProviders = []string{provider}, []string{provider}
	}
	result := []Attachment{primary}
	selections, err := parseSelections(pod.Annotations[annotationNetworks], pod.Namespace)
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	for _, s := range selections {
		count[s.Namespace+"/"+s.Name]++
	}
	used := sets.New(primaryInterface)
	for i, s := range selections {
		if s.Interface == "" {
			s.Interface = "net" + strconv.Itoa(i+1)
		}
		if used.Has(s.Interface) || len(s.Interface) > maxInterfaceName {
			return nil, fmt.Errorf("network %s/%s: interface name %q is taken or too long", s.Namespace, s.Name, s.Interface)
		}
		used.Insert(s.Interface)
		attachment, err := attachmentFrom(s, count[s.Namespace+"/"+s.Name] > 1)
		if err != nil {
			return nil, err
		}
		result = append(result, attachment)
	}
	return result, nil
}

func attachmentFrom(s networkSelection, several bool) (Attachment, error) {
	base := s.Name + "." + s.Namespace
	a := Attachment{
		SubnetProviders: []string{base + "." + OVNProvider, base}, Interface: s.Interface, Network: s.Namespace + "/" + s.Name, MAC: s.MAC,
	}
	for _, provider := range a.SubnetProviders {
		if several {
			provider += "." + s.Interface
		}
		a.Providers = append(a.Providers, provider)
	}
	addrs, err := parseAddrs(strings.Join(s.IPs, ","))
	if err != nil {
		return Attachment{}, fmt.Errorf("network %s: %w", a.Network, err)
	}
	a.Addrs = addrs
	return a, nil
}

func parseSelections(text, namespace string) ([]networkSelection, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "[") {
		var selections []networkSelection
		if err := json.Unmarshal([]byte(text), &selections); err != nil {
			return nil, fmt.Errorf("parse annotation %s: %w", annotationNetworks, err)
		}
		for i := range selections {
			if selections[i].Name == "" {
				return nil, fmt.Errorf("parse annotation %s: item %d has no name", annotationNetworks, i)
			}
			if selections[i].Namespace == "" {
				selections[i].Namespace = namespace
			}
		}
		return selections, nil
	}
	var selections []networkSelection
	for _, item := range stockrules.SplitList(text) {
		selection, err := parseSelection(item, namespace)
		if err != nil {
			return nil, err
		}
		selections = append(selections, selection)
	}
	return selections, nil
}

// parseSelection reads "namespace/name@interface", of which only the name is needed.
func parseSelection(text, namespace string) (networkSelection, error) {
	name, device, _ := strings.Cut(text, "@")
	if before, after, found := strings.Cut(name, "/"); found {
		namespace, name = before, after
	}
	if name == "" || namespace == "" || strings.ContainsAny(name, "/ @") {
		return networkSelection{}, fmt.Errorf("network %q is not namespace/name@interface", text)
	}
	return networkSelection{Name: name, Namespace: namespace, Interface: device}, nil
}

// NIC is an attachment with all decided.
type NIC struct {
	Provider  string
	Interface string
	Network   string
	Subnet    string
	VPC       string
	Overlay   bool
	Addrs     []netip.Prefix
	Gateways  []netip.Addr
	MAC       net.HardwareAddr
	// DefaultRoute tells whether the Pod's default route leaves by this NIC.
	DefaultRoute bool
	Routes       []Route
}

// WaitError says what a NIC waits for.
type WaitError struct{ Reason string }

func (e *WaitError) Error() string { return e.Reason }

// Resolution is what is known of a Pod's NICs.
type Resolution struct {
	NICs []NIC
	// Waiting maps what is missing: interface → why.
	Waiting map[string]string
}

// chosen is an attachment with its Subnet.
type chosen struct {
	Attachment

	Provider string
	Subnet   *Subnet
}

// chooseSubnets finds each attachment's Subnet and provider. Pure. What has none yet is in waiting.
func chooseSubnets(pod *corev1.Pod, attachments []Attachment, subnets []*Subnet, vpcs []*VPC) (found []chosen, waiting map[string]string) {
	held := sets.New(stockrules.SplitList(pod.Annotations[AnnotationHoldNIC])...)
	waiting = map[string]string{}
	for i, a := range attachments {
		if held.HasAny(a.Providers...) {
			waiting[a.Interface] = "held by annotation " + AnnotationHoldNIC
			continue
		}
		c, reason := chooseSubnet(pod, a, subnets)
		if c.Subnet == nil && reason == "" && i == 0 {
			c, reason = chooseByNamespace(pod, a, subnets, vpcs)
		}
		if c.Subnet == nil {
			if reason == "" {
				reason = "no subnet has provider " + strings.Join(a.SubnetProviders, " or ")
			}
			waiting[a.Interface] = reason
			continue
		}
		found = append(found, c)
	}
	return found, waiting
}

func chooseSubnet(pod *corev1.Pod, a Attachment, subnets []*Subnet) (chosen, string) {
	for i, provider := range a.Providers {
		name := pod.Annotations[provider+".kubernetes.io/logical_switch"]
		if name == "" {
			continue
		}
		subnet := findSubnet(subnets, func(s *Subnet) bool { return s.Name == name })
		if subnet == nil {
			return chosen{}, noSubnet(name)
		}
		// An IPAM-only Subnet under a provider with the ovn suffix: the annotation decides, the Subnet's kind follows.
		return chosen{Attachment: a, Provider: a.Providers[i], Subnet: subnet}, ""
	}
	for i, provider := range a.SubnetProviders {
		if provider == OVNProvider {
			continue // the namespace decides
		}
		if subnet := findSubnet(subnets, func(s *Subnet) bool { return s.Provider == provider }); subnet != nil {
			return chosen{Attachment: a, Provider: a.Providers[i], Subnet: subnet}, ""
		}
	}
	return chosen{}, ""
}

func noSubnet(name string) string { return "no subnet " + name }

func chooseByNamespace(pod *corev1.Pod, a Attachment, subnets []*Subnet, vpcs []*VPC) (chosen, string) {
	primary := func(s *Subnet) bool { return s.Provider == a.SubnetProviders[0] }
	subnet := findSubnet(subnets, func(s *Subnet) bool { return primary(s) && slices.Contains(s.Namespaces, pod.Namespace) })
	if subnet == nil {
		for _, vpc := range vpcs {
			if slices.Contains(vpc.Namespaces, pod.Namespace) {
				subnet = findSubnet(subnets, func(s *Subnet) bool { return s.Name == vpc.DefaultSubnet })
			}
		}
	}
	if subnet == nil {
		subnet = findSubnet(subnets, func(s *Subnet) bool { return primary(s) && s.Name == DefaultSubnet })
	}
	if subnet == nil {
		return chosen{}, "no subnet for namespace " + pod.Namespace
	}
	return chosen{Attachment: a, Provider: a.Providers[0], Subnet: subnet}, ""
}

func findSubnet(subnets []*Subnet, match func(*Subnet) bool) *Subnet {
	if i := slices.IndexFunc(subnets, match); i >= 0 {
		return subnets[i]
	}
	return nil
}

// assign gives the chosen NICs their addresses.
func assign(pod *corev1.Pod, found []chosen, ipam *IPAM) (Resolution, error) {
	result := Resolution{Waiting: map[string]string{}}
	for _, c := range found {
		annotation := func(key string) string { return pod.Annotations[c.Provider+".kubernetes.io/"+key] }
		wanted, err := parseAddrs(annotation("ip_address"))
		if err != nil {
			return result, fmt.Errorf("annotation %s.kubernetes.io/ip_address: %w", c.Provider, err)
		}
		if len(wanted) == 0 {
			wanted = c.Addrs
		}
		owner := Owner{PodUID: string(pod.UID), Pod: pod.Namespace + "/" + pod.Name, Provider: c.Provider}
		addrs, err := ipam.Assign(c.Subnet, owner, wanted)
		if err != nil {
			result.Waiting[c.Interface] = err.Error()
			continue
		}
		nic := NIC{
			Provider: c.Provider, Interface: c.Interface, Network: c.Network, Subnet: c.Subnet.Name, VPC: c.Subnet.VPC,
			Overlay: c.Subnet.Overlay(), Gateways: c.Subnet.Gateways,
			MAC: nicMAC(c.Subnet, addrs[0], string(pod.UID)),
		}
		for i, addr := range addrs {
			nic.Addrs = append(nic.Addrs, netip.PrefixFrom(addr, c.Subnet.Prefixes[i].Bits()))
		}
		if nic.Routes, err = parseRoutes(annotation("routes")); err != nil {
			return result, fmt.Errorf("annotation %s.kubernetes.io/routes: %w", c.Provider, err)
		}
		for _, text := range []string{annotation("mac_address"), c.MAC} {
			if mac, err := net.ParseMAC(text); err == nil {
				nic.MAC = mac
				break
			}
		}
		result.NICs = append(result.NICs, nic)
	}
	return result, nil
}

func parseRoutes(text string) ([]Route, error) {
	if text == "" {
		return nil, nil
	}
	var items []struct {
		Dst string `json:"dst"`
		GW  string `json:"gw"`
	}
	if err := json.Unmarshal([]byte(text), &items); err != nil {
		return nil, err
	}
	byDst := map[netip.Prefix][]netip.Addr{}
	for _, item := range items {
		via, err := netip.ParseAddr(item.GW)
		if err != nil {
			return nil, err
		}
		dst := anywhere(via)
		if item.Dst != "" {
			if dst, err = stockrules.ParsePrefixOrAddr(item.Dst); err != nil {
				return nil, err
			}
		}
		byDst[dst] = append(byDst[dst], via)
	}
	return sortedRoutes(byDst), nil
}

// placeDefaultRoute decides which NIC has the Pod's default route: the one whose annotation says so, else the primary.
func placeDefaultRoute(pod *corev1.Pod, nics []NIC) {
	at := -1
	for i, nic := range nics {
		if nic.Network != "" && pod.Annotations[nic.Provider+".kubernetes.io/default_route"] == "true" {
			at = i
			break
		}
	}
	for i := range nics {
		nics[i].DefaultRoute = i == at || (at < 0 && nics[i].Network == "")
	}
}

// Annotations are those that Kube-OVN and Multus write on a Pod with these NICs.
func Annotations(nics []NIC) (map[string]string, error) {
	annotations := map[string]string{}
	var statuses []map[string]any
	for _, nic := range nics {
		prefix := nic.Provider + ".kubernetes.io/"
		var addrs, cidrs []string
		for _, addr := range nic.Addrs {
			addrs = append(addrs, addr.Addr().String())
			cidrs = append(cidrs, addr.Masked().String())
		}
		annotations[prefix+"logical_switch"] = nic.Subnet
		annotations[prefix+"ip_address"] = strings.Join(addrs, ",")
		annotations[prefix+"mac_address"] = nic.MAC.String()
		annotations[prefix+"cidr"] = strings.Join(cidrs, ",")
		annotations[prefix+"gateway"] = joinAddrs(nic.Gateways)
		annotations[prefix+"allocated"] = "true"
		if nic.Overlay {
			annotations[prefix+"logical_router"] = nic.VPC
			annotations[prefix+"pod_nic_type"] = "veth-pair"
			annotations[prefix+"routed"] = "true"
		}
		status := map[string]any{
			"name": "kube-ovn", "interface": nic.Interface, "ips": addrs, "mac": nic.MAC.String(), "dns": map[string]any{},
		}
		if nic.Network == "" {
			status["default"] = true
		} else {
			status["name"] = nic.Network
		}
		if nic.DefaultRoute {
			status["gateway"] = strings.Split(joinAddrs(nic.Gateways), ",")
		}
		statuses = append(statuses, status)
	}
	text, err := json.MarshalIndent(statuses, "", "    ")
	if err != nil {
		return nil, err
	}
	annotations[annotationNetworkStatus] = string(text)
	return annotations, nil
}

func joinAddrs(addrs []netip.Addr) string {
	texts := make([]string, len(addrs))
	for i, addr := range addrs {
		texts[i] = addr.String()
	}
	return strings.Join(texts, ",")
}
