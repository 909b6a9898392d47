//! The live view on a terminal, by crossterm: drawn anew after each look and whenever the terminal's size changes.

use std::{
    io::{self, Write, stdout},
    panic,
    time::{Duration, Instant},
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    execute, queue,
    style::Print,
    terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size},
};
use super::{Row, rates, write_rows_into};

use super::counters::Counters;

/// Shows the table until the user leaves.
pub(super) fn run(mut counters: Counters, interval: Duration) -> anyhow::Result<()> {
    let (mut before, mut begun) = (counters.read()?, Instant::now());
    let _terminal = Terminal::take()?;
    let mut rows = None;
    loop {
        draw(rows.as_deref(), interval)?;
        match wait(begun + interval)? {
            Happened::Time => {
                let (after, now) = (counters.read()?, Instant::now());
                rows = Some(rates(&before, &after, now - begun));
                (before, begun) = (after, now);
            }
            Happened::Resize => {}
            Happened::Leave => return Ok(()),
        }
    }
}

/// What ended a wait.
enum Happened {
    Time,
    Resize,
    Leave,
}

fn wait(until: Instant) -> io::Result<Happened> {
    loop {
        if !event::poll(until.saturating_duration_since(Instant::now()))? {
            return Ok(Happened::Time);
        }
        match event::read()? {
            Event::Resize(..) => return Ok(Happened::Resize),
            Event::Key(key) if leaves(key) => return Ok(Happened::Leave),
            _ => {}
        }
    }
}

fn leaves(key: KeyEvent) -> bool {
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release && (control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

fn draw(rows: Option<&[Row]>, interval: Duration) -> anyhow::Result<()> {
    let (width, height) = size()?;
    let mut text = format!("new connections, every {} (q: quit)\n", humantime::format_duration(interval));
    match rows {
        None => text.push_str("counting\n"),
        Some(rows) => write_rows_into(&mut text, rows, width.into(), usize::from(height).saturating_sub(1))?,
    }
    let mut out = stdout().lock();
    queue!(out, MoveTo(0, 0))?;
    // In raw mode a line feed does not go back to the first column. Each line is cleared behind its text, for a cleared
    // screen flickers.
    for line in text.lines().take(height.into()) {
        let line: String = line.chars().take(width.into()).collect();
        queue!(out, Print(line), Clear(ClearType::UntilNewLine), Print("\r\n"))?;
    }
    queue!(out, Clear(ClearType::FromCursorDown))?;
    Ok(out.flush()?)
}

/// The terminal while it is ours. It is given back on every way out.
struct Terminal;

impl Terminal {
    fn take() -> io::Result<Self> {
        // What a panic says would else go with the other screen.
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            tell(info);
        }));
        enable_raw_mode()?;
        let terminal = Self;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(terminal)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// There is nobody to tell of a terminal that is gone.
fn give_back() {
    let _ = execute!(stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}
