#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# nat-gateway.sh programs one VPC NAT gateway: the share (load-balanced) DNATs in
# nftables, everything else in iptables and iproute2. It runs inside the gateway
# pod, called through pods/exec; docs/gateway-protocol.md is the contract.
#
#   nat-gateway.sh VERB [ARG…]
#
#   init [VPCIF,EXTIF]             eip-add CIDR…           eip-del CIDR…
#   subnet-route-add CIDR,NEXTHOP… subnet-route-del CIDR[,NEXTHOP]…
#   dnat-add EIP,DPORT,PROTO,IP,PORT…                      dnat-del EIP,DPORT,PROTO[,IP,PORT]…
#   nft-dnat-map-add EIP,DPORT,PROTO,[AFFINITY,TIMEOUT,]IP:PORT@IP:PORT…
#   nft-dnat-map-del EIP,DPORT,PROTO…
#   nft-dnat-map-sync <state       nft-dnat-map-list       get-iptables-version
#
# How a call goes: read the input, take the lock, parse and validate all of it,
# apply it as one transaction, then clean up what the change left behind. Nothing
# is applied unless all of it is valid. The number of processes a call starts does
# not depend on the number of identities or backends in it.
#
# The nft layout (table ip kube-ovn; h = first 12 hex digits of md5("eip:dport:proto"))
#
#   prerouting (nat, -150)   ip daddr . l4proto . dport vmap @service-ips
#   service-ips              eip . proto . dport : goto dnat-<h>
#   dnat-<h>                 [jump src-<h>]          source ranges, see below
#     no affinity            dnat to numgen random mod N map { slot : ip . port }, to ip:port
#                              where there is but one
#     ClientIP               jump pin-<h>-<timeout>, twice
#   pin-<h>-<timeout>        1 ct mark := a random backend's mark; put saddr : mark
#                              into @aff-<h> (an entry that is there keeps its mark,
#                              and its clock starts anew)
#                            2 jump aff-<h>-get
#                            3 dnat to ct mark map { mark : ip . port }
#                              (of a lone backend, without maps: 1 ct mark := its mark,
#                              3 where ct mark is its mark, dnat to ip:port)
#                            4 only reached when that backend is gone: drop the entry.
#                              The second jump then pins the client anew.
#   aff-<h>-get              ct mark := what @aff-<h> now holds for saddr. A chain of its own
#                            that no update touches: whenever a rule that looks something
#                            up in a map is made, the kernel goes through all of the map
#     drop                   at the end of dnat-<h>, see below
#   src-<h>                  one rule a prefix length that returns, then drop
#   dnat-<h>-<kind>          empty, led to by nothing: says of what kind the identity
#                            is, see "The short way"
#   postrouting (nat, 90)    eip . proto . dport, as the client sent it, vmap @masquerade-ips;
#                            empty as long as no identity masquerades
#   masq-<h>                 masquerade, to all backends or to a set of them
#
# All content of an identity sits in rules and their anonymous maps, so that a
# change is "flush chain, add rules" in one transaction, and its digest can be
# recomputed from the kernel. Only the clients' pins are in a named map, which is
# never read, printed or rewritten by an update. One map lookup whatever the number
# of backends: a new flow costs the same with 1 as with 1000.
#
# The kernel runs a packet through the rules of one generation, but looks it up in
# maps as they are at that moment. A packet that was on its way through a chain
# while a transaction replaced it finds the anonymous maps of the old rules empty.
# It must not go on, to a gateway that would refuse the connection: the drop at the
# end makes the client send again, and the new rules answer. Rule 4 of a pin chain
# looks something up as well, always there, so that such a packet, which stops at
# it, leaves the pin alone.
#
# Writing the pin before reading it back makes two first connections of one client
# on two CPUs agree; a map that is full means no pin, not no connection.
#
# The pin's value is the connection's ct mark, a number made from the backend's
# address and port, so pins survive whatever comes and goes around their backend.
# The ct mark stays on the connection and nobody else here uses it: iptables'
# VPC_MARK is on the packet's mark.
#
# The short way. A change of backends is what a gateway is called for most, and what
# else there is in it must not slow it down. But whoever adds a rule with nft 1.0.6 waits
# until nft has read all sets of all tables from the kernel, anonymous ones as well, and
# so does whoever deletes anything or asks what is there. Three commands do not: "add
# chain" with its rules in braces, "add map" with its elements, and "flush chain", which
# fails where there is no such chain. So the chain dnat-<h>-<kind> is a promise that
# the identity has the objects of that kind (timeout of the pins, source ranges,
# masquerading) and no others. A transaction that begins with flushing it fails as a
# whole where the promise does not hold, and then the long way is taken; where it
# holds nothing has to be asked, or deleted. Older scripts take the chain for a leftover of
# the identity that they change, and remove it. What kind an identity was given last is
# also in a file beside the lock. That is only a hint which saves trying in vain.

set -euo pipefail
export LC_ALL=C

readonly PROG=nat-gateway.sh
readonly TABLE=kube-ovn
readonly ROUTE_PROTO=196   # marks the routes that subnet-route-add made
readonly ROUTE_METRIC=196  # behind connected routes, which must not be replaced
# Less than the 30 s after which the controller gives a call up, lists the gateway and
# goes on from there: a call that still waited then would put back what has changed since.
readonly LOCK_WAIT=20

# From how many identities in a call on the long way is as good.
readonly SHORT_MAX=32

VERB=${1:-}
TMP=
PLANNER= # what begin_share has started
NFT=
KINDS= # the directory of hints, "" where the short way cannot be taken

# What tools say names the room, which is another one each time. The caller tells what is new by the text.
say() {
	local said="$*"
	[[ -z $TMP ]] || said=${said//"$TMP/"/}
	printf '%s\n' "$said" >&2
}
fail() {
	say "$PROG: $VERB: $*"
	exit 1
}
warn() { say "Warning: $PROG: $VERB: $*"; }

# ---------------------------------------------------------------------------
# Room to work in, and the lock
# ---------------------------------------------------------------------------

make_room() {
	local base=/tmp
	[[ -d /dev/shm && -w /dev/shm ]] && base=/dev/shm
	umask 077
	TMP=$base/nat-gateway.$$.$SRANDOM
	# mkdir fails on anything that is there already, so the name need not be secret.
	mkdir -- "$TMP" "$TMP/hash" || exit 1
	trap clean_up EXIT
}

# clean_up ends a call that does not end by leave. What was begun ahead of time ends, too, and is waited for: the first
# process of the container, which would inherit it, is a sleep that never looks after its children.
clean_up() {
	local status=$?
	exec 7>&- 8>&-
	wait ${PLANNER:+"$PLANNER"} ${NFT:+"$NFT"} || true
	rm -rf -- "$TMP"
	exit "$status"
}

# leave ends a call in which all went well.
leave() {
	local -a gone=()
	[[ ! -s $TMP/gone ]] || mapfile -t gone <"$TMP/gone"
	trap - EXIT
	exec rm -rf -- "$TMP" "${gone[@]}"
}

# One lock a gateway. Nothing that outlives a call is ever started, so the lock
# goes with this process and what it has started. From here on a hang-up of the caller
# does not stop the call halfway between nft and conntrack.
RUN_DIR=/run
[[ -d /etc/kube-ovn && -w /etc/kube-ovn ]] && RUN_DIR=/etc/kube-ovn
open_lock() { exec 9>"$RUN_DIR/nat-gateway.lock"; }
take_lock() {
	[[ -e /proc/self/fd/9 ]] || open_lock
	flock -w "$LOCK_WAIT" 9 7>&- 8>&- || fail "another call holds $RUN_DIR/nat-gateway.lock for more than ${LOCK_WAIT}s"
	trap '' HUP INT TERM PIPE
}

# know_kinds finds out whether this nft can take the short way: 1.0.6 as it was released
# ignores rules in the braces of a chain, and so has nothing against one that leads
# nowhere. That is asked once a container.
know_kinds() {
	KINDS=$RUN_DIR/nat-gateway.kinds
	if [[ ! -e $KINDS ]]; then
		if printf 'add table ip %s\nadd chain ip %s probe { goto nowhere; }\n' "$TABLE" "$TABLE" | nft -c -f - 2>/dev/null; then
			: 2>/dev/null >"$KINDS" || true
		else
			mkdir -- "$KINDS" 2>/dev/null || true
		fi
	fi
	[[ -d $KINDS && -w $KINDS ]] || KINDS=
}

# save_args ARG… writes the arguments one a line, for the parser.
save_args() {
	local arg
	(($# > 0)) || fail "needs at least one argument"
	for arg in "$@"; do
		[[ $arg == *$'\n'* ]] && fail "an argument must be one line: \"${arg//$'\n'/?}\""
	done
	printf '%s\n' "$@" >"$TMP/input"
}

# run_awk PROGRAM [-v NAME=VALUE…] runs one of the programs below. They say what is
# wrong in $TMP/error: /dev/stderr cannot be opened when it is a socket.
run_awk() {
	local program=$1
	shift
	awk -v tmp="$TMP" "$@" "$AWK_COMMON$program" </dev/null || awk_failed
}
awk_failed() {
	local message=
	[[ ! -s $TMP/error ]] || message=$(<"$TMP/error")
	fail "${message:-internal error: awk failed}"
}

# ---------------------------------------------------------------------------
# awk. POSIX, and what mawk, gawk and busybox agree on: no {n,m} in regular
# expressions, no length(array), no ^ operator, %.0f to print numbers past 2^31, and no such number
# as an array index (mawk writes it with %.6g, so that many become one).
# ---------------------------------------------------------------------------

# shellcheck disable=SC2016  # awk's dollars, not the shell's
readonly AWK_COMMON='
function die(line, what, input) {
	gsub(/[^ -~]/, "?", input)
	if (length(input) > 200) input = substr(input, 1, 200) "..."
	oops("line " line ": " what ": \"" input "\"")
}
function oops(what) {
	print what > (tmp "/error")
	close(tmp "/error")
	exit 1
}

# The number of an IPv4 address, -1 where it is none. As there are many addresses, their
# parts are looked up, not matched.
function ipnum(s,    o, i) {
	if (!(255 in octet)) for (i = 0; i < 256; i++) octet[i ""] = i
	if (split(s, o, ".") != 4 || !(o[1] in octet) || !(o[2] in octet) || !(o[3] in octet) || !(o[4] in octet)) return -1
	return octet[o[1]] * 16777216 + octet[o[2]] * 65536 + octet[o[3]] * 256 + octet[o[4]]
}
function ipstr(n) {
	return int(n / 16777216) "." int(n / 65536) % 256 "." int(n / 256) % 256 "." n % 256
}
function isport(s) {
	if (s in port_seen) return 1
	if (s !~ /^[1-9][0-9]?[0-9]?[0-9]?[0-9]?$/ || s + 0 > 65535) return 0
	port_seen[s] = 1
	return 1
}

# An IPv4 prefix: sets P_num and P_len; hostbits says whether an address with its
# prefix length (10.0.0.5/24) will do as well.
function isprefix(s, hostbits,    p) {
	if (split(s, p, "/") != 2) return 0
	P_num = ipnum(p[1])
	if (P_num < 0 || p[2] !~ /^(0|[1-9][0-9]?)$/ || p[2] + 0 > 32) return 0
	P_len = p[2] + 0
	return hostbits || P_num % two_to(32 - P_len) == 0
}
function two_to(n,    p) {
	for (p = 1; n > 0; n--) p *= 2
	return p
}
# The 32-bit netmask of a prefix length.
function mask(len) { return ipstr(4294967296 - two_to(32 - len)) }

# Sorts keys[1..n] with vals[] along (heap sort: no recursion, no worst case).
function sift(keys, vals, i, n,    c, k, v) {
	k = keys[i]; v = vals[i]
	while ((c = 2 * i) <= n) {
		if (c < n && keys[c] < keys[c + 1]) c++
		if (k >= keys[c]) break
		keys[i] = keys[c]; vals[i] = vals[c]
		i = c
	}
	keys[i] = k; vals[i] = v
}
function sort(keys, vals, n,    i, k, v) {
	for (i = 2; i <= n && keys[i - 1] <= keys[i]; i++);
	if (i > n) return
	for (i = int(n / 2); i >= 1; i--) sift(keys, vals, i, n)
	for (i = n; i > 1; i--) {
		k = keys[1]; keys[1] = keys[i]; keys[i] = k
		v = vals[1]; vals[1] = vals[i]; vals[i] = v
		sift(keys, vals, 1, i - 1)
	}
}

# Canonical form of a comma-separated list of prefixes, "" where one is bad.
function sources(list, line,    s, n, i, keys, vals, out, last) {
	n = split(list, s, ",")
	if (n == 0) die(line, "empty list of sources", list)
	for (i = 1; i <= n; i++) {
		if (!isprefix(s[i], 0)) die(line, "not an IPv4 prefix", s[i])
		keys[i] = P_num * 64 + P_len
		vals[i] = s[i]
	}
	sort(keys, vals, n)
	out = last = ""
	for (i = 1; i <= n; i++) {
		if (vals[i] != last) out = out (out == "" ? "" : ",") vals[i]
		last = vals[i]
	}
	return out
}
'

# shellcheck disable=SC2016
readonly AWK_VERDICTS='
# A line of a listed verdict map, "1.1.1.1 . 6 . 80 : goto dnat-…, …", perhaps after "elements = {": each goes to element(). Somebody may
# have put other verdicts there, protocols that no identity has, or comments.
function verdicts(map, line,    e, n, i, f) {
	gsub(/ comment "[^"]*"/, "", line)
	sub(/^.*elements = [{] /, "", line)
	sub(/ [}].*$/, "", line)
	n = split(line, e, ",")
	for (i = 1; i <= n; i++) {
		if (split(e[i], f, " ") < 7 || f[6] != ":") continue
		element(map, f[1], (f[3] == "6" ? "tcp" : f[3] == "17" ? "udp" : f[3]), f[5], f[7] " " f[8], f[8])
	}
}
'

# plan.awk: reads $TMP/input, the desired share state, and what the kernel has of
# it, and writes
#   apply      the transaction that makes it so
#   sweep      a second one, deleting what the first one emptied
#   conntrack  which connections the change leaves without their backend
#   retime     maps whose pins are to get another timeout
#
# mode: sync | add | del. way: short, and long where it cannot be taken; long: read the names of
# what is there; deep: read all of it; anew: of a full state, after throwing away what is there.
# shellcheck disable=SC2016
readonly AWK_PLAN='
function known(k) { return k in index_of }

function proto_of(line, ip, port, proto,    p) {
	p = tolower(proto)
	if (ipnum(ip) < 0) die(line, "not an IPv4 address", ip)
	if (!isport(port)) die(line, "not a port (1-65535)", port)
	if (p != "tcp" && p != "udp") die(line, "protocol is neither tcp nor udp", proto)
	return p
}
function new_identity(line, ip, port, proto,    i, p) {
	p = proto_of(line, ip, port, proto)
	i = ++n_ids
	eip[i] = ip; dport[i] = port; l4[i] = p
	key[i] = ip " . " p " . " port
	at_line[i] = line
	return i
}
function affinity(i, aff, timeout, line) {
	if (aff != "none" && aff != "clientip") die(line, "affinity is neither none nor clientip", aff)
	if (aff == "none" && timeout != "0") die(line, "timeout without affinity is not 0", timeout)
	if (aff == "clientip" && (!isport(timeout) && timeout !~ /^[6-8][0-9][0-9][0-9][0-9]$/ || timeout + 0 > 86400))
		die(line, "not a timeout (1-86400 seconds)", timeout)
	aff_of[i] = aff; timeout_of[i] = timeout + 0
}
function new_backend(i, ip, port, masq, line,    num) {
	num = ipnum(ip)
	if (num < 0) die(line, "not an IPv4 address", ip)
	if (!isport(port)) die(line, "not a port (1-65535)", port)
	add_backend(i, num, ip, port, masq)
}
function add_backend(i, num, ip, port, masq,    j) {
	j = i SUBSEP (++n_be[i])
	be_key[j] = num * 65536 + port
	be_val[j] = ip " . " port
	if (masq) { be_masq[i, be_val[j]] = 1; n_masq[i]++ }
}

# Sorts the backends of identity i; says which one is there twice, "" if none is.
function settle(i,    j, keys, vals, n, m, k, last) {
	n = n_be[i]
	for (j = 1; j <= n; j++) {
		k = be_key[i, j]
		if (k <= last) break
		last = k
	}
	if (j > n) return ""
	for (j = 1; j <= n; j++) { keys[j] = be_key[i, j]; vals[j] = be_val[i, j] }
	sort(keys, vals, n)
	m = 0
	for (j = 1; j <= n; j++) {
		if (j > 1 && keys[j] == keys[j - 1]) {
			if (mode == "sync") return vals[j]
			continue
		}
		m++
		be_key[i, m] = keys[j]; be_val[i, m] = vals[j]
	}
	n_be[i] = m
	return ""
}
function finish(i, line,    dup) {
	if (!n_be[i]) die(line, "identity without a backend", key[i])
	dup = settle(i)
	if (dup != "") die(at_line[i], "backend named twice", dup)
}

function read_sync(    line, nr, f, n, i, ended, num) {
	while ((getline line < input) > 0) {
		nr++
		# Most lines are good ones of a backend and no more.
		if (i && !ended && split(line, f, " ") == 3 && line == "backend " f[2] " " f[3] && (num = ipnum(f[2])) >= 0 && isport(f[3])) {
			add_backend(i, num, f[2], f[3], 0)
			continue
		}
		if (line ~ /[^ -~]/) die(nr, "not plain ASCII", line)
		if (ended) die(nr, "something after end", line)
		n = split(line, f, /[ ]/)
		if (nr == 1) {
			if (line != "share-state v1 full" && line != "share-state v1 delta") die(nr, "not a share-state v1", line)
			full = (f[3] == "full")
		} else if (f[1] == "identity" && (n == 6 || n == 7)) {
			if (i) finish(i, at_line[i])
			i = new_identity(nr, f[2], f[3], f[4])
			if (known(key[i])) die(nr, "identity named twice", line)
			index_of[key[i]] = i
			affinity(i, f[5], f[6], nr)
			if (n == 7) {
				if (substr(f[7], 1, 8) != "sources=") die(nr, "unknown word", f[7])
				src_of[i] = sources(substr(f[7], 9), nr)
			}
		} else if (f[1] == "backend" && (n == 3 || n == 4)) {
			if (!i) die(nr, "backend of no identity", line)
			if (n == 4 && f[4] != "masquerade") die(nr, "unknown word", f[4])
			new_backend(i, f[2], f[3], n == 4, nr)
		} else if (f[1] == "remove" && (n == 4 || n == 5)) {
			if (full) die(nr, "remove in a full state", line)
			if (n == 5 && f[5] != "keep-tcp") die(nr, "unknown word", f[5])
			if (i) finish(i, at_line[i])
			i = new_identity(nr, f[2], f[3], f[4])
			if (known(key[i])) die(nr, "identity named twice", line)
			index_of[key[i]] = i
			removed[i] = 1
			kept[i] = (n == 5)
			i = 0
		} else if (f[1] == "forget" && n == 6) {
			if (i) finish(i, at_line[i])
			i = 0
			f[4] = proto_of(nr, f[2], f[3], f[4])
			if (ipnum(f[5]) < 0) die(nr, "not an IPv4 address", f[5])
			if (!isport(f[6])) die(nr, "not a port (1-65535)", f[6])
			forgotten[++n_forgotten] = "forget " f[4] " " f[2] " " f[3] " " f[5] " " f[6]
		} else if (line == "end") {
			if (i) finish(i, at_line[i])
			ended = 1
		} else die(nr, "unknown line", line)
	}
	if (!ended) die(nr + 0, "cut short, no end line", line)
}

# The argument forms. One rule twice is one rule; two that differ are refused.
function read_args(    line, nr, f, n, b, nb, j, i, c) {
	while ((getline line < input) > 0) {
		nr++
		n = split(line, f, ",")
		if (line ~ /[^ -~]/) die(nr, "not plain ASCII", line)
		if (mode == "del" ? n != 3 : n != 4 && n != 6)
			die(nr, mode == "del" ? "not EIP,DPORT,PROTO" : "not EIP,DPORT,PROTO[,AFFINITY,TIMEOUT],BACKENDS", line)
		i = new_identity(nr, f[1], f[2], f[3])
		if (mode == "del") {
			removed[i] = 1
		} else {
			affinity(i, n == 6 ? f[4] : "none", n == 6 ? f[5] : "0", nr)
			nb = split(f[n], b, "@")
			if (nb == 0) die(nr, "no backends", line)
			for (j = 1; j <= nb; j++) {
				if (split(b[j], c, ":") != 2) die(nr, "not a backend IP:PORT", b[j])
				new_backend(i, c[1], c[2], 0, nr)
			}
			finish(i, nr)
		}
		if (known(key[i])) {
			if (!same(i, index_of[key[i]])) die(nr, "identity named twice, differently", line)
			n_be[i] = 0
			n_ids--
			continue
		}
		index_of[key[i]] = i
	}
}
function same(a, b,    j) {
	if (n_be[a] != n_be[b] || aff_of[a] != aff_of[b] || timeout_of[a] != timeout_of[b]) return 0
	for (j = 1; j <= n_be[a]; j++) if (be_key[a, j] != be_key[b, j]) return 0
	return 1
}

# --- what is there ---------------------------------------------------------

# Runs a command and the lines it prints go to seen(what, line); fails with it.
function read_from(cmd, what,    line, rc) {
	rc = "unknown"
	cmd = "{ " cmd "; } 2>&1; echo \"exit $?\""
	while ((cmd | getline line) > 0) {
		if (line ~ /^exit [0-9]+$/) rc = substr(line, 6)
		else { last_said = line; seen(what, line) }
	}
	close(cmd)
	if (rc != "0") oops("reading the kernel: " what ": " last_said)
}
function seen(what, line,    f, n) {
	if (what == "chains" && !hashed) {
		if (line == "chains") { hashed = 1; return }
		n = split(line, f, " ")
		hash[f[2]] = substr(f[1], 1, 12)
	} else if (what == "chains" || what == "sets" || what == "maps") {
		n = split(line, f, " ")
		if (f[1] == "table") ours = (f[2] == "ip" && f[3] == table)
		else if (ours && n == 3 && f[3] == "{" && (f[1] == "chain" || f[1] == "set" || f[1] == "map")) found(f[1], f[2])
	} else if (what == "service-ips" || what == "masquerade-ips") {
		verdicts(what, line)
	}
}
function found(type, name,    h) {
	have[name] = type
	if (name !~ /^(dnat|src|pin|masq|aff|ep)-/) return
	h = substr(name, index(name, "-") + 1, 12)
	if (type == "set" || name ~ /^ep-/) legacy = 1
	objects[h] = objects[h] " " type ":" name
}

function element(map, ip, proto, port, v, to,    k) {
	k = ip " . " proto " . " port
	verdict[map, k] = v
	if (map == "service-ips") { there[k] = to; led_to[to]++ }
	else masq_there[k] = 1
}
# --- of what kind the identities are ---------------------------------------

# kind names all that decides which objects identity i has: the timeout of its pins, and
# whether it has source ranges and masquerading.
function kind(i) {
	return (aff_of[i] == "none" ? 0 : "c" timeout_of[i]) (src_of[i] != "" ? "s" : "") (n_masq[i] ? "m" : "")
}
function hint_of(ip, port, proto) { return kinds "/" ip ":" port ":" proto }
function hint(i) { return hint_of(eip[i], dport[i], l4[i]) }
# Has the hint of an identity that goes taken away at the end.
function drop_hint(file,    line) {
	if (kinds == "" || (getline line < file) < 0) return
	close(file)
	print file > (tmp "/gone")
}
function promise(i) { return "dnat-" hash[i] "-" kind(i) }

# Whether every identity of the call is, by the hints, of the kind that it was; then
# their hashes are known as well.
function all_known(    i, line, f, n) {
	if (way != "short" || !promising) return 0
	for (i = 1; i <= n_ids; i++) {
		if (removed[i]) return 0
		line = ""
		n = (getline line < hint(i))
		if (n >= 0) close(hint(i))
		if (n != 1 || split(line, f, " ") != 2 || length(f[1]) != 12 || f[1] ~ /[^0-9a-f]/ || f[2] != kind(i)) return 0
		hash[i] = f[1]
	}
	return 1
}

function read_kernel(    i) {
	if (n_ids) {
		for (i = 1; i <= n_ids; i++) {
			printf "%s:%s:%s", eip[i], dport[i], l4[i] > (tmp "/hash/" i)
			close(tmp "/hash/" i)
		}
	}
	# Names only: with -t no element of a named set is fetched.
	read_from((n_ids ? "cd " tmp "/hash && md5sum * && " : "") "echo chains && nft -t list chains ip", "chains")
	for (i = 1; i <= n_ids; i++) id_of[hash[i]] = i
	if (deep || legacy) read_from("nft -t list sets ip", "sets")
	if (deep) read_from("nft -t list maps ip", "maps")
	if (!deep) for (i = 1; i <= n_ids; i++) {
		# A chain under another name (the protocol in capitals) may hold it.
		if (!(("dnat-" hash[i]) in have) && have["prerouting"]) { look = 1; break }
	}
	if (deep) read_maps()
	else if (look) {
		# Only removals must know; for a new one the transaction itself tells.
		for (i = 1; i <= n_ids; i++) if (removed[i] && !(("dnat-" hash[i]) in have)) {
			read_from("nft -t list maps ip", "maps"); read_maps(); break
		}
	}
}
function read_maps() {
	if ("service-ips" in have) read_from("nft -n list map ip " table " service-ips", "service-ips")
	if ("masquerade-ips" in have) read_from("nft -n list map ip " table " masquerade-ips", "masquerade-ips")
}

# --- the transaction -------------------------------------------------------

function emit(s) { print s > apply }
function later(s) { print s > sweep; swept = 1 }

function base(    masqueraded) {
	emit("add table ip " table)
	if (way == "anew") {
		emit("delete table ip " table)
		emit("add table ip " table)
		split("", have); split("", objects); split("", verdict); split("", masq_there)
	}
	emit(verdict_map("service-ips", ""))
	emit(verdict_map("masquerade-ips", ""))
	# -150: before the nat rules of iptables at -100. The first to translate wins,
	# so a share identity beats an exclusive DNAT.
	emit("add chain ip " table " prerouting { type nat hook prerouting priority -150; policy accept; }")
	emit("flush chain ip " table " prerouting")
	emit(rule("prerouting") "ip daddr . meta l4proto . th dport vmap @service-ips" tail)
	# 90: before the SNAT rules of iptables at 100, the hairpin among them.
	emit("add chain ip " table " postrouting { type nat hook postrouting priority 90; policy accept; }")
	masqueraded = masquerades()
	if (short && !masqueraded) return # others may need what is there
	emit("flush chain ip " table " postrouting")
	if (!masqueraded) return
	# nft 1.0.6 types proto-dst only after a match on the protocol.
	emit(rule("postrouting") "ct status dnat meta l4proto tcp ct original ip daddr . meta l4proto . ct original proto-dst vmap @masquerade-ips" tail)
	emit(rule("postrouting") "ct status dnat meta l4proto udp ct original ip daddr . meta l4proto . ct original proto-dst vmap @masquerade-ips" tail)
}
# Whether connections have to be looked up in @masquerade-ips at all. That costs each new one, and nearly nobody needs it.
function masquerades(    i, name) {
	for (i = 1; i <= n_ids; i++) if (!removed[i] && n_masq[i]) return 1
	if (!full) for (name in have) if (name ~ /^masq-/) return 1
	return 0
}

# The mark of a backend, made from its address and port alone, so that it does not
# change with what is beside it. Two backends of one identity with one mark need
# different ports; the second then takes the next free number.
function mark_of(k, used,    m, num, port, s) {
	num = int(k / 65536); port = k % 65536
	m = (num + port * 2654435761) % 4294967296
	for (s = sprintf("%.0f", m); m == 0 || (s in used); s = sprintf("%.0f", m)) m = (m + 1) % 4294967296
	used[s] = 1
	return s
}

# A rule begins with rule() and ends with tail, which is "" on the long way.
function rule(chain) {
	if (short) return "add chain ip " table " " chain " { "
	return "add rule ip " table " " chain " "
}
function verdict_map(map, elements) {
	return "add map ip " table " " map " { type ipv4_addr . inet_proto . inet_service : verdict; " elements "}"
}
function put_verdict(map, k, v) {
	if (short) emit(verdict_map(map, "elements = { " k " : " v " } "))
	else emit("add element ip " table " " map " { " k " : " v " }")
}

# Opens a chain for new content: whatever is in it goes, in the same transaction.
function open(chain) {
	emit("add chain ip " table " " chain)
	if (short || (chain in have)) emit("flush chain ip " table " " chain)
	keep[chain] = 1
}

function put_sources(i, h,    s, n, j, p, len, lens, list, chain) {
	# By prefix length, not as an interval set: overlapping and adjoining prefixes stay
	# as they were given, and a lookup costs one hash a length.
	chain = "src-" h
	open(chain)
	n = split(src_of[i], s, ",")
	for (j = 1; j <= n; j++) {
		split(s[j], p, "/")
		list[p[2]] = list[p[2]] ((p[2] in lens) ? ", " : "") p[1]
		lens[p[2]]++
	}
	for (len = 0; len <= 32; len++) {
		if (!(len in lens)) continue
		if (len == 0) emit(rule(chain) "return" tail)
		else if (lens[len] == 1) emit(rule(chain) "ip saddr " list[len] "/" len " return" tail)
		else if (len == 32) emit(rule(chain) "ip saddr { " list[len] " } return" tail)
		else emit(rule(chain) "ip saddr & " mask(len) " { " list[len] " } return" tail)
	}
	emit(rule(chain) "drop" tail)
}
function put_masquerade(i, h,    chain, j, sep) {
	chain = "masq-" h
	open(chain)
	if (n_masq[i] == n_be[i]) emit(rule(chain) "masquerade" tail)
	else {
		printf "%sip daddr . th dport { ", rule(chain) > apply
		sep = ""
		for (j = 1; j <= n_be[i]; j++) if ((i SUBSEP be_val[i, j]) in be_masq) {
			printf "%s%s", sep, be_val[i, j] > apply
			sep = ", "
		}
		emit(" } masquerade" tail)
	}
	put_verdict("masquerade-ips", key[i], "goto " chain)
}
function put_plain(i, h,    j) {
	printf "%smeta l4proto %s dnat ip to ", rule("dnat-" h), l4[i] > apply
	if (n_be[i] == 1) { emit(target(i) tail); return }
	printf "numgen random mod %d map { ", n_be[i] > apply
	for (j = 1; j <= n_be[i]; j++) printf "%s%d : %s", (j > 1 ? ", " : ""), j - 1, be_val[i, j] > apply
	emit(" }" tail)
}
# Where a rule without a map sends to: the lone backend of identity i.
function target(i,    be) {
	split(be_val[i, 1], be, " . ")
	return be[1] ":" be[2]
}
function put_sticky(i, h,    j, used, m, pin, aff, get) {
	pin = "pin-" h "-" timeout_of[i]; aff = "aff-" h; get = aff "-get"
	keep[aff] = keep[get] = 1
	# Room for a million clients; the memory is taken as they come.
	emit("add map ip " table " " aff " { type ipv4_addr : mark; size 1048576; flags dynamic,timeout; }")
	if (!short) {
		open(get)
		emit(rule(get) "ct mark set ip saddr map @" aff)
	}
	for (j = 1; j <= n_be[i]; j++) m[j] = mark_of(be_key[i, j], used)
	open(pin)
	printf "%sct mark set ", rule(pin) > apply
	if (n_be[i] == 1) printf "%s", m[1] > apply
	else {
		printf "numgen random mod %d map { ", n_be[i] > apply
		for (j = 1; j <= n_be[i]; j++) printf "%s%d : %s", (j > 1 ? ", " : ""), j - 1, m[j] > apply
		printf " }" > apply
	}
	emit(" update @" aff " { ip saddr timeout " timeout_of[i] "s : ct mark }" tail)
	emit(rule(pin) "jump " get tail)
	printf "%smeta l4proto %s ", rule(pin), l4[i] > apply
	if (n_be[i] == 1) emit("ct mark " m[1] " dnat ip to " target(i) tail)
	else {
		printf "dnat ip to ct mark map { " > apply
		for (j = 1; j <= n_be[i]; j++) printf "%s%s : %s", (j > 1 ? ", " : ""), m[j], be_val[i, j] > apply
		emit(" }" tail)
	}
	emit(rule(pin) "ct mark set meta l4proto map { " l4[i] " : 0 } delete @" aff " { ip saddr : 0 }" tail)
	emit(rule("dnat-" h) "jump " pin tail)
	emit(rule("dnat-" h) "jump " pin tail)
}

function put(i,    h, k, j, old, n, elsewhere) {
	h = hash[i]; k = key[i]
	if (promising && !short) {
		emit("add chain ip " table " " promise(i))
		print h, kind(i) > hint(i)
		close(hint(i))
	}
	if (promising || (promise(i) in have)) keep[promise(i)] = 1
	open("dnat-" h)
	if (src_of[i] != "") {
		put_sources(i, h)
		emit(rule("dnat-" h) "jump src-" h tail)
	}
	if (aff_of[i] == "none") put_plain(i, h)
	else put_sticky(i, h)
	emit(rule("dnat-" h) "drop" tail)

	if ((("service-ips", k) in verdict) && verdict["service-ips", k] != "goto dnat-" h) {
		emit("delete element ip " table " service-ips { " k " }")
		elsewhere = hash_in(verdict["service-ips", k])
	}
	put_verdict("service-ips", k, "goto dnat-" h)

	if ((("masquerade-ips", k) in verdict) && verdict["masquerade-ips", k] != "goto masq-" h) {
		emit("delete element ip " table " masquerade-ips { " k " }")
		delete verdict["masquerade-ips", k]
	}
	if (n_masq[i]) put_masquerade(i, h)
	else drop_masquerade(k, h)

	# Pins of the old timeout: another pass moves them, once this is in effect.
	n = split(objects[h], old, " ")
	for (j = 1; j <= n; j++) if (old[j] ~ /^chain:pin-/ && aff_of[i] != "none" && !(substr(old[j], 7) in keep))
		print "aff-" h, timeout_of[i], substr(old[j], 24) > (tmp "/retime")

	if (l4[i] == "udp") {
		print "check", "udp", eip[i], dport[i] > (tmp "/conntrack")
		for (j = 1; j <= n_be[i]; j++) {
			split(be_val[i, j], old, " . ")
			print "alive", "udp", eip[i], dport[i], old[1], old[2] > (tmp "/conntrack")
		}
	}
	clear(h)
	if (elsewhere != "") clear(elsewhere)
}

# The h of the chain that a verdict leads to, "" where another identity needs it too.
function hash_in(v,    f, h) {
	split(v, f, " ")
	h = substr(f[2], 6)
	if (f[2] !~ /^dnat-/ || led_to[f[2]] > 1 || (h in id_of)) return ""
	return h
}

# Takes the element out of masquerade-ips. Adding it first makes that safe where it
# may be missing: there is no "destroy" in the kernels and nft versions we serve.
function drop_masquerade(k, h) {
	if (deep ? (("masquerade-ips", k) in verdict) : (("masq-" h) in have)) {
		if (!deep) emit("add element ip " table " masquerade-ips { " k " : goto masq-" h " }")
		emit("delete element ip " table " masquerade-ips { " k " }")
	}
}

# Everything that carries the name h and is not to be kept: emptied now, deleted by
# the second transaction. Kernels before 6.2 refuse (EBUSY) to delete a chain in the
# transaction that removes the map element pointing to it, and may go on refusing for
# a moment afterwards, until the old element is freed.
function clear(h,    o, n, j, p) {
	n = split(objects[h], o, " ")
	for (j = 1; j <= n; j++) {
		split(o[j], p, ":")
		if (p[1] != "chain" || (p[2] in keep)) continue
		# Nothing leads to a promise, so no kernel refuses.
		if (p[2] ~ /^dnat-.*-/) { emit("delete chain ip " table " " p[2]); continue }
		emit("flush chain ip " table " " p[2])
		later("delete chain ip " table " " p[2])
	}
	for (j = 1; j <= n; j++) {
		split(o[j], p, ":")
		if (p[1] == "chain" || (p[2] in keep)) continue
		later("delete " p[1] " ip " table " " p[2])
	}
	# Without the maps listed: the map of pins is there when a pin chain is.
	if (!deep && objects[h] ~ / chain:pin-/ && objects[h] !~ / map:/ && !(("aff-" h) in keep))
		later("delete map ip " table " aff-" h)
	delete objects[h]
}

function remove(k, h, keep,    to, f) {
	if (way == "anew") { # only its connections are left
		if (!(k in there)) return
	} else if (("service-ips", k) in verdict) {
		emit("delete element ip " table " service-ips { " k " }")
		to = hash_in(verdict["service-ips", k])
	} else if (!deep && (("dnat-" h) in have)) {
		emit("add element ip " table " service-ips { " k " : goto dnat-" h " }")
		emit("delete element ip " table " service-ips { " k " }")
		to = h
	} else return
	drop_masquerade(k, h)
	if (to != "") clear(to)
	if (h != "") clear(h)
	split(k, f, " . ")
	drop_hint(hint_of(f[1], f[3], f[2]))
	if ((f[2] == "tcp" && !keep) || f[2] == "udp") print "check", f[2], f[1], f[3] > (tmp "/conntrack")
}

BEGIN {
	# It is started ahead of time, and waits for the word; "" when there is none to come.
	if ((getline word) <= 0) exit 1
	table = "kube-ovn"
	input = tmp "/input"; apply = tmp "/apply"; sweep = tmp "/sweep"
	if (mode == "sync") read_sync(); else read_args()
	deep = (way == "deep" || full)
	if (full) print "" > (tmp "/full")
	promising = (kinds != "" && !full && n_ids > 0 && n_ids <= short_max)
	short = all_known()
	if (short) {
		tail = "; }"
		for (i = 1; i <= n_ids; i++) emit("flush chain ip " table " " promise(i))
		print "" > (tmp "/short")
	} else read_kernel()
	base()
	for (i = 1; i <= n_ids; i++) if (!removed[i]) put(i)
	for (i = 1; i <= n_ids; i++) if (removed[i]) remove(key[i], hash[i], kept[i])
	for (i = 1; i <= n_forgotten; i++) print forgotten[i] > (tmp "/conntrack")
	if (full) {
		for (k in there) if (!known(k)) remove(k, "", 0)
		for (k in masq_there) if (!known(k) && !(k in there))
			emit("delete element ip " table " masquerade-ips { " k " }")
		for (h in objects) clear(h)
	}
}
'

# ---------------------------------------------------------------------------
# The share verbs
# ---------------------------------------------------------------------------

# begin_share MODE WAY starts what will be needed: awk, which makes the plan as soon as it is
# told so, and nft. It is called before there is any input, so that a call
# which was begun ahead of time need not wait for programs to start.
begin_share() {
	exec 8> >(trap '' HUP INT TERM PIPE; exec nft -f - 2>"$TMP/refused")
	NFT=$!
	exec 7> >(trap '' HUP INT TERM PIPE; exec awk -v tmp="$TMP" -v mode="$1" -v way="$2" \
		-v kinds="$KINDS" -v short_max="$SHORT_MAX" "$AWK_COMMON$AWK_VERDICTS$AWK_PLAN" 8>&-)
	PLANNER=$!
}

# apply_share MODE makes the state in $TMP/input so. begin_share MODE short has been called.
apply_share() {
	local mode=$1 way refused
	take_lock
	# The short way asks nothing of what is there, the long one for the names of chains.
	# Where they do not tell enough (an identity under another chain, an edited table) the
	# kernel refuses the transaction as a whole, and the plan is made again from
	# everything that is there.
	for way in short long deep anew; do
		[[ $way != long || -e $TMP/short ]] || continue # it was the long way already
		[[ $way != deep || ! -e $TMP/full ]] || continue # it was the deep way already
		[[ $way == short ]] || begin_share "$mode" "$way"
		# What has ended says why by its exit code. A line this short arrives as a whole or not at all.
		printf 'go\n' 2>/dev/null >&7 || true
		exec 7>&-
		wait "$PLANNER" || awk_failed
		printf 'include "%s"\n' "$TMP/apply" 2>/dev/null >&8 || true
		exec 8>&-
		! wait "$NFT" || break
		# Who says all that there is to be can have the rest thrown away, pins too, where it is in the way.
		refused=$(<"$TMP/refused")
		[[ $way != deep && $way != anew ]] || fail "nft refused: ${refused:0:1000}"
		rm -f -- "$TMP/sweep" "$TMP/conntrack" "$TMP/retime" "$TMP/gone"
	done
	[[ $way != anew ]] || warn "what was there could not be changed, and was made anew, without its pins: ${refused:0:1000}"
	[[ ! -s $TMP/sweep ]] || sweep
	[[ ! -s $TMP/retime ]] || retime
	[[ ! -s $TMP/conntrack ]] || drop_connections
}

# sweep deletes what the transaction before emptied. On kernels that still count the
# old references it is tried again for a moment; then the rest stays as empty chains
# that nothing leads to, nft-dnat-map-list calls them stale, and the next full sync
# takes them.
sweep() {
	local pause
	for pause in 0 0.05 0.2 0.5 1; do
		[[ $pause == 0 ]] || sleep "$pause"
		! nft -f "$TMP/sweep" 2>/dev/null || return 0
	done
}

# retime gives the pins of identities whose timeout changed the new one, the time
# since the last connection counted. Pins come and go meanwhile, and an element that
# expired under it fails the transaction: then it starts over. Giving up is harmless,
# each pin takes the new timeout with its client's next connection.
# shellcheck disable=SC2016
readonly AWK_RETIME='
# "1h2m3s4ms" in seconds, rounded up: nft knows no fractions.
function seconds(s,    n, v, u, t) {
	t = 0
	while (match(s, /^[0-9]+[a-z]+/)) {
		v = substr(s, 1, RLENGTH); s = substr(s, RLENGTH + 1)
		u = v; gsub(/[0-9]/, "", u)
		t += (u == "d" ? 86400 : u == "h" ? 3600 : u == "m" ? 60 : u == "s" ? 1 : 0.001) * (v + 0)
	}
	return t == int(t) ? t : int(t) + 1
}
BEGIN {
	while ((getline line < (tmp "/retime")) > 0) {
		split(line, f, " ")
		to[f[1]] = f[2]; from[f[1]] = f[3]
	}
	while ((getline line < (tmp "/pins")) > 0) {
		if (line ~ /^\t(map|set) /) { split(line, f, " "); map = f[2]; continue }
		if (!(map in to)) continue
		sub(/^.*elements = [{] /, "", line)
		n = split(line, e, ",")
		for (i = 1; i <= n; i++) {
			# IP timeout T expires E : MARK
			if (split(e[i], f, " ") < 7 || f[2] != "timeout" || f[4] != "expires") continue
			if (seconds(f[3]) == to[map]) continue
			left = to[map] - (from[map] - seconds(f[5]))
			if (left > to[map]) left = to[map]
			print "add element ip kube-ovn " map " { " f[1] " timeout " f[3] " : " f[7] " }"
			print "delete element ip kube-ovn " map " { " f[1] " }"
			if (left > 0) print "add element ip kube-ovn " map " { " f[1] " timeout " to[map] "s expires " left "s : " f[7] " }"
		}
	}
}
'
retime() {
	local map rest n=0
	while read -r map rest; do n=$((n + 1)); done <"$TMP/retime"
	read -r map rest <"$TMP/retime"
	for _ in 1 2 3; do
		if ((n == 1)); then
			nft -n list map ip "$TABLE" "$map" >"$TMP/pins" 2>/dev/null || return 0
		else
			nft -n list maps ip >"$TMP/pins" 2>/dev/null || return 0
		fi
		run_awk "$AWK_RETIME" >"$TMP/repin"
		if [[ ! -s $TMP/repin ]] || nft -f "$TMP/repin" 2>/dev/null; then return 0; fi
	done
	warn "pins keep their old timeout until their clients connect again"
}

# drop_connections removes the conntrack entries that $TMP/conntrack condemns: of a
# UDP identity those that do not go to one of its backends (a backend that left, or a
# client that began to send before there was one), of a deleted identity all, except
# TCP where it is to be kept, and those to a backend that is to be forgotten. Entries of
# TCP connections to living backends are never looked at.
#
# conntrack reads the whole table for each deletion, so it is listed once, and only
# what is there is deleted, by (identity, backend) and state.
#
# It finds an entry by what was asked for, but deletes by the original addresses and ports alone. A client
# that takes the port of a connection that is over makes a new entry of that one, maybe to a
# living backend, at any moment in between. So TCP entries that are over stay: nothing goes on in them.
# shellcheck disable=SC2016
readonly AWK_CONNTRACK='
BEGIN {
	while ((getline line < (tmp "/conntrack")) > 0) {
		split(line, f, " ")
		id = f[2] " " f[3] " " f[4]
		if (f[1] == "check") check[id] = 1
		else if (f[1] == "forget") gone[id " " f[5] " " f[6]] = 1
		else alive[id " " f[5] " " f[6]] = 1
	}
	close(tmp "/conntrack")
	while ((getline line < (tmp "/connections")) > 0) {
		n = split(line, f, " ")
		dir = 0
		split("", v)
		for (i = 3; i <= n; i++) {
			if (f[i] ~ /^src=/) dir++
			p = index(f[i], "=")
			if (p) v[dir, substr(f[i], 1, p - 1)] = substr(f[i], p + 1)
		}
		id = f[1] " " v[1, "dst"] " " v[1, "dport"]
		to = v[2, "src"] " " v[2, "sport"]
		if (!(id in check) && !((id " " to) in gone)) continue
		state = f[1] == "tcp" && f[4] ~ /^[A-Z]/ ? f[4] : ""
		if (state == "TIME_WAIT" || state == "CLOSE") continue
		if (((id " " to) in alive) || ((id " " to, state) in done)) continue
		done[id " " to, state] = 1
		which = sprintf("-D -p %s --orig-dst %s --orig-port-dst %s --reply-src %s --reply-port-src %s", \
			f[1], v[1, "dst"], v[1, "dport"], v[2, "src"], v[2, "sport"])
		print which (state == "" ? "" : " --state " state)
		if (state == "ESTABLISHED") closing[which] = 1 # by now, maybe
	}
	for (which in closing) print which " --state FIN_WAIT"
}
'
drop_connections() {
	local count=1 line
	local -a args=()
	[[ ! -r /proc/sys/net/netfilter/nf_conntrack_count ]] || read -r count </proc/sys/net/netfilter/nf_conntrack_count
	((count > 0)) || return 0
	# One identity, or one EIP: conntrack itself leaves out the rest.
	awk '$1 != "alive" { p[$2]; e[$3] } END { for (x in p) { n++; P = x } for (x in e) { m++; E = x }
		if (n == 1) printf "-p %s ", P; if (m == 1) printf "--orig-dst %s", E; print "" }' "$TMP/conntrack" >"$TMP/which"
	read -r -a args <"$TMP/which" || true
	conntrack -L -f ipv4 "${args[@]}" >"$TMP/connections" 2>"$TMP/error" ||
		fail "state applied, but conntrack cannot list: $(head -c 500 "$TMP/error")"
	run_awk "$AWK_CONNTRACK" >"$TMP/deletions"
	[[ ! -s $TMP/deletions ]] || delete_connections
}

# delete_connections runs the deletions in $TMP/deletions in one process, where conntrack
# knows how (1.4.7). An entry that is gone by itself meanwhile is not an error.
delete_connections() {
	local -a args=()
	if conntrack -R "$TMP/deletions" >/dev/null 2>&1; then return 0; fi
	while read -r -a args; do
		conntrack "${args[@]}" >/dev/null 2>&1 || true
	done <"$TMP/deletions"
}

verb_map() { # add|del ARG…
	local mode=$1
	shift
	make_room
	save_args "$@"
	open_lock
	know_kinds
	begin_share "$mode" short
	apply_share "$mode"
}

verb_sync() {
	(($# == 0)) || fail "takes no arguments, the state comes on standard input: \"$*\""
	make_room
	open_lock
	know_kinds
	begin_share sync short
	# The whole of it before the lock, so that a slow caller keeps nobody waiting. A NUL
	# would end a line early in some awks; this makes it a byte that is refused.
	tr '\0' '\1' >"$TMP/input" 7>&- 8>&-
	apply_share sync
}

# bash parses a file as it goes: the calls that come all the time do without the rest.
case $VERB in
nft-dnat-map-add)
	verb_map add "${@:2}"
	leave
	;;
nft-dnat-map-del)
	verb_map del "${@:2}"
	leave
	;;
nft-dnat-map-sync)
	verb_sync "${@:2}"
	leave
	;;
esac

# list.awk: what the gateway holds, read back from the kernel. With -t, nft fetches no
# element of a named set for "list ruleset" (it does for "list table"), so a million
# pins are neither read nor printed.
# shellcheck disable=SC2016
readonly AWK_LIST='
function read_from(cmd, what,    line, rc) {
	rc = "unknown"
	cmd = cmd " 2>" tmp "/said; echo \"exit $?\""
	while ((cmd | getline line) > 0) {
		if (line ~ /^exit [0-9]+$/) rc = substr(line, 6)
		else seen(what, line)
	}
	close(cmd)
	if (rc != "0") {
		getline line < (tmp "/said")
		oops("reading the kernel: " what ": " line)
	}
}
function seen(what, line) {
	if (what == "ruleset") ruleset(line)
	else if (what == "service-ips" || what == "masquerade-ips") verdicts(what, line)
	else if (what == "nat") nat[++n_nat] = line
	else if (what == "mangle") mangle[++n_mangle] = line
	else if (what == "sha256") { split(line, f, " "); sum[f[2]] = substr(f[1], 1, 16) }
	else if (what == "addresses") { split(line, f, " "); if (f[3] == "inet") addr[++n_addr] = f[4] }
	else if (what == "routes") { split(line, f, " "); if (f[2] == "via") print "route", cidr(f[1]), f[3] }
}
function cidr(s) { return s == "default" ? "0.0.0.0/0" : index(s, "/") ? s : s "/32" }

function ruleset(line,    f, n) {
	if (line ~ /^table /) { ours = (line == "table ip " table " {"); nft_nat = (line == "table ip nat {"); return }
	# The chains of init, left where the legacy iptables is the one to use by now.
	if (nft_nat && legacy != "" && line == "\tchain DNAT_FILTER {") left = 1
	if (!ours) return
	sub(/^\t/, "", line)
	if (line ~ /^(chain|map|set) [^ ]+ [{]$/) {
		split(line, f, " ")
		type = f[1]; object = f[2]
		have[object] = type
	} else if (line == "}") object = ""
	else if (object == "") dormant = dormant || line ~ /^flags .*dormant/
	else if (type == "chain") rules[object, ++n_rules[object]] = substr(line, 2)
	else if (object ~ /^(service|masquerade)-ips$/ && line ~ /^\ttype / && line != "\ttype ipv4_addr . inet_proto . inet_service : verdict") odd[object] = 1
}
function element(map, ip, proto, port, v, chain,    k) {
	k = ip " " port " " proto
	if (proto != "tcp" && proto != "udp") { odd[map] = 1; return }
	verdict[map, k] = v
	if (map == "service-ips") { n_ids++; id[n_ids] = k; to[n_ids] = chain }
	else { n_masqs++; masqs[k] = 1 }
}

# The part of a rule between two texts; "" if it does not begin and end so.
function between(s, head, tail) {
	if (substr(s, 1, length(head)) != head) return ""
	if (tail != "" && substr(s, length(s) - length(tail) + 1) != tail) return ""
	return substr(s, length(head) + 1, length(s) - length(head) - length(tail))
}

# "numgen random mod N map { 0 : x, 1 : y }": fills slot[0..N-1]; N, or 0 if it is not whole.
function slots(s,    p, n, e, m, i, q, seen_slot) {
	s = between(s, "numgen random mod ", " }")
	p = index(s, " map { ")
	if (!p) return 0
	n = substr(s, 1, p - 1) + 0
	m = split(substr(s, p + 7), e, ", ")
	if (m != n) return 0
	for (i = 1; i <= m; i++) {
		q = index(e[i], " : ")
		if (!q) return 0
		slot[substr(e[i], 1, q - 1)] = substr(e[i], q + 3)
	}
	for (i = 0; i < n; i++) {
		if (!(i in slot) || (slot[i] in seen_slot)) return 0
		seen_slot[slot[i]] = 1
	}
	return n
}
# "… dnat to ip:port", without a map: fills slot[0]; 1, or 0 if it is another rule.
function lone(s, head,    e) {
	if (split(between(s, head " dnat to ", ""), e, ":") != 2 || ipnum(e[1]) < 0 || !isport(e[2])) return 0
	slot[0] = e[1] " . " e[2]
	return 1
}
# The source prefixes of chain src-<h>, canonical; "" if it is not one of ours.
function read_sources(chain,    n, j, r, len, list, inner, e, m, i, p, out) {
	n = n_rules[chain]
	if (n < 2 || rules[chain, n] != "drop") return ""
	for (j = 1; j < n; j++) {
		r = rules[chain, j]
		if (r == "return") { list = "0.0.0.0"; len = 0 }
		else if ((inner = between(r, "ip saddr { ", " } return")) != "") { list = inner; len = 32 }
		else if ((inner = between(r, "ip saddr & ", " } return")) != "") {
			p = index(inner, " == { ")
			if (!p) return ""
			for (len = 1; len <= 31; len++) if (mask(len) == substr(inner, 1, p - 1)) break
			list = substr(inner, p + 6)
		} else {
			inner = between(r, "ip saddr ", " return")
			if (inner == "") return ""
			p = index(inner, "/")
			len = p ? substr(inner, p + 1) : 32
			list = p ? substr(inner, 1, p - 1) : inner
		}
		m = split(list, e, ", ")
		for (i = 1; i <= m; i++) {
			if (!isprefix(e[i] "/" len, 0)) return ""
			out = out (out == "" ? "" : ",") e[i] "/" len
		}
	}
	return sources(out, 0)
}

# Which backends masq-<h> covers: masq[], or masq_all. 0 if it is not one of ours.
function read_masquerade(k, h,    inner, e, n, i) {
	masq_all = 0
	split("", masq)
	if (!(("masquerade-ips", k) in verdict)) return 1
	if (verdict["masquerade-ips", k] != "goto masq-" h) { odd["masquerade-ips"] = 1; return 0 }
	if (n_rules["masq-" h] != 1) return 0
	if (rules["masq-" h, 1] == "masquerade") { masq_all = 1; return 1 }
	inner = between(rules["masq-" h, 1], "ip daddr . th dport { ", " } masquerade")
	n = split(inner, e, ", ")
	for (i = 1; i <= n; i++) masq[e[i]] = 1
	return n
}

# The canonical lines of identity number i into a file; its number of backends, 0 if
# its objects are not what this script writes.
function content(i,    get, lookup, chain, h, f, p, r, j, n, l4, src, timeout, pin, m, e, q, live, keys, vals, b, out) {
	chain = to[i]
	h = substr(chain, 6)
	split(id[i], f, " ")
	l4 = f[3] == "tcp" ? 6 : f[3] == "udp" ? 17 : 0
	if (!l4 || chain !~ /^dnat-/ || length(h) != 12 || verdict["service-ips", id[i]] != "goto " chain) return 0
	r = 1
	if (rules[chain, 1] == "jump src-" h) {
		src = read_sources("src-" h)
		if (src == "") return 0
		r = 2
	}
	split("", slot)
	p = "meta l4proto " l4 " dnat ip to "
	if (rules[chain, n_rules[chain]] != "drop") return 0
	if (n_rules[chain] == r + 1) {
		n = lone(rules[chain, r], "meta l4proto " l4)
		if (!n) n = slots(between(rules[chain, r], p, ""))
		for (j = 0; j < n; j++) vals[j + 1] = slot[j]
		timeout = 0
	} else if (n_rules[chain] == r + 2) {
		pin = between(rules[chain, r], "jump ", "")
		timeout = between(pin, "pin-" h "-", "")
		if (rules[chain, r + 1] != rules[chain, r] || timeout !~ /^[1-9][0-9]*$/ || n_rules[pin] != 4 || !(("aff-" h) in have)) return 0
		# Older scripts had the lookup here.
		get = "aff-" h "-get"; lookup = "ct mark set ip saddr map @aff-" h
		if (rules[pin, 2] != lookup && (rules[pin, 2] != "jump " get || n_rules[get] != 1 || rules[get, 1] != lookup)) return 0
		if (rules[pin, 4] != "ct mark set meta l4proto map { " l4 " : 0x00000000 } delete @aff-" h " { ip saddr : 0x00000000 }") return 0
		q = index(rules[pin, 1], " update @")
		m = between(substr(rules[pin, 1], q), " update @aff-" h " { ip saddr timeout ", " : ct mark }")
		if (seconds(m) != timeout + 0) return 0
		m = between(substr(rules[pin, 1], 1, q - 1), "ct mark set ", "")
		if (m ~ /^0x[0-9a-f]+$/) {
			n = lone(rules[pin, 3], "meta l4proto " l4 " ct mark " m)
			vals[1] = slot[0]
		} else {
			n = slots(m)
			if (n != split(between(rules[pin, 3], p "ct mark map { ", " }"), e, ", ")) return 0
			for (j = 1; j <= n; j++) { q = index(e[j], " : "); live[substr(e[j], 1, q - 1)] = substr(e[j], q + 3) }
			for (j = 0; j < n; j++) {
				if (!(slot[j] in live)) return 0
				vals[j + 1] = live[slot[j]]
			}
		}
	}
	if (!n || !read_masquerade(id[i], h)) return 0
	for (j = 1; j <= n; j++) {
		split(vals[j], b, " ")
		keys[j] = ipnum(b[1]) * 65536 + b[3]
	}
	sort(keys, vals, n)
	out = tmp "/hash/" i
	print "identity", id[i], (timeout ? "clientip" : "none"), timeout (src == "" ? "" : " sources=" src) > out
	for (j = 1; j <= n; j++) {
		split(vals[j], b, " ")
		print "backend", b[1], b[3] (masq_all || (vals[j] in masq) ? " masquerade" : "") > out
	}
	close(out)
	claimed["dnat-" h] = 1
	claimed["dnat-" h "-" (timeout ? "c" timeout : 0) (src != "" ? "s" : "") ((("masquerade-ips", id[i]) in verdict) ? "m" : "")] = 1
	if (src != "") claimed["src-" h] = 1
	if (("masquerade-ips", id[i]) in verdict) claimed["masq-" h] = 1
	if (timeout) claimed[pin] = claimed["aff-" h] = 1
	if (timeout && rules[pin, 2] != lookup) claimed[get] = 1
	return n
}

# "1h2m3s" in seconds.
function seconds(s,    v, u, t) {
	while (match(s, /^[0-9]+[a-z]+/)) {
		v = substr(s, 1, RLENGTH); s = substr(s, RLENGTH + 1)
		u = v; gsub(/[0-9]/, "", u)
		t += (u == "d" ? 86400 : u == "h" ? 3600 : u == "m" ? 60 : u == "s" ? 1 : 0.001) * (v + 0)
	}
	return t
}

function list_iptables(    j, f, n, i, v, ext, vpc, missing, spec, want, w, told) {
	for (j = 1; j <= n_mangle; j++) spec[mangle[j]] = 1
	for (j = 1; j <= n_nat; j++) spec[nat[j]] = 1
	for (j = 1; j <= n_mangle; j++) if (mangle[j] ~ /^-A VPC_MARK /) {
		n = split(mangle[j], f, " ")
		for (i = 1; i < n; i++) if (f[i] == "-i") vpc = f[i + 1]
	}
	n = split(wanted, want, "\n")
	for (j = 1; j <= n; j++) if (!(want[j] in spec)) missing = 1
	if (vpc != "" && !missing && !left) print "init", vpc "," extif
	for (j = 1; j <= n_nat; j++) {
		n = split(nat[j], f, " ")
		split("", v)
		for (i = 3; i < n; i++) if (f[i] ~ /^-/) v[f[i]] = f[i + 1]
		if (f[2] == "HAIRPIN_SNAT" && f[1] == "-A") hairpin[v["--to-source"]] = 1
		if (f[2] == "SHARED_DNAT" && f[1] == "-A" && v["-j"] == "DNAT") {
			sub("/32$", "", v["-d"])
			sub(/:/, " ", v["--to-destination"])
			w = "dnat " v["-d"] " " v["--dport"] " " v["-p"] " " v["--to-destination"]
			if (!(w in told)) print w
			told[w] = 1
		}
	}
	for (j = 1; j <= n_addr; j++) {
		split(addr[j], f, "/")
		if (f[1] in hairpin) print "eip", addr[j]
	}
}

BEGIN {
	table = "kube-ovn"
	print "gateway-state v1"
	read_from("iptables" legacy " -w -t nat -S", "nat")
	read_from("iptables" legacy " -w -t mangle -S", "mangle")
	read_from("ip -o -4 addr show", "addresses")
	read_from("ip -4 route show proto " proto, "routes")
	read_from("nft -t -n list ruleset ip", "ruleset")
	# Without an init line, so that init is called, which moves them. Until then they do what they did.
	if (left) read_from("iptables-nft -w -t nat -S", "nat")
	list_iptables()
	if ("service-ips" in have) read_from("nft -n list map ip " table " service-ips", "service-ips")
	if ("masquerade-ips" in have) read_from("nft -n list map ip " table " masquerade-ips", "masquerade-ips")

	p = "ip daddr . meta l4proto . th dport vmap @service-ips"
	q = " ct original ip daddr . meta l4proto . ct original proto-dst vmap @masquerade-ips"
	laid = rules["postrouting", 1] == "type nat hook postrouting priority 90; policy accept;" && \
		(n_rules["postrouting"] == 3 && rules["postrouting", 2] == "ct status 0x20 meta l4proto 6" q && rules["postrouting", 3] == "ct status 0x20 meta l4proto 17" q || \
		n_rules["postrouting"] == 1 && !n_masqs)
	whole = laid && !dormant && n_rules["prerouting"] == 2 && rules["prerouting", 2] == p && \
		rules["prerouting", 1] == "type nat hook prerouting priority -150; policy accept;"

	for (i = 1; i <= n_ids; i++) {
		n_be[i] = content(i)
		# Legacy or edited: what carries its name belongs to it all the same.
		if (!n_be[i]) bare[substr(to[i], 6)] = 1
		else written = 1
	}
	if (written) read_from("cd " tmp "/hash && sha256sum *", "sha256")
	for (i = 1; i <= n_ids; i++)
		print "identity", id[i], (n_be[i] && whole ? sum[i] : "-"), (n_be[i] && whole ? n_be[i] : 0)
	# The short way leaves it as it is, so a full state has to come.
	if (("postrouting" in have) && !laid) print "stale postrouting"
	for (k in masqs) if (!(("service-ips", k) in verdict)) odd["masquerade-ips"] = 1
	for (name in odd) print "stale", name
	for (name in have) {
		if (name !~ /^(dnat|src|pin|masq|aff|ep)-/ || (name in claimed)) continue
		# A promise that is not kept is told of even so: only a full state goes round it.
		if ((substr(name, index(name, "-") + 1, 12) in bare) && name !~ /^dnat-.*-/) continue
		print "stale", name
	}
	print "end"
}
'

# ---------------------------------------------------------------------------
# iptables and iproute2
# ---------------------------------------------------------------------------

# The chains that init makes in the nat table; in mangle it is VPC_MARK.
readonly NAT_CHAINS='DNAT_FILTER SNAT_FILTER EXCLUSIVE_DNAT EXCLUSIVE_SNAT SHARED_DNAT SHARED_SNAT HAIRPIN_SNAT'

# The wiring that init lays, as "iptables -S" prints it. Only what came from the VPC can be a hairpin: nothing else looks
# through the hairpin rules, of which there is one an EIP.
readonly NAT_RULES='-A PREROUTING -j DNAT_FILTER
-A DNAT_FILTER -j EXCLUSIVE_DNAT
-A DNAT_FILTER -j SHARED_DNAT
-A POSTROUTING -j SNAT_FILTER
-A SNAT_FILTER -j EXCLUSIVE_SNAT
-A SNAT_FILTER -j SHARED_SNAT
-A SNAT_FILTER -m mark --mark 0x1 -j HAIRPIN_SNAT'
# As it was laid before, and is by the stock script.
readonly OLD_NAT_RULES='-D SNAT_FILTER -j HAIRPIN_SNAT'

# restore.awk: from "iptables -S" on standard input and $TMP/want, an input for
# iptables-restore --noflush that adds what is missing (lines "-A …" of want) and
# deletes what is there (lines "-D …"), as one transaction. Chains are made as needed:
# declaring one that is there would empty it.
# shellcheck disable=SC2016
readonly AWK_RESTORE='
BEGIN {
	while ((getline line < (tmp "/have")) > 0) {
		split(line, f, " ")
		if (f[1] == "-N" || f[1] == "-P") chain[f[2]] = 1
		else there[line]++
	}
	while ((getline line < (tmp "/want")) > 0) {
		split(line, f, " ")
		if (f[1] == "-N") { if (!(f[2] in chain)) { made = made ":" f[2] " - [0:0]\n"; chain[f[2]] = 1 } }
		else if (f[1] == "-A") { if (!(line in there)) { rules = rules line "\n"; there[line] = 1 } }
		else if (f[1] == "-D") {
			add = "-A" substr(line, 3)
			if (add in there) { rules = rules line "\n"; if (--there[add] == 0) delete there[add] }
		}
	}
	if (made rules != "") printf "*%s\n%s%sCOMMIT\n", table, made, rules
}
'

# The kernel has two sets of iptables. The stock script, which runs in the same gateway for the verbs that are not here, looks
# for the chains of init in the legacy one wherever that works, so this script has to use the same.
LEGACY=
choose_tables() {
	if iptables-legacy -w -t nat -S INPUT 1 >/dev/null 2>&1; then LEGACY=-legacy; fi
}
tables() { if [[ -n $LEGACY ]]; then iptables-legacy "$@"; else iptables "$@"; fi; }
restore_tables() { if [[ -n $LEGACY ]]; then iptables-legacy-restore "$@"; else iptables-restore "$@"; fi; }

# take_tables takes the lock for a call that changes iptables.
take_tables() {
	take_lock
	choose_tables
	[[ -z $LEGACY ]] || move_rules
}

# move_rules brings to the legacy tables what is in those of nf_tables: an earlier version of this script knew no others. Nothing is
# without its rule for a moment, and whichever of two equal ones a connection meets first decides. What is not in the chains
# of init is somebody else's, and stays. The table nat comes last: as long as its chains are there, there is something to do.
move_rules() {
	local table
	iptables-nft -w -t nat -S >"$TMP/other" 2>/dev/null || return 0
	[[ $(<"$TMP/other") == *"-N DNAT_FILTER"* ]] || return 0
	for table in mangle nat; do
		iptables-nft -w -t "$table" -S >"$TMP/other" 2>"$TMP/error" || fail "iptables-nft cannot list $table: $(head -c 500 "$TMP/error")"
		awk -v table="$table" -v chains="$NAT_CHAINS VPC_MARK" -v want="$TMP/want" '
			BEGIN { n = split(chains, c, " "); for (i = 1; i <= n; i++) ours[c[i]]; printf "" > want; print "*" table }
			$1 == "-N" && $2 in ours { made[$2] }
			$2 in ours { print > want; next }
			$1 == "-A" && $(NF - 1) == "-j" && $NF in ours { print > want; print "-D" substr($0, 3) }
			END { for (i in made) print "-F", i; for (i in made) print "-X", i; print "COMMIT" }' "$TMP/other" >"$TMP/undo"
		iptables_have "$table"
		iptables_want "$table"
		iptables-nft-restore -w --noflush <"$TMP/undo" 2>"$TMP/error" || fail "iptables-nft refused: $(head -c 500 "$TMP/error")"
	done
}

# iptables_have TABLE reads the table's rules into $TMP/have.
iptables_have() {
	tables -w -t "$1" -S >"$TMP/have" 2>"$TMP/error" || fail "iptables cannot list $1: $(head -c 500 "$TMP/error")"
}

# iptables_want TABLE makes $TMP/want so, given $TMP/have.
iptables_want() {
	run_awk "$AWK_RESTORE" -v table="$1" >"$TMP/restore"
	[[ -s $TMP/restore ]] || return 0
	restore_tables -w --noflush <"$TMP/restore" 2>"$TMP/error" || fail "iptables refused: $(head -c 500 "$TMP/error")"
}

# The interfaces of the gateway, as init was told; eth0 and net1 where it was not.
VPC_IF=eth0
EXT_IF=net1
read_interfaces() {
	local line
	line=$(tables -w -t mangle -S VPC_MARK 2>/dev/null) || return 0
	[[ $line =~ -i\ ([^ ]+) ]] && VPC_IF=${BASH_REMATCH[1]}
	[[ $line =~ external-([^\ \"]+) ]] && EXT_IF=${BASH_REMATCH[1]}
	return 0
}

# A setting of the kernel, where /proc/sys lets us.
setting() {
	if [[ -w /proc/sys/net/ipv4/$1 ]]; then printf '%s\n' "$2" 2>/dev/null >"/proc/sys/net/ipv4/$1" || true; fi
}

verb_init() {
	local name='^[A-Za-z0-9_.-]+$'
	(($# <= 1)) || fail "takes one argument, VPCIF,EXTIF: \"$*\""
	if (($# == 1)) && [[ -n $1 ]]; then
		VPC_IF=${1%%,*} EXT_IF=${1#*,}
		[[ $1 == *,* && $VPC_IF =~ $name && $EXT_IF =~ $name && ${#VPC_IF} -le 15 && ${#EXT_IF} -le 15 ]] ||
			fail "line 1: not two interface names VPCIF,EXTIF: \"${1//[^ -~]/?}\""
	fi
	make_room
	take_tables
	# A call that was killed leaves its room behind, and the pod's /dev/shm outlives its
	# container. No call lasts as long as this.
	find "${TMP%/*}" -maxdepth 1 -name 'nat-gateway.*' -type d -mmin +10 -exec rm -rf -- {} + 2>/dev/null || true
	iptables_have nat
	{
		# shellcheck disable=SC2086  # words
		printf -- '-N %s\n' $NAT_CHAINS
		printf '%s\n' "$NAT_RULES" "$OLD_NAT_RULES"
	} >"$TMP/want"
	iptables_want nat

	# VPC_MARK holds one rule, whose comment is where the external interface is kept.
	local mark
	mark="-A VPC_MARK -i $VPC_IF -m comment --comment external-$EXT_IF -j MARK --set-xmark 0x1/0xffffffff"
	iptables_have mangle
	{
		printf -- '-N VPC_MARK\n-A PREROUTING -j VPC_MARK\n'
		grep -e '^-A VPC_MARK ' "$TMP/have" | grep -vxFe "$mark" | sed 's/^-A/-D/' || true
		printf '%s\n' "$mark"
	} >"$TMP/want"
	iptables_want mangle

	setting ip_forward 1
	# An EIP that goes must not take the others of its subnet along.
	setting "conf/$EXT_IF/promote_secondaries" 1
	# In and out by the VPC interface is the hairpin; a redirect would lead the client around the NAT.
	setting conf/all/send_redirects 0
	setting "conf/$VPC_IF/send_redirects" 0

	write_names
	# Another pod may have had its own address before, or this one another NIC.
	local line
	line=$(ip -o -4 addr show dev "$EXT_IF" 2>/dev/null) || true
	[[ ! $line =~ inet\ ([0-9.]+) ]] || announce "${BASH_REMATCH[1]}"
}

# write_names writes the interfaces' names where the stock script beside this one reads them. Here nothing does.
write_names() {
	local file=/etc/kube-ovn/nat-gateway.env names
	[[ $RUN_DIR == "${file%/*}" ]] || return 0
	printf -v names 'VPC_INTERFACE=%q\nEXTERNAL_INTERFACE=%q' "$VPC_IF" "$EXT_IF"
	[[ ! -r $file || $(<"$file") != "$names" ]] || return 0
	printf '%s\n' "$names" 2>/dev/null >"$file" || fail "cannot write $file"
}

# announce IP… tells the neighbours. arping sends at once and then waits a second for answers that never come to an announcement.
# It is the last thing of a call: the lock goes before it.
announce() {
	local ip pids=()
	exec 9>&-
	trap - HUP INT TERM PIPE # arping would inherit that it is not to be ended
	for ip in "$@"; do
		timeout 0.2 arping -q -U -c 1 -I "$EXT_IF" "$ip" </dev/null >/dev/null 2>&1 &
		pids+=($!)
	done
	wait "${pids[@]}" || true
}

# verb_args VERB CHECK ARG… validates each argument by an awk function body.
# shellcheck disable=SC2016
readonly AWK_ARGS='
BEGIN {
	input = tmp "/input"
	while ((getline line < input) > 0) {
		nr++
		if (line ~ /[^ -~]/) die(nr, "not plain ASCII", line)
		n = split(line, f, ",")
		if (what == "eip") {
			if (!isprefix(line, 1) || line ~ /,/) die(nr, "not an IPv4 address with its prefix length", line)
			split(line, f, "/")
			if (f[1] in seen && seen[f[1]] != line) die(nr, "address given twice, differently", line)
			seen[f[1]] = line
			print f[1], line
		} else if (what == "route") {
			if (n != 2 && !(n == 1 && del)) die(nr, "not CIDR,NEXTHOP", line)
			if (!isprefix(f[1], 0)) die(nr, "not an IPv4 prefix", f[1])
			if (n == 2 && ipnum(f[2]) < 0) die(nr, "not an IPv4 address", f[2])
			if (f[1] in seen && seen[f[1]] != f[2]) die(nr, "route given twice, differently", line)
			seen[f[1]] = f[2]
			print f[1], f[2]
		} else if (what == "dnat") {
			# Whoever deletes may leave out where it leads to.
			if (n != 5 && !(n == 3 && del)) die(nr, del ? "not EIP,DPORT,PROTO[,IP,PORT]" : "not EIP,DPORT,PROTO,IP,PORT", line)
			if (ipnum(f[1]) < 0) die(nr, "not an IPv4 address", f[1])
			if (!isport(f[2])) die(nr, "not a port (1-65535)", f[2])
			f[3] = tolower(f[3])
			if (f[3] != "tcp" && f[3] != "udp") die(nr, "protocol is neither tcp nor udp", f[3])
			if (n == 5 && ipnum(f[4]) < 0) die(nr, "not an IPv4 address", f[4])
			if (n == 5 && !isport(f[5])) die(nr, "not a port (1-65535)", f[5])
			k = f[1] " " f[2] " " f[3]
			if (!del && k in seen && seen[k] != f[4] " " f[5]) die(nr, "DNAT given twice, differently", line)
			seen[k] = f[4] " " f[5]
			print k, f[4], f[5]
		}
	}
}
'

hairpin_rule() {
	printf '%s HAIRPIN_SNAT -o %s -m mark --mark 0x1 -m conntrack --ctorigdst %s -j SNAT --to-source %s\n' "$1" "$VPC_IF" "$2" "$2"
}

need_chain() {
	grep -qxFe "-N $1" "$TMP/have" || fail "init has not run in this gateway: no chain $1"
}

verb_eip_add() {
	local ip cidr ips=()
	make_room
	save_args "$@"
	run_awk "$AWK_ARGS" -v what=eip >"$TMP/eips"
	take_tables
	read_interfaces
	iptables_have nat
	need_chain HAIRPIN_SNAT
	while read -r ip cidr; do
		ips+=("$ip")
		hairpin_rule -A "$ip" >&3
		printf 'addr replace %s dev %s\n' "$cidr" "$EXT_IF" >&4
	done <"$TMP/eips" 3>"$TMP/want" 4>"$TMP/batch"
	printf 'link set dev %s up\n' "$EXT_IF" >>"$TMP/batch"
	if [[ -n ${GATEWAY_V4:-} ]]; then
		[[ $GATEWAY_V4 =~ ^[0-9.]+$ ]] || fail "GATEWAY_V4 is not an IPv4 address: \"$GATEWAY_V4\""
		printf 'route replace default via %s dev %s onlink\n' "$GATEWAY_V4" "$EXT_IF" >>"$TMP/batch"
	fi
	if [[ -n ${GATEWAY_V6:-} ]]; then
		[[ $GATEWAY_V6 == *:* && $GATEWAY_V6 =~ ^[0-9A-Fa-f:.]+$ ]] || fail "GATEWAY_V6 is not an IPv6 address: \"$GATEWAY_V6\""
		# Without IPv6, in the kernel or on the interface, no EIP is worse off.
		local off=1
		[[ ! -r /proc/sys/net/ipv6/conf/$EXT_IF/disable_ipv6 ]] || read -r off <"/proc/sys/net/ipv6/conf/$EXT_IF/disable_ipv6"
		((off)) || printf 'route replace default via %s dev %s onlink\n' "$GATEWAY_V6" "$EXT_IF" >>"$TMP/batch"
	fi
	ip -batch "$TMP/batch" >/dev/null 2>"$TMP/error" || fail "ip refused: $(head -c 500 "$TMP/error")"
	iptables_want nat
	announce "${ips[@]}"
}

verb_eip_del() {
	local ip cidr line
	make_room
	save_args "$@"
	run_awk "$AWK_ARGS" -v what=eip >"$TMP/eips"
	take_tables
	read_interfaces
	iptables_have nat
	ip -o -4 addr show dev "$EXT_IF" >"$TMP/addresses" 2>"$TMP/error" || fail "ip cannot list: $(head -c 500 "$TMP/error")"
	# What stays is put back in the same batch: without promote_secondaries a primary
	# address takes the others of its subnet along.
	awk -v dev="$EXT_IF" '
		FNR == NR { going[$1] = 1; next }
		{ split($4, a, "/"); if (a[1] in going) { del = del "addr del " $4 " dev " dev "\n" } else stay = stay "addr replace " $4 " dev " dev "\n" }
		END { if (del != "") printf "%s%s", del, stay }' "$TMP/eips" "$TMP/addresses" >"$TMP/batch"
	while read -r ip cidr; do
		hairpin_rule -D "$ip"
		# As an older script, or the stock one, may have spelled it.
		while read -r line; do
			[[ "$line " == "-A HAIRPIN_SNAT "*"--to-source $ip "* ]] && printf -- '-D%s\n' "${line#-A}"
		done <"$TMP/have"
	done <"$TMP/eips" >"$TMP/want"
	iptables_want nat
	[[ -s $TMP/batch ]] || return 0
	ip -batch "$TMP/batch" >/dev/null 2>"$TMP/error" || fail "ip refused: $(head -c 500 "$TMP/error")"
}

verb_subnet_route_add() {
	local cidr via
	make_room
	save_args "$@"
	run_awk "$AWK_ARGS" -v what=route >"$TMP/routes"
	take_tables
	read_interfaces
	while read -r cidr via; do
		printf 'route replace %s via %s dev %s proto %s metric %s\n' "$cidr" "$via" "$VPC_IF" "$ROUTE_PROTO" "$ROUTE_METRIC"
	done <"$TMP/routes" >"$TMP/batch"
	ip -batch "$TMP/batch" >/dev/null 2>"$TMP/error" || fail "ip refused: $(head -c 500 "$TMP/error")"
	drop_older_routes
}

# drop_older_routes removes the routes to $TMP/routes that the stock script made: with
# metric 0 they would come before ours.
drop_older_routes() {
	ip -4 route show dev "$VPC_IF" >"$TMP/there"
	awk -v dev="$VPC_IF" '
		FNR == NR { ours[$1] = 1; next }
		$2 == "via" && !/ proto (kernel|196)( |$)/ && !/ metric / {
			dst = $1 == "default" ? "0.0.0.0/0" : index($1, "/") ? $1 : $1 "/32"
			if (dst in ours) print "route del", dst, "via", $3, "dev", dev
		}' "$TMP/routes" "$TMP/there" >"$TMP/batch"
	[[ -s $TMP/batch ]] || return 0
	ip -batch "$TMP/batch" >/dev/null 2>"$TMP/error" || fail "ip refused: $(head -c 500 "$TMP/error")"
}

verb_subnet_route_del() {
	make_room
	save_args "$@"
	run_awk "$AWK_ARGS" -v what=route -v del=1 >"$TMP/routes"
	take_tables
	read_interfaces
	drop_older_routes
	ip -4 route show proto "$ROUTE_PROTO" >"$TMP/there"
	awk -v proto="$ROUTE_PROTO" '
		FNR == NR { ours[$1] = 1; next }
		{ dst = $1 == "default" ? "0.0.0.0/0" : index($1, "/") ? $1 : $1 "/32" }
		dst in ours { print "route del", dst, "via", $3, "proto", proto }' "$TMP/routes" "$TMP/there" >"$TMP/batch"
	[[ -s $TMP/batch ]] || return 0
	ip -batch "$TMP/batch" >/dev/null 2>"$TMP/error" || fail "ip refused: $(head -c 500 "$TMP/error")"
}

dnat_rule() { # -A|-D EIP DPORT PROTO IP PORT
	printf '%s SHARED_DNAT -d %s/32 -p %s -m %s --dport %s -j DNAT --to-destination %s:%s\n' "$1" "$2" "$4" "$4" "$3" "$5" "$6"
}

verb_dnat() { # add|del
	local op=$1 del='' eip dport proto ip port
	shift
	[[ $op == add ]] || del=1
	make_room
	save_args "$@"
	run_awk "$AWK_ARGS" -v what=dnat -v del="$del" >"$TMP/dnats"
	take_tables
	iptables_have nat
	[[ $op == del ]] || need_chain SHARED_DNAT
	# A DNAT of the same identity to somewhere else goes in the same transaction.
	awk -v del="$del" -v out="$TMP/conntrack" '
		FNR == NR { want[$1 " " $2 " " $3] = $4 " " $5; named[$1 " " $2 " " $3 (NF > 3 ? " " $4 " " $5 : "")]; next }
		$1 == "-A" && $2 == "SHARED_DNAT" {
			split("", v)
			for (i = 3; i < NF; i++) if ($i ~ /^-/) v[$i] = $(i + 1)
			sub("/32$", "", v["-d"]); sub(/:/, " ", v["--to-destination"])
			k = v["-d"] " " v["--dport"] " " v["-p"]
			to = v["--to-destination"]
			if (del ? !(k in named) && !((k " " to) in named) : !(k in want) || to == want[k]) next
			print "-D" substr($0, 3)
			print v["-p"], v["-d"], v["--dport"], to > out
		}' "$TMP/dnats" "$TMP/have" >"$TMP/want"
	if [[ $op == add ]]; then
		while read -r eip dport proto ip port; do dnat_rule -A "$eip" "$dport" "$proto" "$ip" "$port"; done <"$TMP/dnats" >>"$TMP/want"
	fi
	iptables_want nat
	[[ -s $TMP/conntrack ]] || return 0
	while read -r proto eip dport ip port; do
		printf -- '-D -p %s --orig-dst %s --orig-port-dst %s --reply-src %s --reply-port-src %s\n' "$proto" "$eip" "$dport" "$ip" "$port"
	done <"$TMP/conntrack" >"$TMP/deletions"
	delete_connections
}

# ---------------------------------------------------------------------------
# Verbs
# ---------------------------------------------------------------------------

verb_list() {
	(($# == 0)) || fail "takes no arguments: \"$*\""
	make_room
	take_lock
	choose_tables
	read_interfaces
	run_awk "$AWK_VERDICTS$AWK_LIST" -v proto="$ROUTE_PROTO" -v extif="$EXT_IF" -v legacy="$LEGACY" -v wanted="${NAT_RULES//$'\n'/\\n}" >"$TMP/listing"
	cat "$TMP/listing"
}

usage() {
	printf 'usage: %s init|eip-add|eip-del|subnet-route-add|subnet-route-del|dnat-add|dnat-del|nft-dnat-map-add|nft-dnat-map-del|nft-dnat-map-sync|nft-dnat-map-list|get-iptables-version [ARG…]\n' "$PROG" >&2
	exit 2
}

main() {
	(($# > 0)) || usage
	shift
	case $VERB in
	init) verb_init "$@" ;;
	eip-add) verb_eip_add "$@" ;;
	eip-del) verb_eip_del "$@" ;;
	subnet-route-add) verb_subnet_route_add "$@" ;;
	subnet-route-del) verb_subnet_route_del "$@" ;;
	dnat-add) verb_dnat add "$@" ;;
	dnat-del) verb_dnat del "$@" ;;
	nft-dnat-map-list) verb_list "$@" ;;
	get-iptables-version)
		choose_tables
		tables --version
		;;
	*)
		local stock
		stock=$(dirname -- "${BASH_SOURCE[0]}")/nat-gateway-stock.sh
		[[ -r $stock ]] || fail "unknown verb"
		exec bash "$stock" "$VERB" "$@"
		;;
	esac
}

main "$@"
