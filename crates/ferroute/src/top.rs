//! `ferroute top`: which Services are busy now, from the kernel's counters.

mod counters;
mod screen;

use std::{
    io::{IsTerminal, Write},
    thread,
    time::Instant,
};

use ferroute_explain::top::{rates, write_rows_into};

use self::counters::Counters;
use crate::cli::TopArgs;

/// Shows how busy Services are until the user has seen enough, or prints it once.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let counters = Counters::open()?;
    if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return once(counters, args);
    }
    screen::run(counters, args.interval)
}

fn once(mut counters: Counters, args: &TopArgs) -> anyhow::Result<()> {
    let (before, begun) = (counters.read()?, Instant::now());
    thread::sleep(args.interval);
    let rows = rates(&before, &counters.read()?, begun.elapsed());
    let mut text = String::new();
    write_rows_into(&mut text, &rows, WIDTH_OF_FILES, usize::MAX)?;
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

/// Characters of a line where no terminal ends it.
const WIDTH_OF_FILES: usize = 240;
