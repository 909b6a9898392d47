//! With a real bus of the test's own, and somebody on it who plays firewalld.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::bus::{Kind, Outgoing};

/// A bus that ends with the test.
struct Daemon {
    child: Child,
    address: String,
    _directory: TempDir,
}

impl Daemon {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("bus.conf");
        let socket = directory.path().join("socket");
        let text = format!(
            "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\" \
             \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\">\n<busconfig>\
             <listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context=\"default\"><allow send_destination=\"*\" \
             eavesdrop=\"true\"/><allow eavesdrop=\"true\"/><allow own=\"*\"/><allow user=\"*\"/></policy></busconfig>",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--print-address"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test needs dbus-daemon");
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned(), _directory: directory }
    }

    /// Somebody who has a name.
    async fn guest(&self, name: &str) -> Bus {
        let mut bus = Bus::connect(&self.address).await.unwrap();
        bus.call("RequestName", &[Value::Text(name), Value::Number(0)]).await.unwrap();
        bus
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn emit(bus: &mut Bus, member: &str) {
    let (path, interface) = ("/org/fedoraproject/FirewallD1", FIREWALLD);
    bus.send(&Outgoing { kind: Kind::Signal, path, interface, member, destination: None, body: &[] }).await.unwrap();
}

async fn hear(watch: &mut FirewalldWatch) {
    timeout(Duration::from_secs(30), watch.reloaded()).await.expect("firewalld is heard").unwrap();
}

#[tokio::test]
async fn its_start_and_its_reloads_are_heard_and_nothing_else() {
    let mut daemon = Daemon::start();
    let mut watch = FirewalldWatch::at(&daemon.address).await.unwrap();
    // Others, and somebody who is not firewalld but says the same.
    let mut stranger = daemon.guest("org.example.Stranger").await;
    emit(&mut stranger, "Reloaded").await;
    let mut firewalld = daemon.guest(FIREWALLD).await;
    hear(&mut watch).await;
    emit(&mut firewalld, "DefaultZoneChanged").await;
    for _ in 0..3 {
        emit(&mut firewalld, "Reloaded").await;
        hear(&mut watch).await;
    }
    // Its end is no reason to look.
    drop(firewalld);
    let _again = daemon.guest(FIREWALLD).await;
    hear(&mut watch).await;
    // Had there been more, it would come before the end of the bus.
    daemon.child.kill().unwrap();
    timeout(Duration::from_secs(30), watch.reloaded()).await.expect("it is noticed").unwrap_err();
}

#[tokio::test]
async fn a_bus_that_goes_is_told() {
    let mut daemon = Daemon::start();
    let mut watch = FirewalldWatch::at(&daemon.address).await.unwrap();
    daemon.child.kill().unwrap();
    let error = timeout(Duration::from_secs(30), watch.reloaded()).await.expect("it is noticed").unwrap_err();
    assert!([io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset].contains(&error.kind()), "{error}");
}

#[tokio::test]
async fn where_there_is_no_bus_that_is_told_apart() {
    let error = FirewalldWatch::at("unix:path=/nonexistent/bus").await.unwrap_err();
    assert!(error.is_no_bus(), "{error:?}");
}
