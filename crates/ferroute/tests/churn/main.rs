//! Churn: a small cluster in network namespaces in which all parts change and fail while clients account for every
//! connection. See `docs/architecture.md`.
//!
//! The environment selects other runs than the short ones of `make test`:
//!
//! - `SEED`: repeats the run of a seed,
//! - `MINUTES`: the time of a run,
//! - `FERROUTE`: the program under test, by default that of this build.

#![expect(clippy::unwrap_used, reason = "helpers panic as tests do")]
#![expect(clippy::print_stderr, reason = "a run prints its seed and its result")]

mod clients;
mod clock;
mod driver;
mod faults;
mod final_state;
mod history;
mod kernel;
mod limits;
mod listing;
mod network;
mod objects;
mod oracle;
mod process;
mod results;
mod schedule;
mod servers;
mod source;
#[path = "../../../ferroute-trace/tests/common/specification.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of ferroute-trace, which use other parts")]
mod specification;
#[allow(unreachable_pub, reason = "the specification requires this interface")]
mod world;

use std::{
    panic::AssertUnwindSafe,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use self::{driver::Driver, schedule::Setting};

#[test]
fn changes_and_faults_with_manifests_as_the_source() {
    run(false);
}

#[test]
fn changes_and_faults_with_an_api_server_as_the_source() {
    run(true);
}

/// Executes the run that the environment selects, or a short one with a new seed.
fn run(api: bool) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<f64>().expect(name));
    let seed = std::env::var("SEED").or_else(|_| std::env::var("PROPTEST_RNG_SEED")).ok();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64 % 1_000_000;
    let seed = seed.map_or_else(now, |seed| seed.parse().expect("SEED is a number"));
    let time = number("MINUTES").map_or(SHORT, |minutes| Duration::from_secs_f64(60.0 * minutes));
    let rounds = (time.as_secs() / SECONDS_PER_ROUND) as usize;
    let setting = Setting { modes: process::modes(), api, rounds, bulk: BULK };
    let source = if api { "api" } else { "manifests" };
    eprintln!("churn, source {source}: seed {seed}, {} s, {setting:?}", time.as_secs());
    // On a separate thread, because it has separate file systems.
    let end = std::thread::spawn(move || execute(seed, &setting, time)).join();
    match end {
        Ok(Ok(summary)) => eprintln!("churn, source {source}: seed {seed}: {summary}"),
        Ok(Err(failure)) => panic!("churn, source {source}: seed {seed} failed (repeat with SEED={seed})\n{failure}"),
        Err(panic) => {
            eprintln!("churn, source {source}: seed {seed} panicked (repeat with SEED={seed})");
            std::panic::resume_unwind(panic);
        }
    }
}

fn execute(seed: u64, setting: &Setting, time: Duration) -> Result<String, String> {
    let mut driver = Driver::start(seed, setting)?;
    let steps = |driver: &mut Driver| {
        let rounds = driver.run(time)?;
        let end = driver.check_final_state()?;
        Ok::<_, String>(format!("{rounds} rounds, {end}"))
    };
    // The report of a panic needs the driver.
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| steps(&mut driver)));
    match result {
        Ok(Ok(summary)) => Ok(summary),
        Ok(Err(failure)) => Err(format!("{failure}\n{}", driver.report(seed))),
        Err(panic) => {
            eprintln!("{}", driver.report(seed));
            std::panic::resume_unwind(panic);
        }
    }
}

/// The time of a run of `make test`, without its start and end.
const SHORT: Duration = Duration::from_secs(24);
const SECONDS_PER_ROUND: u64 = 4;
/// Services in a large table.
const BULK: usize = 2_000;
