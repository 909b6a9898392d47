//! With a private bus, and test clients in the place of firewalld.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::bus::tests::{request_name, send_signal};

/// A dbus-daemon that is killed on drop.
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

    /// Connects a client that owns a name.
    async fn client(&self, name: &str) -> Connection {
        let mut bus = Connection::open(&self.address).await.unwrap();
        let request = request_name(&mut bus, name).await;
        while bus.receive().await.unwrap().reply_serial != request {}
        bus
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the unique name that the bus has assigned, from the reply to `Hello`.
async fn unique_name(bus: &mut Connection) -> String {
    loop {
        let message = bus.receive().await.unwrap();
        if message.kind == METHOD_RETURN && message.reply_serial == 1 {
            return message.arguments[0].clone();
        }
    }
}

/// Waits until the bus has processed all messages of a client.
async fn flush(bus: &mut Connection) {
    let query = bus.call("GetNameOwner", Some(BUS)).await.unwrap();
    while bus.receive().await.unwrap().reply_serial != query {}
}

async fn expect_reload(watch: &mut FirewalldWatch) {
    timeout(Duration::from_secs(30), watch.reloaded()).await.expect("a reload is reported").unwrap();
}

#[tokio::test]
async fn starts_and_reloads_are_reported_and_nothing_else() {
    let mut daemon = Daemon::start();
    let mut watch = FirewalldWatch::connect(&daemon.address).await.unwrap();
    let mut firewalld = daemon.client(FIREWALLD).await;
    expect_reload(&mut watch).await;
    send_signal(&mut firewalld, FIREWALLD, "DefaultZoneChanged", None).await;
    for _ in 0..3 {
        send_signal(&mut firewalld, FIREWALLD, "Reloaded", None).await;
        expect_reload(&mut watch).await;
    }
    // firewalld's end is not reported.
    drop(firewalld);
    let _restarted = daemon.client(FIREWALLD).await;
    expect_reload(&mut watch).await;
    // An unexpected report would arrive before the end of the bus.
    daemon.child.kill().unwrap();
    timeout(Duration::from_secs(30), watch.reloaded()).await.expect("the bus's end is noticed").unwrap_err();
}

#[tokio::test]
async fn reloads_of_a_running_firewalld_are_reported() {
    let daemon = Daemon::start();
    let mut firewalld = daemon.client(FIREWALLD).await;
    let mut watch = FirewalldWatch::connect(&daemon.address).await.unwrap();
    assert_eq!(watch.owner, None);
    // Repeated until the bus has processed the match rule.
    let send = async {
        loop {
            send_signal(&mut firewalld, FIREWALLD, "Reloaded", None).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = expect_reload(&mut watch) => {}
        () = send => {}
    }
}

#[tokio::test]
async fn reloaded_from_another_sender_is_ignored() {
    let mut daemon = Daemon::start();
    let mut watch = FirewalldWatch::connect(&daemon.address).await.unwrap();
    let name = unique_name(&mut watch.bus).await;
    let mut other = daemon.client("org.example.Other").await;
    let mut firewalld = daemon.client(FIREWALLD).await;
    expect_reload(&mut watch).await;
    let owner = watch.owner.clone();
    let forged = Message {
        kind: METHOD_RETURN,
        sender: ":1.99".to_owned(),
        reply_serial: watch.owner_query,
        arguments: vec![":1.99".to_owned()],
        ..Message::default()
    };
    assert!(!watch.handle(&forged));
    assert_eq!(watch.owner, owner, "only the bus says who owns a name");
    // The bus delivers a signal with a destination regardless of match rules.
    for destination in [None, Some(&*name)] {
        send_signal(&mut other, FIREWALLD, "Reloaded", destination).await;
    }
    flush(&mut other).await;
    send_signal(&mut firewalld, FIREWALLD, "Reloaded", None).await;
    flush(&mut firewalld).await;
    expect_reload(&mut watch).await;
    daemon.child.kill().unwrap();
    timeout(Duration::from_secs(30), watch.reloaded()).await.expect("the bus's end is noticed").unwrap_err();
}

#[tokio::test]
async fn end_of_the_bus_is_an_error() {
    let mut daemon = Daemon::start();
    let mut watch = FirewalldWatch::connect(&daemon.address).await.unwrap();
    daemon.child.kill().unwrap();
    let error = timeout(Duration::from_secs(30), watch.reloaded()).await.expect("the end is noticed").unwrap_err();
    assert!([io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset].contains(&error.kind()), "{error}");
}

#[tokio::test]
async fn missing_bus_is_a_separate_error() {
    let error = FirewalldWatch::connect("unix:path=/nonexistent/bus").await.unwrap_err();
    assert!(error.is_no_bus(), "{error:?}");
}
