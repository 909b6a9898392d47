//! Which mode is taken, and what becomes of rules of other modes.

use std::os::unix::fs::symlink;

use crate::{
    Files, Lab, Mode, Proxy,
    proxy::{FERROUTE, run_command},
    rules,
    traffic::connect,
    web, web_tcp,
};

#[test]
fn nftables_is_taken_when_no_mode_is_asked_for_and_iptables_under_the_name_of_kube_proxy() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let kube_proxy = files.path("kube-proxy");
    symlink(FERROUTE, &kube_proxy).unwrap();
    let names = [
        (FERROUTE, Mode::Nftables, "nftables", "the kernel can do all that it needs"),
        (kube_proxy.to_str().unwrap(), Mode::Iptables, "iptables", "kube-proxy's default"),
    ];
    for (program, mode, word, reason) in names {
        let config = files.config_asking_for("");
        let mut proxy = Proxy::spawn(&lab.node, &mut run_command(program, &files.manifests(), &config));
        proxy.wait_in_force(&lab.node);
        let line = proxy.wait_log("mode taken");
        assert!(line.contains(word) && line.contains(reason), "{line}");
        for to in web_tcp() {
            connect(&lab.client, to).unwrap();
        }
        crate::wait("the end of the other mode's rules", || {
            rules::ours(&lab.node, mode.other()).is_empty().then_some(())
        });
        assert_ne!(rules::ours(&lab.node, mode), Vec::<String>::new());
        assert!(proxy.end_by("TERM").success());
    }
}
