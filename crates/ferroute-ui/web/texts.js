// Chinese translations of sentences of the server on the page. Reasons that have codes are in i18n.js; these are sentences with
// names and numbers in them, which the server writes in English for all its readers.

import { language } from "./i18n.js";

/** English and Chinese. `{name}` stands for any text, which may be another of these. More specific sentences come first. */
export const SENTENCES = [
  ["the rules in the kernel can only be read by root, on the node itself", "只有节点上的 root 才能读取内核中的规则"],
  ["flows can only be read by root, on the node itself", "只有节点上的 root 才能读取连接"],
  ["the syncs are known for a running proxy, a bundle and the demo; these objects come from elsewhere", "只有运行中的代理、记录文件和演示才有同步记录；这些对象来自其他地方"],
  ["no rules of a service proxy in this network namespace count connections", "此网络命名空间中没有 Service 代理的规则统计连接"],
  ["open the URL that `ferroute demo --ui` printed", "请打开 `ferroute demo --ui` 显示的地址"],
  ["{family} rules of {mode} mode: by netlink: {reason}", "{mode} 模式的 {family} 规则：通过 netlink 读写：{reason}"],
  ["{family} rules of {mode} mode: by {program}: {reason}", "{mode} 模式的 {family} 规则：通过 {program} 读写：{reason}"],
  ["netlink is not possible: {error}", "无法使用 netlink：{error}"],
  ["the host's iptables uses nf_tables", "主机的 iptables 使用 nf_tables"],
  ["the host's iptables uses the legacy backend", "主机的 iptables 使用 legacy 后端"],
  ["the host has tables of the legacy backend", "主机有 legacy 后端的表"],
  ["no iptables programs are installed", "没有安装 iptables 程序"],
  ["the installed iptables programs cannot be run", "已安装的 iptables 程序无法运行"],
  ["the programs of the legacy backend, which the kubelet uses, are not installed", "没有安装 kubelet 所用的 legacy 后端的程序"],
  ["the kernel has no tables of the legacy backend", "内核没有 legacy 后端的表"],
  ["as configured", "按照配置"],
  ["the Service has no {family} cluster IP", "该 Service 没有 {family} 集群 IP"],
  ["{field}: required: only the API server can assign an address", "{field}：必填，只有 API server 可以分配地址"],
  ["{field}: {value} differs from spec.clusterIP", "{field}：{value} 与 spec.clusterIP 不同"],
  ["{field}: more than one address of an IP family", "{field}：同一 IP 族有多个地址"],
  ["{field}: unsupported value {value} (want {wanted})", "{field}：不支持的值 {value}（应为 {wanted}）"],
  ["{field}: at least one port is required", "{field}：至少需要一个端口"],
  ["{field}: at least one address is required", "{field}：至少需要一个地址"],
  ["{field}: may not be used with type ClusterIP", "{field}：不能用于 ClusterIP 类型"],
  ["{field}: duplicate name {name}", "{field}：名称 {name} 重复"],
  ["{field}: duplicate port {port}", "{field}：端口 {port} 重复"],
  ["{field}: duplicate node port {port}", "{field}：节点端口 {port} 重复"],
  ["{field}: unsupported type {value} (want {wanted})", "{field}：不支持的类型 {value}（应为 {wanted}）"],
  ["{field}: invalid timeout {value} (want {wanted} seconds)", "{field}：无效的超时 {value}（应为 {wanted} 秒）"],
  ["{field}: invalid name {value} (want {wanted})", "{field}：无效的名称 {value}（只能包含 a-z、0-9 和 '-'）"],
  ["{field}: invalid port {value} (want {wanted})", "{field}：无效的端口 {value}（应为 {wanted}）"],
  ["{field}: invalid network {value} (want {wanted})", "{field}：无效的网段 {value}（应为 {wanted}）"],
  ["{field}: invalid IP address {value}", "{field}：无效的 IP 地址 {value}"],
  ["client is not in list {list}", "客户端不在列表 {list} 中"],
  ["client is in list {list} since {age} s, not at most {limit} s", "客户端在列表 {list} 中已有 {age} 秒，超过 {limit} 秒"],
  ["the first packet of a connection has the flag syn alone", "连接的第一个数据包只有 syn 标志"],
  ["the packet is from the client", "数据包来自客户端"],
  ["source {address} is no address of the host", "源地址 {address} 不是主机的地址"],
  ["destination {address} is no address of the host", "目的地址 {address} 不是主机的地址"],
  ["the destination was not translated", "目的地址没有经过转换"],
  ["this is the connection's first packet, not one after {packets}", "这是连接的第一个数据包，而不是第 {packets} 个之后的数据包"],
  ["mark is {mark}, without {bits}", "标记为 {mark}，不含 {bits}"],
  ["it is an {actual} packet, not {family}", "这是 {actual} 数据包，不是 {family}"],
  ["packet did not arrive through a port of a bridge", "数据包不是经由网桥端口到达的"],
  ["virtual server is {actual}, not {wanted}", "虚拟服务器为 {actual}，不是 {wanted}"],
  ["packet {state} in set {set}", "数据包{state}集合 {set} 中"],
  ["packet is no later fragment", "数据包不是后续分片"],
  ["by assumption, {condition}", "假设：{condition}"],
  ["assuming that {condition}", "假设 {condition}"],
  ["chance decides otherwise", "随机选择了其他分支"],
  ["no element of the set {set} has the packet's other fields", "集合 {set} 中没有与数据包其他字段相同的元素"],
  ["the packet has no {property}", "数据包没有 {property}"],
  ["{key} is in the set", "{key} 在集合中"],
  ["{key} is not in the list", "{key} 不在列表中"],
  ["effect of {rule}", "{rule} 的作用"],
  ["result of chain {chain}, after {count} calls of chains", "调用 {count} 次链之后链 {chain} 的结果"],
  ["there are too many branches to follow all", "分支过多，无法全部跟踪"],
  ["prohibit route", "prohibit 路由"],
  ["blackhole route", "blackhole 路由"],
  ["a bridge returns no packets to the port from which they came, unless it is in hairpin mode", "除非端口处于 hairpin 模式，网桥不会把数据包送回其来自的端口"],
  ["the output interface has no address for masquerading", "出接口没有可用于伪装的地址"],
  ["loopback address received on another interface", "从其他接口收到环回地址"],
  ["loopback source leaving the host without route_localnet", "源为环回地址的数据包离开主机，但没有启用 route_localnet"],
  ["loopback source leaving the host through an interface without a local route to ::1 for the replies", "源为环回地址的数据包经由没有 ::1 本地路由的接口离开主机，应答无法送达"],
  ["martian destination: loopback address without route_localnet", "非法目的（martian）：环回地址，且没有启用 route_localnet"],
  ["martian source: the host's own address received from outside", "非法来源（martian）：从外部收到主机自己的地址"],
  ["martian source: {address} is an address of this host", "非法来源（martian）：{address} 是本机地址"],
  ["reverse path filter (rp_filter) of {input}: the route to {source} uses {interface}", "{input} 的反向路径过滤（rp_filter）：到 {source} 的路由经由 {interface}"],
  ["reverse path filter (rp_filter) of {input}: there is no route to {source}", "{input} 的反向路径过滤（rp_filter）：没有到 {source} 的路由"],
  ["{condition} does not match", "{condition} 不匹配"],
  ["{condition} matches", "{condition} 匹配"],
  ["{condition} does not yield {value}", "{condition} 不得出 {value}"],
  ["{condition} yields {value}", "{condition} 得出 {value}"],
  ["{condition} finds no socket", "{condition} 找不到套接字"],
  ["{condition} finds a socket", "{condition} 找到套接字"],
  ["the program of {rule} does not accept the packet", "{rule} 的程序不接受数据包"],
  ["the program of {rule} accepts the packet", "{rule} 的程序接受数据包"],
  ["there is no such route", "没有这样的路由"],
  ["there is such a route", "有这样的路由"],
  ["no rules of a service proxy", "没有 Service 代理的规则"],
  ["missing jump from {table} {chain} to {target}", "{table} {chain} 中缺少到 {target} 的跳转"],
  ["missing chain {chain}", "缺少链 {chain}"],
  ["missing {kind} {set}", "缺少 {kind} {set}"],
  ["chain {chain} has the wrong hook or priority", "链 {chain} 的钩子或优先级不正确"],
  ["chain {chain} has {actual} rules (expected: {expected})", "链 {chain} 有 {actual} 条规则（应为 {expected} 条）"],
  ["rule {number} of chain {chain} is modified", "链 {chain} 的第 {number} 条规则被修改"],
  ["{kind} {set} has the wrong declaration", "{kind} {set} 的声明不正确"],
  ["session affinity timeouts in kube-proxy's nftables rules are not compared", "不比较 kube-proxy 的 nftables 规则中会话亲和的超时"],
  ["session affinity timeouts in these rules are not compared", "不比较这些规则中会话亲和的超时"],
  // Traits of modes: titles, then values.
  ["policy Local, and no endpoint on this node", "策略为 Local，而本节点没有端点"],
  ["external policy Local also applies to pods and the node itself", "外部策略 Local 也适用于 Pod 和节点自身"],
  ["source address that endpoints see, with external policy Local", "外部策略为 Local 时端点看到的源地址"],
  ["protocols", "协议"],
  ["connections of an endpoint to itself are masqueraded", "伪装端点到自身的连接"],
  ["the node's own connections to external addresses without endpoints", "节点自身到没有端点的外部地址的连接"],
  ["source ranges also apply without endpoints", "没有端点时来源范围也适用"],
  ["source ranges apply to a load balancer IP that is also an external IP", "负载均衡 IP 同时是外部 IP 时，来源范围适用"],
  ["connections to unknown ports of cluster IPs", "到集群 IP 未知端口的连接"],
  ["packets to unassigned addresses in ServiceCIDRs", "到 ServiceCIDR 中未分配地址的数据包"],
  ["node ports are served without `nodePortAddresses` on", "未设置 `nodePortAddresses` 时提供节点端口的地址"],
  ["node ports without endpoints are refused at", "拒绝没有端点的节点端口的地址"],
  ["node ports can be served on localhost", "可以在环回地址提供节点端口"],
  ["Service addresses are addresses of the host", "Service 地址是主机的地址"],
  ["Service traffic is accepted in the iptables tables", "在 iptables 的表中放行 Service 流量"],
  ["methods that choose endpoints", "选择端点的方法"],
  ["least connections follow weights, once per second", "最少连接每秒按权重调整一次"],
  ["weights of endpoints", "端点的权重"],
  ["deadlines of connections to terminating endpoints", "到正在终止的端点的连接的期限"],
  ["source ranges of other addresses than load balancer IPs", "负载均衡 IP 以外的地址的来源范围"],
  ["limits of connections", "连接数限制"],
  ["most endpoints of a port with a method other than `random`; with session affinity", "方法不是 `random` 时一个端口的端点上限；有会话亲和时的上限"],
  ["dropped", "丢弃"],
  ["rejected", "拒绝"],
  ["routed", "转发"],
  ["leave the node", "离开节点"],
  ["endpoints of other nodes", "其他节点的端点"],
  ["the client's", "客户端的地址"],
  ["the client's; of the node's own connections the Service's, or the node's without endpoints on it", "客户端的地址；节点自身的连接为 Service 的地址，本节点没有端点时为节点的地址"],
  ["always the node's", "总是节点的地址"],
  ["on this node", "在本节点上"],
  ["except for the node's own", "节点自身的连接除外"],
  ["all addresses of the node", "节点的所有地址"],
  ["its primary address", "节点的主地址"],
  ["yes", "是"],
  ["no", "否"],
  ["{subject} is {actual}, which is too great", "{subject}为 {actual}，过大"],
  ["{subject} is {actual}, and {wanted} is excluded", "{subject}为 {actual}，而 {wanted} 被排除"],
  ["{subject} is {actual}, not {wanted}", "{subject}为 {actual}，不是 {wanted}"],
  ["{key} is not in @{map}", "{key} 不在 @{map} 中"],
  ["{key} is in @{map}", "{key} 在 @{map} 中"],
  ["{subject} {address} is not of type {kind}", "{subject} {address} 不是 {kind} 类型"],
  ["{subject} {address} is of type {kind}", "{subject} {address} 是 {kind} 类型"],
  ["{subject} is {actual}, which is too small", "{subject}为 {actual}，过小"],
  ["{subject} is {actual}", "{subject}为 {actual}"],
];

/** Properties that a rule compares. */
export const SUBJECTS = {
  "source": "源地址", "destination": "目的地址", "source port": "源端口", "destination port": "目的端口",
  "input interface": "入接口", "output interface": "出接口", "protocol": "协议", "mark": "标记", "port": "端口",
  "connection state": "连接状态", "connection status": "连接状态", "original source": "原始源地址", "original destination": "原始目的地址",
  "type of the destination": "目的类型", "type of the source": "源类型", "original destination port": "原始目的端口", "original source port": "原始源端口", "connection mark": "连接标记",
  "is": "在", "is not": "不在", "priority": "优先级", "the random number": "随机数",
};

function pattern(text) {
  const parts = text.split(/\{\w+\}/).map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join("(.+?)")}$`, "su");
}

let compiled = null;

/** Returns a sentence of the server in the language of the page; an unknown sentence is returned unchanged. */
export function translate(text) {
  if (!text || language() !== "zh") return text ?? "";
  compiled ??= SENTENCES.map(([english, chinese]) => [pattern(english), english.match(/\{\w+\}/g) ?? [], chinese]);
  for (const [expression, names, chinese] of compiled) {
    const found = expression.exec(text);
    // A sentence about something else may have the same form.
    if (!found || (names[0] === "{subject}" && !(found[1].split(" & ")[0] in SUBJECTS))) continue;
    const values = new Map(names.map((name, index) => [name, SUBJECTS[found[index + 1]] ?? translate(found[index + 1])]));
    return chinese.replace(/\{\w+\}/g, (name) => values.get(name) ?? name);
  }
  return text;
}
