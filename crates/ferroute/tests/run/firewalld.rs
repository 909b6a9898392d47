//! Repair after firewalld has removed rules. The test owns firewalld's name on a separate message bus.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use crate::{
    Case, Mode,
    cluster::Cluster,
    in_each_mode,
    proxy::{FERROUTE, Files, Proxy, run_command},
    wait, web, web_tcp,
};

in_each_mode!(rules_are_restored_after_firewalld_has_started);

/// A message bus, whose daemon is killed on drop.
struct Bus {
    child: Child,
    address: String,
}

impl Bus {
    fn start(files: &Files) -> Self {
        let (config, socket) = (files.path("bus.conf"), files.path("bus"));
        let text = format!(
            "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\" \
             \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\">\n<busconfig><listen>unix:path={}</listen>\
             <auth>EXTERNAL</auth><policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/>\
             <allow eavesdrop=\"true\"/><allow own=\"*\"/><allow user=\"*\"/></policy></busconfig>",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("dbus-daemon");
        command.arg(format!("--config-file={}", config.display())).args(["--nofork", "--print-address"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("this test needs dbus-daemon");
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }

    /// Requests firewalld's name, as firewalld does when it starts.
    fn start_firewalld(&self) {
        let to_bus = ["--system", "--print-reply", "--dest=org.freedesktop.DBus", "/org/freedesktop/DBus"];
        let call = ["org.freedesktop.DBus.RequestName", "string:org.fedoraproject.FirewallD1", "uint32:0"];
        let mut command = Command::new("dbus-send");
        command.args(to_bus).args(call).env("DBUS_SYSTEM_BUS_ADDRESS", &self.address).stdout(Stdio::null());
        assert!(command.status().unwrap().success());
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rules_are_restored_after_firewalld_has_started(mode: Mode) {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let bus = Bus::start(&files);
    let mut command = run_command(FERROUTE, &files.manifests(), &files.config(mode));
    let mut proxy = Proxy::spawn(&cluster.node, command.env("DBUS_SYSTEM_BUS_ADDRESS", &bus.address));
    proxy.wait_synced(&cluster.node);
    let case = Case { proxy, files, cluster, mode };
    let before = case.rules();
    case.cluster.node.command("nft", &["flush", "ruleset"]);
    // The proxy may not have subscribed to the signals yet.
    wait("firewalld's start is reported", || {
        bus.start_firewalld();
        case.proxy.log().contains("firewalld started or reloaded").then_some(())
    });
    wait("the rules are restored", || (case.rules() == before).then_some(()));
    for to in web_tcp() {
        assert_eq!(case.connect(to).unwrap(), 0);
    }
}
