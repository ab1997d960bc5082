#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# nat-gateway.sh as far as it can be told from outside how Kube-OVN's own works: its verbs, what they take, the chains and the nft
# layout that they leave, and how it chooses iptables. In a lab it is in the image "vpc-nat-gateway", and beside this project's
# script in the one that lays that over it.
#
#   nat-gateway.sh VERB [ARG…]
#
# Each verb takes several rules, one an argument.
set -uo pipefail

# What init leaves for the other verbs.
ENV_FILE=/etc/kube-ovn/nat-gateway.env
VPC_INTERFACE=eth0
EXTERNAL_INTERFACE=net1
if [[ -r $ENV_FILE ]]; then
  # shellcheck source=/dev/null
  source "$ENV_FILE"
fi

# Legacy wherever the kernel has it.
IPTABLES=iptables
if iptables-legacy -t nat -S INPUT 1 >/dev/null 2>&1; then
  IPTABLES=iptables-legacy
fi

fail() {
  echo "$*" >&2
  exit 1
}

# run CMD… runs it, and ends with it where it fails.
run() { "$@" || fail "failed to exec command \"$*\""; }

nat() { run "$IPTABLES" -w -t nat "$@"; }

# add CHAIN RULE… appends a rule that is not there yet, del takes one away that is.
add() { "$IPTABLES" -w -t nat -C "$@" 2>/dev/null || nat -A "$@"; }
del() {
  if "$IPTABLES" -w -t nat -C "$@" 2>/dev/null; then nat -D "$@"; fi
}

need_init() { "$IPTABLES" -w -t nat -S DNAT_FILTER >/dev/null 2>&1 || fail "nat gateway not initialized"; }

# announce ADDRESS tells the neighbours. arping sends at once and then waits for answers that never come.
announce() { timeout 0.2 arping -q -U -c 1 -I "$EXTERNAL_INTERFACE" "$1" >/dev/null 2>&1 || true; }

init() {
  local chain address
  if (($# > 0)) && [[ -n $1 ]]; then
    VPC_INTERFACE=${1%%,*} EXTERNAL_INTERFACE=${1#*,}
  fi
  mkdir -p "$(dirname "$ENV_FILE")"
  printf 'VPC_INTERFACE=%s\nEXTERNAL_INTERFACE=%s\n' "$VPC_INTERFACE" "$EXTERNAL_INTERFACE" >"$ENV_FILE"
  if "$IPTABLES" -w -t nat -S DNAT_FILTER >/dev/null 2>&1; then return 0; fi
  for chain in DNAT_FILTER SNAT_FILTER EXCLUSIVE_DNAT EXCLUSIVE_SNAT SHARED_DNAT SHARED_SNAT HAIRPIN_SNAT; do
    nat -N "$chain"
  done
  nat -A PREROUTING -j DNAT_FILTER
  nat -A DNAT_FILTER -j EXCLUSIVE_DNAT
  nat -A DNAT_FILTER -j SHARED_DNAT
  nat -A POSTROUTING -j SNAT_FILTER
  nat -A SNAT_FILTER -j EXCLUSIVE_SNAT
  nat -A SNAT_FILTER -j SHARED_SNAT
  nat -A SNAT_FILTER -j HAIRPIN_SNAT
  run "$IPTABLES" -w -t mangle -N VPC_MARK
  run "$IPTABLES" -w -t mangle -A VPC_MARK -i "$VPC_INTERFACE" -j MARK --set-xmark 0x1
  run "$IPTABLES" -w -t mangle -A PREROUTING -j VPC_MARK
  address=$(ip -o -4 addr show dev "$EXTERNAL_INTERFACE" | awk '{ sub("/.*", "", $4); print $4; exit }')
  [[ -z $address ]] || announce "$address"
}

hairpin() { echo "-o $VPC_INTERFACE -m mark --mark 0x1 -m conntrack --ctorigdst $1 -j SNAT --to-source $1 --random-fully"; }

eip_add() {
  local cidr rule
  need_init
  for cidr in "$@"; do
    run ip addr replace "$cidr" dev "$EXTERNAL_INTERFACE"
    run ip link set dev "$EXTERNAL_INTERFACE" up
    if [[ -n ${GATEWAY_V4:-} ]]; then run ip route replace default via "$GATEWAY_V4" dev "$EXTERNAL_INTERFACE"; fi
    if [[ -n ${GATEWAY_V6:-} ]]; then run ip -6 route replace default via "$GATEWAY_V6" dev "$EXTERNAL_INTERFACE"; fi
    read -r -a rule < <(hairpin "${cidr%/*}")
    add HAIRPIN_SNAT "${rule[@]}"
    announce "${cidr%/*}"
  done
}

eip_del() {
  local cidr rule
  need_init
  for cidr in "$@"; do
    if [[ $(ip -o addr show dev "$EXTERNAL_INTERFACE") == *" $cidr "* ]]; then run ip addr del "$cidr" dev "$EXTERNAL_INTERFACE"; fi
    read -r -a rule < <(hairpin "${cidr%/*}")
    del HAIRPIN_SNAT "${rule[@]}"
  done
}

subnet_route_add() {
  local route
  for route in "$@"; do
    run ip route replace "${route%%,*}" via "${route#*,}" dev "$VPC_INTERFACE"
  done
}

subnet_route_del() {
  local route
  for route in "$@"; do
    if [[ $(ip route show "${route%%,*}" dev "$VPC_INTERFACE") == *via* ]]; then run ip route del "${route%%,*}" dev "$VPC_INTERFACE"; fi
  done
}

# eip,dport,proto,ip,port
dnat_add() {
  local rule eip dport proto ip port
  need_init
  for rule in "$@"; do
    IFS=, read -r eip dport proto ip port <<<"$rule"
    add SHARED_DNAT -d "$eip" -p "$proto" --dport "$dport" -j DNAT --to-destination "$ip:$port"
  done
}

# eip,dport,proto: by identity.
dnat_del() {
  local rule eip dport proto line
  local -a words
  need_init
  for rule in "$@"; do
    IFS=, read -r eip dport proto _ <<<"$rule"
    while read -r line; do
      read -r -a words <<<"${line#-A }"
      nat -D "${words[@]}"
    done < <("$IPTABLES" -w -t nat -S SHARED_DNAT | grep -F -- "-A SHARED_DNAT -d $eip/32 -p $proto " | grep -F -- " --dport $dport -j DNAT ")
    conntrack -D -d "$eip" -p "$proto" --dport "$dport" >/dev/null 2>&1 || true
  done
}

# eip,cidr[,random]
snat_add() {
  local rule eip cidr random
  need_init
  for rule in "$@"; do
    IFS=, read -r eip cidr random <<<"$rule"
    add SHARED_SNAT -o "$EXTERNAL_INTERFACE" -s "$cidr" -j SNAT --to-source "$eip" ${random:+"$random"}
  done
}

snat_del() {
  local rule eip cidr random
  need_init
  for rule in "$@"; do
    IFS=, read -r eip cidr random <<<"$rule"
    del SHARED_SNAT -o "$EXTERNAL_INTERFACE" -s "$cidr" -j SNAT --to-source "$eip" ${random:+"$random"}
  done
}

# eip,ip
floating_ip_add() {
  local rule
  need_init
  for rule in "$@"; do
    add EXCLUSIVE_DNAT -d "${rule%,*}" -j DNAT --to-destination "${rule#*,}"
    add EXCLUSIVE_SNAT -s "${rule#*,}" -j SNAT --to-source "${rule%,*}"
  done
}

floating_ip_del() {
  local rule
  need_init
  for rule in "$@"; do
    del EXCLUSIVE_DNAT -d "${rule%,*}" -j DNAT --to-destination "${rule#*,}"
    del EXCLUSIVE_SNAT -s "${rule#*,}" -j SNAT --to-source "${rule%,*}"
    conntrack -D -d "${rule%,*}" >/dev/null 2>&1 || true
  done
}

# hash_of TEXT COUNT gives the first digits of its MD5.
hash_of() { printf %s "$1" | md5sum | cut -c "1-$2"; }

# pins HASH lists the objects that keep the clients of an identity, "set NAME" and "chain NAME".
pins() { nft -t list table ip kube-ovn 2>/dev/null | awk -v h="$1" '($1 == "set" || $1 == "chain") && ($2 ~ "^(aff|ep)-" h "-") { print $1, $2 }'; }

# drop_pins HASH [KEPT…] deletes those that are not kept. Whatever goes wrong with it is no error.
drop_pins() {
  local hash=$1 type name
  shift
  {
    while read -r type name; do
      [[ " $* " == *" ${name#*-} "* || $type == set ]] || printf 'flush chain ip kube-ovn %s\ndelete chain ip kube-ovn %s\n' "$name" "$name"
    done < <(pins "$hash")
    while read -r type name; do
      [[ " $* " == *" ${name#*-} "* || $type == chain ]] || printf 'delete set ip kube-ovn %s\n' "$name"
    done < <(pins "$hash")
  } | nft -f - 2>/dev/null || true
}

# join ITEM… puts commas between them.
join() {
  local IFS=,
  echo "$*"
}

table() {
  cat <<'TABLE'
add table ip kube-ovn
add chain ip kube-ovn prerouting { type nat hook prerouting priority -150; policy accept; }
add map ip kube-ovn service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
flush chain ip kube-ovn prerouting
add rule ip kube-ovn prerouting ip daddr . ip protocol . th dport vmap @service-ips
TABLE
}

# nft_map_add EIP DPORT PROTO AFFINITY TIMEOUT BACKENDS
nft_map_add() {
  local eip=$1 dport=$2 proto=$3 affinity=$4 timeout=$5 hash i=0 backend pin
  local -a backends targets=() doors=() pins=()
  hash=$(hash_of "$eip:$dport:$proto" 12)
  IFS=@ read -r -a backends <<<"$6"
  {
    table
    printf 'add chain ip kube-ovn dnat-%s\nflush chain ip kube-ovn dnat-%s\n' "$hash" "$hash"
    for backend in "${backends[@]}"; do
      targets+=("$i : ${backend%:*} . ${backend##*:}")
      if [[ $affinity == clientip ]]; then
        pin=$hash-$(hash_of "$backend" 8)
        pins+=("$pin")
        doors+=("$i : goto ep-$pin")
        printf 'add set ip kube-ovn aff-%s { type ipv4_addr; size 65535; flags dynamic,timeout; timeout %ss; }\n' "$pin" "$timeout"
        printf 'add chain ip kube-ovn ep-%s\nflush chain ip kube-ovn ep-%s\n' "$pin" "$pin"
        printf 'add rule ip kube-ovn ep-%s update @aff-%s { ip saddr timeout %ss }\n' "$pin" "$pin" "$timeout"
        printf 'add rule ip kube-ovn ep-%s meta l4proto %s dnat to %s\n' "$pin" "$proto" "$backend"
        printf 'add rule ip kube-ovn dnat-%s ip saddr @aff-%s goto ep-%s\n' "$hash" "$pin" "$pin"
      fi
      i=$((i + 1))
    done
    if [[ $affinity == clientip ]]; then
      printf 'add rule ip kube-ovn dnat-%s numgen random mod %d vmap { %s }\n' "$hash" "$i" "$(join "${doors[@]}")"
    else
      printf 'add rule ip kube-ovn dnat-%s meta l4proto %s dnat to numgen random mod %d map { %s }\n' "$hash" "$proto" "$i" "$(join "${targets[@]}")"
    fi
    printf 'add element ip kube-ovn service-ips { %s . %s . %s : goto dnat-%s }\n' "$eip" "${proto,,}" "$dport" "$hash"
  } >"/tmp/nft.$$"
  # Sets keep the timeout that they were made with: one that has another goes first.
  [[ $affinity != clientip ]] || retime "$hash" "$timeout"
  run nft -f "/tmp/nft.$$"
  rm -f "/tmp/nft.$$"
  drop_pins "$hash" ${pins[@]+"${pins[@]}"}
}

# retime HASH SECONDS takes pins away whose timeout is another.
retime() {
  local set
  set=$(pins "$1" | awk '$1 == "set" { print $2; exit }')
  [[ -n $set ]] || return 0
  if [[ ! $(nft -j -t list set ip kube-ovn "$set") =~ '"timeout": '$2[,}] ]]; then
    nft flush chain ip kube-ovn "dnat-$1" 2>/dev/null || true
    drop_pins "$1"
  fi
}

# eip,dport,proto,ip:port@… or eip,dport,proto,affinity,timeout,ip:port@…
nft_dnat_map_add() {
  local rule
  local -a field
  for rule in "$@"; do
    IFS=, read -r -a field <<<"$rule"
    case ${#field[@]} in
    4) nft_map_add "${field[0]}" "${field[1]}" "${field[2]}" none 0 "${field[3]}" ;;
    6) nft_map_add "${field[@]}" ;;
    *) fail "invalid rule \"$rule\"" ;;
    esac
  done
}

# eip,dport,proto: first the way in, then the rest, in steps.
nft_dnat_map_del() {
  local rule eip dport proto hash
  for rule in "$@"; do
    IFS=, read -r eip dport proto <<<"$rule"
    hash=$(hash_of "$eip:$dport:$proto" 12)
    if nft list chain ip kube-ovn "dnat-$hash" >/dev/null 2>&1; then
      nft delete element ip kube-ovn service-ips "{ $eip . ${proto,,} . $dport }" 2>/dev/null || true
      nft flush chain ip kube-ovn "dnat-$hash" 2>/dev/null || true
      nft delete chain ip kube-ovn "dnat-$hash" 2>/dev/null || true
      drop_pins "$hash"
    fi
    conntrack -D -d "$eip" -p "${proto,,}" --dport "$dport" >/dev/null 2>&1 || true
  done
}

verb=${1:-}
shift || true
case $verb in
init) init "$@" ;;
eip-add) eip_add "$@" ;;
eip-del) eip_del "$@" ;;
subnet-route-add) subnet_route_add "$@" ;;
subnet-route-del) subnet_route_del "$@" ;;
dnat-add) dnat_add "$@" ;;
dnat-del) dnat_del "$@" ;;
nft-dnat-map-add) nft_dnat_map_add "$@" ;;
nft-dnat-map-del) nft_dnat_map_del "$@" ;;
snat-add) snat_add "$@" ;;
snat-del) snat_del "$@" ;;
floating-ip-add) floating_ip_add "$@" ;;
floating-ip-del) floating_ip_del "$@" ;;
get-iptables-version) "$IPTABLES" --version ;;
*) fail "Usage: $0 [init|subnet-route-add|subnet-route-del|eip-add|eip-del|floating-ip-add|floating-ip-del|dnat-add|dnat-del|nft-dnat-map-add|nft-dnat-map-del|snat-add|snat-del|get-iptables-version] ..." ;;
esac
