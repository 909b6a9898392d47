//! Settings of the kernel and other programs that affect packets of Services.

use std::collections::BTreeSet;

use ferroute_config::ModeName;
use ferroute_core::{Client, IpFamily};
use ferroute_host::bridge_nf_call;
use ferroute_iptables::plan::chains::{IPVS_ACCEPT, NODEPORT_NON_LOCAL};

use crate::{
    doctor::{
        ConntrackEvents, EarlierEffect, EarlierRule, FirewallRefusal, Inputs, Reading, Severity, Unrouted, UnroutedPod,
        diagnosis::{CheckResult, Defect},
    },
    some_of,
};

/// Checks that the host forwards packets.
pub(super) fn forwarding(inputs: &Inputs) -> CheckResult {
    let defects = || -> Reading<Vec<Defect>> {
        let mut defects = Vec::new();
        for (family, name) in [(IpFamily::V4, "net.ipv4.ip_forward"), (IpFamily::V6, "net.ipv6.conf.all.forwarding")] {
            if !is_used(inputs, family) || inputs.sysctl(name)? != Some("0") {
                continue;
            }
            let defect = Defect::new(
                Severity::Problem,
                format!("{name} is 0"),
                format!("{family} packets from pods, and from other hosts to node ports, are not forwarded"),
                format!("run sysctl -w {name}=1, and set it in a file in /etc/sysctl.d to keep it after a reboot"),
            );
            defects.push(defect.with("name", name).with("family", family));
        }
        // IPv6 has no such setting for an interface.
        if defects.is_empty() && is_used(inputs, IpFamily::V4) {
            let sysctls = inputs.sysctls.as_ref().map_err(Clone::clone)?;
            let interfaces: Vec<&str> = sysctls
                .iter()
                .filter(|(_, value)| *value == "0")
                .filter_map(|(name, _)| name.strip_prefix("net.ipv4.conf.")?.strip_suffix(".forwarding"))
                .collect();
            if let [first, ..] = interfaces.as_slice() {
                let defect = Defect::new(
                    Severity::Warning,
                    format!("net.ipv4.conf.*.forwarding is 0 for {}", some_of(&interfaces)),
                    "IPv4 packets that arrive there are not forwarded, although net.ipv4.ip_forward is 1: those of pods behind such an \
                     interface, and of other hosts to node ports",
                    format!(
                        "if pods or clients are behind them, run sysctl -w net.ipv4.conf.{first}.forwarding=1, and look for the program \
                         or file in /etc/sysctl.d that sets 0"
                    ),
                );
                let defect = defect.kind("interface").with("interfaces", some_of(&interfaces)).with("first", first);
                defects.push(defect);
            }
        }
        Ok(defects)
    };
    defects().into()
}

/// Checks the sysctls that the mode relies on.
pub(super) fn required_sysctls(inputs: &Inputs) -> CheckResult {
    let defects = || -> Reading<Vec<Defect>> {
        let mut defects = Vec::new();
        for (name, required) in &inputs.required_sysctls {
            // There is a separate check for forwarding. A sysctl that the kernel does not have belongs to a module that
            // the proxy loads.
            let Some(value) = inputs.sysctl(name)?.filter(|value| value != required && name != "net.ipv4.ip_forward")
            else {
                continue;
            };
            let defect = Defect::new(
                Severity::Problem,
                format!("{name} is {value}, and {} mode with this configuration requires {required}", inputs.mode),
                "connections to Services fail, hang after endpoints have gone, or are not counted. A running Ferroute sets it \
                 again within a second, if it may: another program changes it, or /proc/sys is read-only",
                format!(
                    "run sysctl -w {name}={required}, and remove the other value from /etc/sysctl.d and other programs"
                ),
            );
            let mode = inputs.mode.as_str();
            defects.push(defect.with("name", name).with("value", value).with("mode", mode).with("required", required));
        }
        Ok(defects)
    };
    defects().into()
}

/// Checks that the host has routes to the addresses of Services.
pub(super) fn service_routes(inputs: &Inputs) -> CheckResult {
    let mut defects = Vec::new();
    for family in IpFamily::BOTH {
        let state = &inputs.families[family.index()];
        if state.has_services != Some(true) || !state.in_kernel {
            continue;
        }
        let command = if family == IpFamily::V4 { "ip route" } else { "ip -6 route" };
        let (unrouted, pod) = match (&state.unrouted, &state.unrouted_pod) {
            (Ok(unrouted), Ok(pod)) => (unrouted, pod),
            (Err(reason), _) | (_, Err(reason)) => return CheckResult::Unknown(reason.clone()),
        };
        if let Some(UnroutedPod { pod, endpoint, reason }) = pod {
            let rules = command.replace("route", "rule");
            let defect = Defect::new(
                Severity::Warning,
                format!("the kernel drops packets of pod {pod} to endpoint {endpoint}: {reason}"),
                "connections of pods on this node to Services fail when such an endpoint is selected",
                format!(
                    "compare {command} get {endpoint} with the policy rules ({rules}), which may select another table by the source, the \
                     interface or the mark, and delete the rule or the route, or add a route to the pods of other nodes there"
                ),
            );
            let defect = defect.kind("pods").with("pod", pod).with("endpoint", endpoint).with("reason", reason);
            defects.push(defect.with("command", command).with("rules", rules));
        }
        let Some(Unrouted { address, is_refused }) = unrouted else { continue };
        let defect = match is_refused {
            true => Defect::new(
                Severity::Problem,
                format!("an {family} route refuses packets of the host to cluster IP {address}"),
                "connections of the host itself to Services fail: of the kubelet, of pods in the host's network, and of an API \
                 server on this host to webhooks. The kernel looks up a route before any rule applies",
                format!(
                    "find the route of type blackhole, unreachable or prohibit, also in other tables ({command} show table all), \
                     and delete it, or add a more specific route for the Service addresses through any interface that is up"
                ),
            )
            .kind("refused"),
            false => Defect::new(
                Severity::Problem,
                format!("the host has no {family} route to cluster IP {address}"),
                "connections of the host itself to Services fail: of the kubelet, of pods in the host's network, and of an API \
                 server on this host to webhooks. The kernel looks up a route before any rule applies. Other pods fail as well if \
                 their gateway is an address for which the host answers by proxy ARP, as with Calico: it answers only with a \
                 default route",
                format!(
                    "add a default route, or a route that covers the Service addresses, through any interface that is up: \
                     {command} add SERVICE-CIDR dev INTERFACE"
                ),
            )
            .kind("missing"),
        };
        defects.push(defect.with("family", family).with("address", address).with("command", command));
    }
    CheckResult::Defects(defects)
}

/// Checks that replies to connections from `::1` can arrive.
pub(super) fn localhost_routes(inputs: &Inputs) -> CheckResult {
    if inputs.mode != ModeName::NFTABLES {
        return CheckResult::NotApplicable;
    }
    let interfaces = match &inputs.missing_localhost_routes {
        Ok(interfaces) => interfaces,
        Err(reason) => return CheckResult::Unknown(reason.clone()),
    };
    let defect = |interfaces: &Vec<String>| {
        let interfaces = some_of(interfaces);
        let defect = Defect::new(
            Severity::Problem,
            format!("there is no local route to ::1 on {interfaces}"),
            "connections of the node itself to node ports on ::1 hang if the endpoint is behind such an interface, because the kernel \
             drops the replies. A running Ferroute adds the routes again within seconds, if it may",
            "start Ferroute; if it runs, find out which program deletes the routes of the table local: ip -6 monitor route",
        );
        defect.with("interfaces", interfaces)
    };
    CheckResult::Defects(Some(interfaces).filter(|interfaces| !interfaces.is_empty()).map(defect).into_iter().collect())
}

/// Checks that the policy of FORWARD is ACCEPT.
pub(super) fn forward_policy(inputs: &Inputs) -> CheckResult {
    let mut defects = Vec::new();
    for family in IpFamily::BOTH {
        let backends = match &inputs.families[family.index()].backends {
            Ok(backends) => backends,
            Err(reason) => return CheckResult::Unknown(reason.clone()),
        };
        for backend in backends.iter().filter(|backend| backend.forward_drops) {
            let problem = format!("the policy of the {family} chain FORWARD is DROP ({})", backend.backend);
            if !inputs.accepts_in_firewalls {
                let program = if family == IpFamily::V4 { "iptables" } else { "ip6tables" };
                let defect = Defect::new(
                    Severity::Warning,
                    problem,
                    format!(
                        "a rule of {} mode cannot accept packets that another chain drops: connections to node ports, external \
                         IPs and load balancer IPs are dropped unless another rule accepts them, also those to endpoints on \
                         other nodes",
                        inputs.mode
                    ),
                    format!(
                        "accept the connections that Services translate: {program} -I FORWARD -m conntrack --ctstate DNAT -j \
                         ACCEPT, and make this persistent; or set the policy to ACCEPT"
                    ),
                );
                let defect = defect.kind("drops").with("family", family).with("backend", &backend.backend);
                defects.push(defect.with("mode", inputs.mode).with("program", program));
                continue;
            }
            let defect = Defect::new(
                Severity::Note,
                problem,
                "only packets that a rule accepts are forwarded: the proxy accepts masqueraded packets, other packets of \
                 pods need rules of the network plugin",
                "if pods cannot reach Services, trace the packet with `ferroute trace --kernel`; Docker sets this policy, \
                 and the network plugin should add rules that accept packets of the pod networks",
            );
            defects.push(defect.kind("accepted").with("family", family).with("backend", &backend.backend));
        }
    }
    CheckResult::Defects(defects)
}

/// Checks that a firewall in INPUT accepts traffic of Services in ipvs and userspace mode, whose packets do not pass FORWARD.
pub(super) fn input_firewall(inputs: &Inputs) -> CheckResult {
    let accepting = match inputs.mode {
        ModeName::IPVS => IPVS_ACCEPT,
        ModeName::USERSPACE => NODEPORT_NON_LOCAL,
        _ => return CheckResult::NotApplicable,
    };
    let mut defects = Vec::new();
    for family in IpFamily::BOTH.into_iter().filter(|family| is_used(inputs, *family)) {
        let backends = match &inputs.families[family.index()].backends {
            Ok(backends) => backends,
            Err(reason) => return CheckResult::Unknown(reason.clone()),
        };
        for backend in backends.iter().filter(|backend| backend.input_drops) {
            let defect = Defect::new(
                Severity::Warning,
                format!("the {family} chain INPUT drops what no rule accepts ({})", backend.backend),
                format!(
                    "in {} mode, connections of pods to cluster IPs, and of other hosts to node ports and load balancer IPs, pass \
                     INPUT and are dropped",
                    inputs.mode
                ),
                format!(
                    "run Ferroute, which accepts them in the chain {accepting}, and let no rule drop all packets before the jump to \
                     it; kube-proxy requires rules of the administrator"
                ),
            );
            defects.push(defect.with("family", family).with("backend", &backend.backend));
        }
    }
    CheckResult::Defects(defects)
}

/// Checks that no table of another program refuses packets to Services.
pub(super) fn firewall_tables(inputs: &Inputs) -> CheckResult {
    let mut defects = Vec::new();
    for family in IpFamily::BOTH {
        let refusals = match &inputs.families[family.index()].firewall_refusals {
            Ok(refusals) => refusals,
            Err(reason) => return CheckResult::Unknown(reason.clone()),
        };
        defects.extend(refusals.iter().take(MAX_DEFECTS).map(|FirewallRefusal { rule, service, client }| {
            // Whether node ports are open to other hosts is the administrator's decision.
            let (severity, kind, clients) = match client {
                Client::Pod => (Severity::Warning, "pods", "pods"),
                Client::Node => (Severity::Warning, "node", "the node itself"),
                Client::Outside => (Severity::Note, "others", "other hosts"),
            };
            let effect = format!("their connections to this Service, and probably to others, fail in {} mode", inputs.mode);
            let (effect, fix) = match client {
                Client::Node => (
                    format!("connections of the node to this Service, and probably to others and to their endpoints, fail in {} mode: of the \
                     kubelet, of pods in the host's network, and of an API server on this host to webhooks", inputs.mode),
                    "if they should not: accept packets of the node to Service addresses and to the networks of pods in that table, because \
                     no rule of another table can; `ferroute trace --kernel --local` shows the path of a packet",
                ),
                _ => (
                    effect,
                    "if they should not: accept these packets in that table, because no rule of another table can; with firewalld, add the \
                     interfaces or networks of pods to the zone `trusted`; `ferroute trace --kernel` shows the path of a packet",
                ),
            };
            let defect = Defect::new(
                severity,
                format!("a firewall refuses {family} packets of {clients} to {service}: {rule}"),
                effect,
                fix,
            );
            let defect = defect.kind(kind).with("family", family).with("service", service);
            defect.with("rule", rule).with("mode", inputs.mode)
        }));
    }
    CheckResult::Defects(defects)
}

/// Checks that the reverse path filter is not strict on hosts with several networks.
pub(super) fn reverse_path(inputs: &Inputs) -> CheckResult {
    let defects = || -> Reading<Vec<Defect>> {
        let sysctls = inputs.sysctls.as_ref().map_err(Clone::clone)?;
        let value = |name: &str| sysctls.get(&format!("net.ipv4.conf.{name}.rp_filter")).map_or("0", String::as_str);
        // The kernel uses the maximum of the two; 1 is strict, 2 is loose.
        let all: u8 = value("all").parse().unwrap_or(0);
        let strict: Vec<&str> = sysctls
            .keys()
            .filter_map(|name| name.strip_prefix("net.ipv4.conf.")?.strip_suffix(".rp_filter"))
            .filter(|device| !["all", "default", "lo"].contains(device))
            .filter(|device| value(device).parse().unwrap_or(0).max(all) == 1)
            .collect();
        // With a single interface, a strict filter has no effect.
        if strict.len() < 2 {
            return Ok(Vec::new());
        }
        let fix = format!(
            "if connections to Services hang for some clients, set net.ipv4.conf.all.rp_filter=2 (loose), and the same for \
             {}; check the network plugin's documentation for a requirement of strict filtering",
            strict.join(", ")
        );
        let defect = Defect::new(
            Severity::Note,
            format!("the reverse path filter is strict on {}", some_of(&strict)),
            "packets are dropped silently if replies to them would leave through another interface: of node port clients on \
             hosts with several networks, with asymmetric routes, and with some network plugins",
            fix,
        );
        Ok(vec![defect.with("interfaces", some_of(&strict)).with("all", strict.join(", "))])
    };
    defects().into()
}

/// Checks that packets between pods on the same bridge pass the iptables hooks.
pub(super) fn bridges(inputs: &Inputs) -> CheckResult {
    let defects = || -> Reading<Vec<Defect>> {
        let bridges = inputs.bridges.as_ref().map_err(Clone::clone)?;
        if bridges.is_empty() {
            return Ok(Vec::new());
        }
        let mut defects = Vec::new();
        for family in IpFamily::BOTH {
            let name = bridge_nf_call(family);
            if !is_used(inputs, family) {
                continue;
            }
            let (kind, problem, command) = match inputs.sysctl(name)? {
                Some("1") => continue,
                Some(value) => ("off", format!("{name} is {value}"), format!("sysctl -w {name}=1")),
                // The module is the same for both families.
                None if !defects.is_empty() => continue,
                None => (
                    "missing",
                    "the kernel module br_netfilter is not loaded".to_owned(),
                    format!("modprobe br_netfilter && sysctl -w {name}=1"),
                ),
            };
            let defect = Defect::new(
                Severity::Warning,
                format!("{problem}, and pods may be on a bridge ({})", some_of(bridges)),
                format!(
                    "{family} replies between pods on the same bridge bypass the rules and keep the wrong source address: \
                     connections to a Service hang if its endpoint is on the same node"
                ),
                format!("if the network plugin uses a bridge, run {command}, and make this persistent"),
            );
            let defect = defect.kind(kind).with("family", family).with("command", command);
            defects.push(defect.with("name", name).with("bridges", some_of(bridges)));
        }
        Ok(defects)
    };
    defects().into()
}

/// Checks that bridges with netfilter can send packets of a pod back to the same pod.
pub(super) fn hairpin(inputs: &Inputs) -> CheckResult {
    let defects = || -> Reading<Vec<Defect>> {
        let mut ports = BTreeSet::new();
        for family in IpFamily::BOTH {
            let without_hairpin =
                inputs.families[family.index()].ports_without_hairpin.as_ref().map_err(Clone::clone)?;
            // Without netfilter in bridges, the host forwards these packets.
            if !without_hairpin.is_empty() && inputs.sysctl(bridge_nf_call(family))? == Some("1") {
                ports.extend(without_hairpin.iter().cloned());
            }
        }
        if ports.is_empty() {
            return Ok(Vec::new());
        }
        let ports: Vec<String> = ports.into_iter().collect();
        let defect = Defect::new(
            Severity::Warning,
            format!("hairpin mode is off for ports of the pods' bridge: {}", some_of(&ports)),
            "connections of a pod to a Service hang whenever the chosen endpoint is the pod itself",
            "set hairpinMode to true in the configuration of the network plugin, and for present pods run ip link set PORT type bridge_slave \
             hairpin on",
        );
        Ok(vec![defect.with("ports", some_of(&ports))])
    };
    defects().into()
}

/// Checks that the conntrack table is not full.
pub(super) fn conntrack(inputs: &Inputs) -> CheckResult {
    let defects = || -> Reading<Vec<Defect>> {
        let Some(table) = *inputs.conntrack.as_ref().map_err(Clone::clone)? else {
            return Ok(vec![
                Defect::new(
                    Severity::Note,
                    "connection tracking is not active",
                    "none: the first rule that needs it activates it",
                    "none, unless a proxy is running: then the kernel lacks nf_conntrack",
                )
                .kind("inactive"),
            ]);
        };
        let mut defects = Vec::new();
        let suggested = table.max.saturating_mul(2);
        let fix = format!(
            "increase conntrack.maxPerCore and conntrack.min in the configuration, or run sysctl -w \
             net.netfilter.nf_conntrack_max={suggested}; list the connections with conntrack -L"
        );
        // Below three quarters, no action is needed.
        if table.max > 0 && table.count * 4 >= table.max * 3 {
            let is_almost_full = table.count * 10 >= table.max * 9;
            let defect = Defect::new(
                if is_almost_full { Severity::Problem } else { Severity::Warning },
                format!("the conntrack table has {} of {} entries", table.count, table.max),
                "when the table is full, all new connections are dropped, not only those to Services",
                fix.clone(),
            );
            let defect = defect.kind("full").with("count", table.count).with("max", table.max);
            defects.push(defect.with("suggested", suggested));
        }
        let ConntrackEvents { dropped, evicted, not_inserted, chain_too_long } = table.events;
        if evicted > 0 {
            let defect = Defect::new(
                Severity::Warning,
                format!("{evicted} entries were removed since boot because the conntrack table was full"),
                "connections that were being established, and UDP flows without replies, were delayed or failed",
                fix.clone(),
            );
            defects.push(defect.kind("evicted").with("count", evicted).with("suggested", suggested));
        }
        if dropped > 0 {
            let defect = Defect::new(
                Severity::Warning,
                format!("connection tracking dropped {dropped} packets since boot, as it does when its table is full"),
                "these connections were delayed by a second or more, or failed",
                fix,
            );
            defects.push(defect.kind("dropped").with("count", dropped).with("suggested", suggested));
        }
        if not_inserted > 0 {
            let defect = Defect::new(
                Severity::Note,
                format!(
                    "{not_inserted} packets were dropped since boot because of others of the same flow at the same time"
                ),
                "mostly parallel DNS look-ups of one process, which are then delayed by a few seconds",
                "run a DNS cache on each node, or set the resolver option single-request-reopen or use-vc in pods; the size of \
                 the conntrack table makes no difference",
            );
            defects.push(defect.kind("races").with("count", not_inserted));
        }
        if chain_too_long > 0 {
            let defect = Defect::new(
                Severity::Warning,
                format!(
                    "{chain_too_long} packets were dropped since boot because too many entries of the conntrack table had the same hash"
                ),
                "these connections were delayed by a second or more, or failed: the hash table is small for the number of entries, or a \
                 client opens many connections that differ in few bits",
                "increase net.netfilter.nf_conntrack_buckets to a quarter of net.netfilter.nf_conntrack_max or more; list the connections \
                 with conntrack -L",
            );
            defects.push(defect.kind("chains").with("count", chain_too_long));
        }
        Ok(defects)
    };
    defects().into()
}

/// Checks that no rule of another program takes packets to Services before the proxy does.
pub(super) fn earlier_rules(inputs: &Inputs) -> CheckResult {
    let mut defects = Vec::new();
    for family in IpFamily::BOTH {
        let earlier = match &inputs.families[family.index()].earlier_rules {
            Ok(earlier) => earlier,
            Err(reason) => return CheckResult::Unknown(reason.clone()),
        };
        defects.extend(earlier.iter().take(MAX_DEFECTS).map(|EarlierRule { effect, rule, service }| {
            let defect = match effect {
                EarlierEffect::Translated => Defect::new(
                    Severity::Warning,
                    format!("a rule of another program translates packets to {service} first: {rule}"),
                    "these packets do not reach the Service, but the destination of the rule: usually of a host port of a container with \
                     the same number",
                    "use another port for the container or the Service; or, if the program inserts its rules at the start, restart it \
                     before the proxy; nftables mode comes before rules of iptables, and before chains with the usual priority dstnat",
                ),
                EarlierEffect::Untracked => Defect::new(
                    Severity::Warning,
                    format!("a rule of another program excludes packets to {service} from connection tracking: {rule}"),
                    "the kernel translates no packets without a connection, so that these do not reach the endpoints of the Service; in \
                     ipvs mode, they are not masqueraded",
                    "delete the rule, or exclude Service addresses and node ports from it",
                )
                .kind("untracked"),
                EarlierEffect::LeftToProcess => Defect::new(
                    Severity::Note,
                    format!("a rule of another program leaves packets to {service} to a process of the host: {rule}"),
                    "they reach the process that listens at this address, which is one of the host's, as with NodeLocal DNSCache, and fail \
                     while it does not run",
                    "none, if this is intended; otherwise delete the rule, and the address from its interface",
                )
                .kind("process"),
                EarlierEffect::Accepted => Defect::new(
                    Severity::Warning,
                    format!("a rule of another program accepts packets to {service} before they are translated: {rule}"),
                    "no later rule of this table sees these packets, so that they do not reach the endpoints of the Service",
                    "delete the rule, or exclude Service addresses and node ports from it; or, if the program inserts its rules at the start, \
                     restart it before the proxy; nftables mode comes before rules of iptables",
                )
                .kind("accepted"),
                EarlierEffect::TransparentProxy => Defect::new(
                    Severity::Warning,
                    format!("a rule of another program gives packets to {service} to a transparent proxy: {rule}"),
                    "these packets reach the process that listens at the rule's port, and not the endpoints of the Service; without such a \
                     process, iptables drops them",
                    "none, if a service mesh is to handle them; otherwise exclude Service addresses and node ports from the rule",
                )
                .kind("tproxy"),
                EarlierEffect::Unmasqueraded => Defect::new(
                    Severity::Warning,
                    format!("a rule of another program keeps the proxy from masquerading packets to {service}: {rule}"),
                    "endpoints see the address of the client and reply past this node, so that connections hang: of clients outside of the \
                     cluster, of pods to themselves, or of the node, depending on the rule",
                    "exclude packets with the proxy's mark from the rule (-m mark ! --mark 0x4000/0x4000), or insert it after the jump to \
                     KUBE-POSTROUTING; let rules that set marks change only bits of their own, by a mask",
                )
                .kind("unmasqueraded"),
                EarlierEffect::Masqueraded => Defect::new(
                    Severity::Note,
                    format!("a rule of another program sets the mark by which the proxy masquerades packets to {service}: {rule}"),
                    "endpoints see an address of this node instead of the client's",
                    "none, if this is intended; otherwise use another bit for the mark of that program, or for the proxy's \
                     (iptables.masqueradeBit, --iptables-masquerade-bit)",
                )
                .kind("masqueraded"),
            };
            defect.with("service", service).with("rule", rule)
        }));
    }
    CheckResult::Defects(defects)
}

/// Checks that no list of clients with session affinity is full.
pub(super) fn affinity_lists(inputs: &Inputs) -> CheckResult {
    if inputs.mode != ModeName::IPTABLES {
        return CheckResult::NotApplicable;
    }
    let mut defects = Vec::new();
    for family in IpFamily::BOTH {
        let full = match &inputs.families[family.index()].full_affinity_lists {
            Ok(full) => full,
            Err(reason) => return CheckResult::Unknown(reason.clone()),
        };
        let Some(first) = full.first() else { continue };
        let services: Vec<&str> = full.iter().map(|list| list.service.as_str()).collect();
        let defect = Defect::new(
            Severity::Warning,
            format!(
                "the kernel module xt_recent keeps {} clients of an endpoint, and as many have one of {}",
                first.clients,
                some_of(&services)
            ),
            format!(
                "each further client with session affinity ({family}) takes the place of another, which may get another endpoint"
            ),
            "raise the limit, for example with `options xt_recent ip_list_tot=10000` in /etc/modprobe.d, which applies when the module \
             is loaded (after a restart of the host); or use nftables mode, which keeps a thousand times as many",
        );
        defects.push(defect.with("family", family).with("count", first.clients).with("service", some_of(&services)));
    }
    CheckResult::Defects(defects)
}

/// Reports whether an IP family is used: if the Services are unknown, only IPv4.
fn is_used(inputs: &Inputs, family: IpFamily) -> bool {
    let state = &inputs.families[family.index()];
    state.in_kernel && state.has_services.unwrap_or(family == IpFamily::V4)
}

/// The maximum number of defects of one kind, which usually have one cause.
const MAX_DEFECTS: usize = 4;
