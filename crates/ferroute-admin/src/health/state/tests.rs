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
    Eligible(bool),
}
use Event::{Eligible, Queued, Updated};

/// The report `seconds` after the start of a proxy with these events; times in events are seconds too.
fn report_after(events: &[Event], seconds: u64) -> Report {
    let start = Instant::now();
    let at = |seconds| Moment { wall: wall(seconds), instant: start + Duration::from_secs(seconds) };
    let mut health = State::new(TIMEOUT);
    for event in events {
        match *event {
            Queued(family, seconds) => health.queued(family, at(seconds)),
            Updated(family, seconds) => health.updated(family, at(seconds)),
            Eligible(eligible) => health.node_eligible = eligible,
        }
    }
    health.report(at(seconds))
}

/// For each family the time of its update and its health.
fn report(now: u64, families: &[(IpFamily, u64, bool)]) -> Report {
    Report {
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
    let expected = |node_eligible| Report { node_eligible, ..report(5, &[(V4, 1, true)]) };
    assert_eq!(report_after(&[Updated(V4, 1), Eligible(false)], 5), expected(false));
    assert_eq!(report_after(&[Updated(V4, 1), Eligible(false), Eligible(true)], 5), expected(true));
}

#[test]
fn wall_clock_steps_make_no_change_late() {
    let start = Instant::now();
    let mut health = State::new(TIMEOUT);
    health.updated(V4, Moment { wall: wall(1), instant: start });
    health.queued(V4, Moment { wall: wall(2), instant: start });
    let later = Moment { wall: wall(100_000), instant: start + Duration::from_secs(3) };
    assert!(health.report(later).healthy);
}
