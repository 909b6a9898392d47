// The findings of `doctor` in Chinese, by their codes. In English, the page shows the sentences of the report.

import { language } from "./i18n.js";

/** Problem, effect, fix. `{name}` stands for a value of the finding. */
export const FINDINGS = {
  "ip-families": ["内核不支持 {family}，但存在 {family} Service", "此主机上 Service 的 {family} 地址不可达",
    "启动内核时不要使用 ipv6.disable=1，或从 Service 中删除 {family} 地址"],
  "kernel-nftables": ["{mode} 模式不支持 {family}：{reason}", "{family} Service 在此模式下不工作",
    "以具有 CAP_NET_ADMIN 的 root 运行；加载模块 nf_tables 和 nft_nat，或使用更新的内核；或使用 --proxy-mode=iptables"],
  "iptables-tools": ["{mode} 模式不支持 {family}：{reason}", "{family} Service 在此模式下不工作",
    "安装 iptables 软件包，并以具有 CAP_NET_ADMIN 的 root 运行；或使用不需要程序的 --proxy-mode=nftables"],
  "kernel-ipvs": ["{mode} 模式不支持 {family}：{reason}", "{family} Service 在此模式下不工作",
    "以具有 CAP_NET_ADMIN 的 root 运行；用 `modprobe -a ip_vs ip_vs_rr nf_conntrack ip_set xt_set dummy` 加载模块（其他 ipvs.scheduler 需要 ip_vs_SCHEDULER），并写入 /etc/modules-load.d；在此之前代理使用 iptables 模式"],
  "mode-support": ["{mode} 模式不支持 {family}：{reason}", "{family} Service 在此模式下不工作",
    "安装或启用缺少的功能，或使用其他 --proxy-mode"],
  "unread-rules": ["有无法读取的规则：{reason}", "内核对所有数据包应用这些规则，但代理和本程序都无法读取：它们可能转换、接受或丢弃到 Service 的连接",
    "在主机上用 iptables-legacy-save 列出规则；如果没有规则，用 `modprobe -r iptable_nat iptable_filter iptable_mangle`（ip6table_*）移除这些表，或重启主机；否则在运行 Ferroute 的地方安装 legacy 后端的程序"],
  "iptables-backends": ["两个 iptables 后端都有 {family} 规则：{counts}", "内核同时应用两者的规则，顺序难以预料；一方可能丢弃另一方接受的数据包",
    "用 iptables-legacy-save 和 iptables-nft-save 找出规则的所有者，并将主机上的所有程序配置为同一后端（update-alternatives --config iptables）"],
  "other-proxies.running": ["有多个 Service 代理正在运行：{names}", "在同一网络命名空间中，它们会在对方更改后恢复各自的规则，连接可能使用任何一方的规则",
    "只保留一个；在集群中，删除另一个的 DaemonSet，或用节点选择器排除此节点"],
  "other-proxies.rules": ["内核中有多个 Service 代理的规则：{active}", "连接使用排在前面的规则，因此变更可能不起作用",
    "重启代理，它启动时会删除其他代理的规则；如果仍有残留，运行 `ferroute run --cleanup` 删除所有代理的规则，然后重新启动代理"],
  "other-proxies.stopped": ["内核中有 Service 代理的规则，但没有代理在运行：{active}", "连接仍然发往代理停止时存在的端点",
    "启动代理，或用 `ferroute run --cleanup` 删除规则；其他 PID 命名空间中的代理在这里不可见"],
  "ip-forward": ["{name} 为 0", "来自 Pod 的 {family} 数据包，以及从其他主机到节点端口的数据包，不会被转发",
    "运行 sysctl -w {name}=1，并写入 /etc/sysctl.d 中的文件，以便重启后仍然有效"],
  "service-routes": ["主机没有到集群 IP {address} 的 {family} 路由", "主机自身到 Service 的连接会失败：kubelet、使用主机网络的 Pod，以及此主机上的 API server 到 webhook 的连接。内核在应用任何规则之前查找路由；Pod 不受影响",
    "通过任何已启用的接口添加默认路由，或覆盖 Service 地址的路由：{command} add SERVICE-CIDR dev INTERFACE"],
  "forward-policy.drops": ["{family} 的 FORWARD 链的策略是 DROP（{backend}）", "{mode} 模式的规则不能接受其他链丢弃的数据包：除非有其他规则接受，到节点端口、外部 IP 和负载均衡器 IP 的连接会被丢弃，包括发往其他节点上端点的连接",
    "接受 Service 转换的连接：{program} -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT，并使其持久；或将策略设为 ACCEPT"],
  "forward-policy.accepted": ["{family} 的 FORWARD 链的策略是 DROP（{backend}）", "只转发有规则接受的数据包：代理接受经过地址伪装的数据包，Pod 的其他数据包需要网络插件的规则",
    "如果 Pod 无法访问 Service，用 `ferroute trace --kernel` 跟踪数据包；此策略由 Docker 设置，网络插件应添加接受 Pod 网络数据包的规则"],
  "input-firewall": ["{family} 的 INPUT 链丢弃没有规则接受的数据包（{backend}）", "在 ipvs 模式下，Pod 到集群 IP 的连接，以及其他主机到节点端口和负载均衡器 IP 的连接，会经过 INPUT 并被丢弃",
    "运行 Ferroute，它在 KUBE-IPVS-ACCEPT 链中接受这些连接，并且不要让任何规则在跳转到该链之前丢弃所有数据包；kube-proxy 需要管理员添加规则"],
  "rp-filter": ["{interfaces} 上的反向路径过滤为严格模式", "如果应答会经由另一个接口发出，数据包会被静默丢弃：多网络主机上的节点端口客户端、非对称路由，以及某些网络插件",
    "如果某些客户端到 Service 的连接没有响应，设置 net.ipv4.conf.all.rp_filter=2（宽松），并对 {all} 做同样设置；请查阅网络插件的文档，确认是否要求严格过滤"],
  "bridge-nf-call.off": ["{name} 没有启用，而 Pod 可能连接在网桥上（{bridges}）", "同一网桥上 Pod 之间的 {family} 应答绕过规则并保留错误的源地址：如果端点在同一节点上，到 Service 的连接会没有响应",
    "如果网络插件使用网桥，运行 {command}，并使其持久"],
  "bridge-nf-call.missing": ["没有加载内核模块 br_netfilter，而 Pod 可能连接在网桥上（{bridges}）", "同一网桥上 Pod 之间的 {family} 应答绕过规则并保留错误的源地址：如果端点在同一节点上，到 Service 的连接会没有响应",
    "如果网络插件使用网桥，运行 {command}，并使其持久"],
  "conntrack-table.inactive": ["连接跟踪未启用", "无：第一条需要它的规则会启用它", "无需处理，除非有代理在运行：此时内核缺少 nf_conntrack"],
  "conntrack-table.full": ["连接跟踪表已使用 {count} 项，共 {max} 项", "表满时，所有新连接都会被丢弃，不仅是到 Service 的连接",
    "在配置中增大 conntrack.maxPerCore 和 conntrack.min，或运行 sysctl -w net.netfilter.nf_conntrack_max={suggested}；用 conntrack -L 列出连接"],
  "conntrack-table.evicted": ["启动以来，因连接跟踪表已满，有 {count} 项被移除", "正在建立的连接和没有应答的 UDP 流被延迟或失败",
    "在配置中增大 conntrack.maxPerCore 和 conntrack.min，或运行 sysctl -w net.netfilter.nf_conntrack_max={suggested}；用 conntrack -L 列出连接"],
  "conntrack-table.dropped": ["启动以来，连接跟踪丢弃了 {count} 个数据包，表满时会发生这种情况", "这些连接被延迟一秒以上，或者失败",
    "在配置中增大 conntrack.maxPerCore 和 conntrack.min，或运行 sysctl -w net.netfilter.nf_conntrack_max={suggested}；用 conntrack -L 列出连接"],
  "conntrack-table.races": ["启动以来，有 {count} 个数据包因同一流的其他数据包同时到达而被丢弃", "多数是同一进程的并行 DNS 查询，它们会延迟几秒",
    "在每个节点上运行 DNS 缓存，或在 Pod 中设置解析器选项 single-request-reopen 或 use-vc；连接跟踪表的大小没有影响"],
  "node-ports": ["{owner} 监听 {port}，这是 {service} 的节点端口", "其他主机无法通过节点端口地址访问该进程；它们的连接会发往 Service",
    "更改两个端口之一；进程不应使用 API server 的 --service-node-port-range 范围内的端口"],
  "api-server-clock.ahead": ["API server 的时钟比此主机快 {difference}", "证书和令牌可能显示为已过期或尚未生效；测量的延迟不正确",
    "使两个时钟与时间服务器同步（timedatectl status、chronyc tracking）"],
  "api-server-clock.behind": ["API server 的时钟比此主机慢 {difference}", "证书和令牌可能显示为已过期或尚未生效；测量的延迟不正确",
    "使两个时钟与时间服务器同步（timedatectl status、chronyc tracking）"],
  "endpoints.refused": ["{service} 的端点 {endpoint} 拒绝来自此主机的连接（共 {all} 个，失败 {failed} 个）", "从此主机到 {service} 的连接约有 {failed}/{all} 会失败，其 Pod 可能也是如此",
    "比较 Service 的 targetPort 与容器监听的端口，并为该端口添加就绪探针"],
  "endpoints.silent": ["{service} 的端点 {endpoint} 不响应此主机（共 {all} 个，失败 {failed} 个）", "从此主机到 {service} 的连接约有 {failed}/{all} 会失败，其 Pod 可能也是如此",
    "检查此节点与 Pod 之间的 NetworkPolicy 或防火墙，以及 Pod 所在节点的网络插件"],
  "endpoints.unreachable": ["从此主机无法到达 {service} 的端点 {endpoint}（共 {all} 个，失败 {failed} 个）{cause}", "从此主机到 {service} 的连接约有 {failed}/{all} 会失败，其 Pod 可能也是如此",
    "此主机没有到 Pod 网络的路由：检查此节点上的网络插件（ip route get ADDRESS）"],
};

/** Returns a finding with its texts in the language of the page. */
export function localFinding(finding) {
  const texts = language() === "zh" ? FINDINGS[finding.code] : null;
  if (!texts) return finding;
  const values = finding.values ?? {};
  const [problem, effect, fix] = texts.map((text) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole));
  return { ...finding, problem, effect, fix };
}
