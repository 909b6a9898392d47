//! The live view on a terminal. It is redrawn after each interval and when the terminal is resized.

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

use super::{About, Row, counters::Counters, rates, write_rows_into};

/// Shows the table until the user quits.
pub(super) fn run(about: &About, mut counters: Counters, interval: Duration) -> anyhow::Result<()> {
    let (mut before, mut start) = (counters.read()?, Instant::now());
    let _terminal = Terminal::enter()?;
    let mut rows = None;
    loop {
        draw(about, rows.as_deref(), interval)?;
        match wait(start + interval)? {
            Wakeup::Timeout => {
                let (after, now) = (counters.read()?, Instant::now());
                rows = Some(rates(&before, &after, now - start));
                (before, start) = (after, now);
            }
            Wakeup::Resize => {}
            Wakeup::Quit => return Ok(()),
        }
    }
}

/// The event that ended a wait.
enum Wakeup {
    Timeout,
    Resize,
    Quit,
}

fn wait(until: Instant) -> io::Result<Wakeup> {
    loop {
        if !event::poll(until.saturating_duration_since(Instant::now()))? {
            return Ok(Wakeup::Timeout);
        }
        match event::read()? {
            Event::Resize(..) => return Ok(Wakeup::Resize),
            Event::Key(key) if is_quit(key) => return Ok(Wakeup::Quit),
            _ => {}
        }
    }
}

fn is_quit(key: KeyEvent) -> bool {
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release && (control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

fn draw(about: &About, rows: Option<&[Row]>, interval: Duration) -> anyhow::Result<()> {
    let (width, height) = size()?;
    let mut text =
        format!("{about}\nnew connections, updated every {} (q: quit)\n", humantime::format_duration(interval));
    match rows {
        None => text.push_str("waiting for the first interval\n"),
        Some(rows) => write_rows_into(&mut text, rows, width.into(), usize::from(height).saturating_sub(2))?,
    }
    let mut out = stdout().lock();
    queue!(out, MoveTo(0, 0))?;
    // In raw mode, a line feed does not return to the first column. Lines are cleared one by one, because clearing the
    // whole screen flickers.
    for line in text.lines().take(height.into()) {
        let line: String = line.chars().take(width.into()).collect();
        queue!(out, Print(line), Clear(ClearType::UntilNewLine), Print("\r\n"))?;
    }
    queue!(out, Clear(ClearType::FromCursorDown))?;
    Ok(out.flush()?)
}

/// The terminal in raw mode on the alternate screen. It is restored on drop and on panic.
struct Terminal;

impl Terminal {
    fn enter() -> io::Result<Self> {
        // Otherwise the panic message would disappear with the alternate screen.
        let default_hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            default_hook(info);
        }));
        enable_raw_mode()?;
        let terminal = Self;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(terminal)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Errors are ignored, because there is no terminal to report them on.
fn restore() {
    let _ = execute!(stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}
