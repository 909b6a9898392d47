//! kube-proxy's iptables rules as typed values: planner, text form, runner.
