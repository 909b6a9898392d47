use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);
const V4: IpFamily = IpFamily::V4;
const V6: IpFamily = IpFamily::V6;

fn wall(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

/// So many seconds after the start.
fn at(seconds: u64) -> Moment {
    Moment { wall: wall(seconds), elapsed: Duration::from_secs(seconds) }
}

enum Event {
    Queued(IpFamily, u64),
    Updated(IpFamily, u64),
    Eligible(bool),
}
use Event::{Eligible, Queued, Updated};

fn after(events: &[Event], seconds: u64) -> Report {
    let mut health = ProxyHealth::new(TIMEOUT);
    for event in events {
        match *event {
            Queued(family, seconds) => health.queued(family, at(seconds)),
            Updated(family, seconds) => health.updated(family, at(seconds)),
            Eligible(eligible) => health.node_eligible(eligible),
        }
    }
    health.report(at(seconds))
}

/// When each family was updated, and whether it is healthy.
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
fn starting_up_is_healthy_however_long_it_takes() {
    assert_eq!(after(&[], 0), report(0, &[]));
    assert_eq!(after(&[Queued(V4, 0)], 1000), report(1000, &[]));
}

#[test]
fn a_family_that_has_nothing_to_write_is_healthy_for_ever() {
    assert_eq!(after(&[Queued(V4, 0), Updated(V4, 1)], 100_000), report(100_000, &[(V4, 1, true)]));
}

#[test]
fn a_change_is_late_when_it_has_waited_for_the_timeout() {
    let events = [Updated(V4, 1), Queued(V4, 10)];
    assert_eq!(after(&events, 69), report(69, &[(V4, 1, true)]));
    assert_eq!(after(&events, 70), report(70, &[(V4, 1, false)]));
}

#[test]
fn the_oldest_of_several_waiting_changes_counts() {
    let events = [Updated(V4, 1), Queued(V4, 10), Queued(V4, 60), Queued(V4, 69)];
    assert_eq!(after(&events, 70), report(70, &[(V4, 1, false)]));
}

#[test]
fn an_update_makes_healthy_again_and_starts_the_waiting_anew() {
    let events = [Updated(V4, 1), Queued(V4, 10), Updated(V4, 80), Queued(V4, 90)];
    assert_eq!(after(&events, 149), report(149, &[(V4, 80, true)]));
    assert_eq!(after(&events, 150), report(150, &[(V4, 80, false)]));
}

#[test]
fn each_family_is_judged_for_itself_and_one_unhealthy_makes_all_unhealthy() {
    let events = [Updated(V6, 2), Updated(V4, 1), Queued(V4, 10), Queued(V6, 10), Updated(V6, 20)];
    let report_now = after(&events, 100);
    assert_eq!(report_now, report(100, &[(V4, 1, false), (V6, 20, true)]));
    assert!(!report_now.healthy);
    assert_eq!(report_now.last_updated(), Some(wall(20)));
}

#[test]
fn the_node_is_eligible_until_it_is_said_not_to_be_which_says_nothing_of_the_rules() {
    let expected = |node_eligible| Report { node_eligible, ..report(5, &[(V4, 1, true)]) };
    assert_eq!(after(&[Updated(V4, 1), Eligible(false)], 5), expected(false));
    assert_eq!(after(&[Updated(V4, 1), Eligible(false), Eligible(true)], 5), expected(true));
}

#[test]
fn a_clock_on_the_wall_that_is_set_makes_nothing_late() {
    let mut health = ProxyHealth::new(TIMEOUT);
    health.updated(V4, at(1));
    health.queued(V4, at(2));
    let later = Moment { wall: wall(100_000), elapsed: Duration::from_secs(3) };
    assert!(health.report(later).healthy);
}
