//! Connections that began while rules were missing or wrong.

use super::*;

/// Returns the entry of a connection without a reply, with the address that the first packet was sent on to.
fn entry(protocol: Protocol, to: &str, sent_on_to: &str) -> Entry {
    let client = "10.0.0.9:40123".parse().unwrap();
    Entry {
        protocol,
        original_source: client,
        original_destination: to.parse().unwrap(),
        reply_source: sent_on_to.parse().unwrap(),
        reply_destination: client,
        is_open: true,
        is_answered: false,
    }
}

/// What makes the proxy find that another program modified the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// The check each second.
    Check,
    /// A sync of changes.
    Sync,
}

/// Returns the deleted entries in the time after the rules were repaired, while `answered` of the connections get a
/// reply.
async fn deleted_after_repair(entries: &[Entry], answered: &[Entry]) -> Vec<String> {
    let deleted = deleted_after(Finding::Check, entries, answered).await;
    assert_eq!(deleted_after(Finding::Sync, entries, answered).await, deleted, "whatever finds it");
    deleted
}

async fn deleted_after(finding: Finding, entries: &[Entry], answered: &[Entry]) -> Vec<String> {
    let rig = Rig::start(&[]);
    let mut all = dns_with(&["10.0.0.1"]);
    all.extend([web(), Change::Synced]);
    rig.after(all).await;
    rig.within(Duration::from_secs(4)).await;
    rig.unanswered.lock().unwrap().extend(entries);
    assert_eq!(rig.within(Duration::from_secs(10)).await, [""; 0], "rules were not repaired");
    *rig.modified.lock().unwrap() = true;
    let mut repair = match finding {
        Finding::Check => rig.within(Duration::from_secs(1)).await,
        Finding::Sync => {
            let changed = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).build();
            rig.after(vec![Change::Desired(TrackerEvent::from_service(&changed).unwrap(), origin())]).await
        }
    };
    repair.retain(|line| line != "rules were modified");
    if finding == Finding::Sync {
        assert_eq!(repair.remove(0), "sync shop/web");
    }
    assert_eq!((&*repair[0], repair.last().unwrap().as_str()), ("resync of 2 ports", "synced 2 ports"));
    rig.unanswered.lock().unwrap().retain(|entry| !answered.contains(entry));
    let mut deleted = repair[1..repair.len() - 1].to_vec();
    deleted.extend(rig.within(Duration::from_secs(3)).await);
    deleted
}

#[tokio::test(start_paused = true)]
async fn connections_without_a_reply_begin_again_after_rules_were_repaired() {
    // One connection that was not translated, and some that lead to endpoints but may lack the address that replies
    // would need.
    let lost = [
        (Protocol::Tcp, "10.96.0.1:80", "10.96.0.1:80"),
        (Protocol::Udp, "10.96.0.10:53", "10.0.0.1:53"),
        (Protocol::Udp, "192.168.0.1:30053", "10.0.0.1:53"),
    ];
    let lost = lost.map(|(protocol, to, sent_on_to)| entry(protocol, to, sent_on_to));
    let expected = [
        "delete unanswered tcp to 10.96.0.1:80",
        "delete unanswered udp to 10.96.0.10:53",
        "delete unanswered udp to 192.168.0.1:30053",
    ];
    assert_eq!(deleted_after_repair(&lost, &[]).await, expected);
    assert_eq!(deleted_after_repair(&lost, &lost[1..2]).await, [expected[0], expected[2]], "one is answered meanwhile");
}

#[tokio::test(start_paused = true)]
async fn connections_of_others_and_of_relays_stay() {
    let others = [
        (Protocol::Udp, "10.96.0.1:80", "10.96.0.1:80"),
        (Protocol::Tcp, "10.96.0.10:53", "10.0.0.1:53"),
        (Protocol::Udp, "10.0.0.1:30053", "10.0.0.1:30053"),
        (Protocol::Udp, "10.96.0.10:53", "192.168.0.1:40000"),
    ];
    assert_eq!(deleted_after_repair(&others.map(|(protocol, to, on)| entry(protocol, to, on)), &[]).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn only_some_connections_of_a_flood_are_kept() {
    let entries: Vec<Entry> = (0..40_000)
        .map(|number: u32| Entry {
            original_source: SocketAddr::new(number.to_be_bytes().into(), 1),
            ..entry(Protocol::Udp, "10.96.0.10:53", "10.0.0.1:53")
        })
        .collect();
    let deleted = deleted_after_repair(&entries, &[]).await.len();
    assert!((10_000..20_000).contains(&deleted), "{deleted}");
}
