use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);
const V4: IpFamily = IpFamily::V4;
const V6: IpFamily = IpFamily::V6;

fn wall(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

enum Event {
    Queued(IpFamily, u64),
    Updated(IpFamily, u64),
    Failed(IpFamily),
    Sent(u64),
    Received,
    Eligible(bool),
}
use Event::{Eligible, Failed, Queued, Received, Sent, Updated};

/// Returns the report `seconds` after the start of a proxy with these events; times in events are also in seconds. The
/// sync thread makes progress.
fn report_after(events: &[Event], seconds: u64) -> HealthReport {
    report_after_silence(events, seconds, 0)
}

/// Like `report_after`, with a sync thread that has made no progress for some seconds.
fn report_after_silence(events: &[Event], seconds: u64, silence: u64) -> HealthReport {
    let start = Instant::now();
    let at = |seconds| Moment { wall: wall(seconds), instant: start + Duration::from_secs(seconds) };
    let mut health = SyncProgress::new(TIMEOUT);
    for event in events {
        match *event {
            Queued(family, seconds) => health.queued(family, at(seconds)),
            Updated(family, seconds) => health.updated(family, at(seconds)),
            Failed(family) => health.families[family.index()].has_failed = true,
            Sent(seconds) => health.sent.push_back(at(seconds).instant),
            Received => _ = health.sent.pop_front(),
            Eligible(eligible) => health.node_eligible = eligible,
        }
    }
    health.report(at(seconds), Duration::from_secs(silence))
}

/// For each family the time of its update and its health.
fn report(now: u64, families: &[(IpFamily, u64, bool)]) -> HealthReport {
    HealthReport {
        now: wall(now),
        healthy: families.iter().all(|(_, _, healthy)| *healthy),
        node_eligible: true,
        families: families
            .iter()
            .map(|(family, seconds, healthy)| FamilyReport {
                family: *family,
                last_updated: wall(*seconds),
                healthy: *healthy,
            })
            .collect(),
    }
}

#[test]
fn starting_proxy_is_healthy() {
    assert_eq!(report_after(&[], 0), report(0, &[]));
    assert_eq!(report_after(&[Queued(V4, 0)], 1000), report(1000, &[]));
}

#[test]
fn first_sync_that_hangs_or_fails_is_late() {
    let first = [Queued(V4, 0)];
    assert!(report_after_silence(&first, 1000, 59).healthy, "it advances");
    assert!(!report_after_silence(&first, 1000, 60).healthy, "it hangs");
    let failed = [Queued(V4, 0), Failed(V4)];
    assert!(report_after(&failed, 59).healthy);
    assert!(!report_after(&failed, 60).healthy);
    assert!(report_after(&[Queued(V4, 0), Failed(V4), Updated(V4, 60), Queued(V4, 61)], 62).healthy);
    // A family without Services is never synced; only the other family counts.
    assert!(!report_after(&[Updated(V6, 1), Queued(V4, 0), Failed(V4)], 60).healthy);
}

#[test]
fn changes_that_the_sync_thread_does_not_receive_are_late() {
    let synced = [Queued(V4, 0), Updated(V4, 1), Sent(10)];
    assert!(report_after(&synced, 69).healthy);
    let late = report_after(&synced, 70);
    assert!(!late.healthy);
    assert_eq!(late.families, report(70, &[(V4, 1, true)]).families, "which family they concern is unknown");
    assert!(report_after(&[Sent(10), Received], 1000).healthy);
    assert!(!report_after(&[Sent(10), Sent(20), Received], 80).healthy);
    // During a long first sync, no change is received.
    let first = [Sent(0), Queued(V4, 0), Received, Sent(1)];
    assert!(report_after(&first, 1000).healthy);
    assert!(!report_after_silence(&first, 1000, 60).healthy);
    // The thread is not even started.
    assert!(!report_after_silence(&[Sent(0)], 60, 60).healthy);
}

#[test]
fn idle_family_stays_healthy() {
    assert_eq!(report_after(&[Queued(V4, 0), Updated(V4, 1)], 100_000), report(100_000, &[(V4, 1, true)]));
}

#[test]
fn change_is_late_after_timeout() {
    let events = [Updated(V4, 1), Queued(V4, 10)];
    assert_eq!(report_after(&events, 69), report(69, &[(V4, 1, true)]));
    assert_eq!(report_after(&events, 70), report(70, &[(V4, 1, false)]));
}

#[test]
fn oldest_waiting_change_counts() {
    let events = [Updated(V4, 1), Queued(V4, 10), Queued(V4, 60), Queued(V4, 69)];
    assert_eq!(report_after(&events, 70), report(70, &[(V4, 1, false)]));
}

#[test]
fn update_restores_health_and_restarts_the_timeout() {
    let events = [Updated(V4, 1), Queued(V4, 10), Updated(V4, 80), Queued(V4, 90)];
    assert_eq!(report_after(&events, 149), report(149, &[(V4, 80, true)]));
    assert_eq!(report_after(&events, 150), report(150, &[(V4, 80, false)]));
}

#[test]
fn one_unhealthy_family_makes_the_proxy_unhealthy() {
    let events = [Updated(V6, 2), Updated(V4, 1), Queued(V4, 10), Queued(V6, 10), Updated(V6, 20)];
    let now = report_after(&events, 100);
    assert_eq!(now, report(100, &[(V4, 1, false), (V6, 20, true)]));
    assert!(!now.healthy);
    assert_eq!(now.last_updated(), Some(wall(20)));
}

#[test]
fn node_eligibility_does_not_affect_health() {
    let expected = |node_eligible| HealthReport { node_eligible, ..report(5, &[(V4, 1, true)]) };
    assert_eq!(report_after(&[Updated(V4, 1), Eligible(false)], 5), expected(false));
    assert_eq!(report_after(&[Updated(V4, 1), Eligible(false), Eligible(true)], 5), expected(true));
}

#[test]
fn wall_clock_steps_make_no_change_late() {
    let start = Instant::now();
    let mut health = SyncProgress::new(TIMEOUT);
    health.updated(V4, Moment { wall: wall(1), instant: start });
    health.queued(V4, Moment { wall: wall(2), instant: start });
    let later = Moment { wall: wall(100_000), instant: start + Duration::from_secs(3) };
    assert!(health.report(later, Duration::ZERO).healthy);
}

#[test]
fn proxy_starts_until_every_family_with_changes_is_synced() {
    let health = Health::new(TIMEOUT);
    assert!(health.summary().is_starting);
    health.queued(V4);
    health.queued(V6);
    health.updated(V6);
    assert!(health.summary().is_starting);
    health.updated(V4);
    health.queued(V4);
    assert!(!health.summary().is_starting);
}
