//! The live view on a terminal. It is redrawn after each interval and when the terminal is resized.

use std::{
    io::{self, Write, stdin, stdout},
    os::fd::AsFd,
    panic, process, thread,
    time::{Duration, Instant},
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{self, Event},
    execute, queue,
    style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor},
    terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use super::{
    About, Row,
    counters::Counters,
    mark, observe, rates,
    view::{Reaction, Style, View, ascii},
};

/// Shows the table until the user quits.
pub(super) fn run(about: &About, mut counters: Counters, interval: Duration) -> anyhow::Result<()> {
    let (mut before, mut start) = (counters.read()?, Instant::now());
    let _terminal = Terminal::enter()?;
    end_with_terminal()?;
    let (mut rows, mut view) = (None::<Vec<Row>>, View::default());
    let title = format!("{about}{}", counters.note());
    // A convention of many programs, see https://no-color.org.
    let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let look = Look { has_colors, is_utf8: is_utf8(|name| std::env::var(name).ok()) };
    let period = humantime::format_duration(interval).to_string();
    loop {
        draw(&mut view, &title, rows.as_deref(), &period, look)?;
        match wait(start + interval, &mut view, rows.as_deref().unwrap_or_default())? {
            Wakeup::Timeout => {
                let (after, now) = (counters.read()?, Instant::now());
                if !view.is_paused {
                    let mut marked = rates(&before, &after, now - start);
                    mark(&mut marked, &observe(about));
                    rows = Some(marked);
                }
                (before, start) = (after, now);
            }
            Wakeup::Draw => {}
            Wakeup::Quit => return Ok(()),
        }
    }
}

/// Ends the process when the terminal is closed, even if SIGHUP is ignored, as with `nohup`: the library that reads
/// keys would read the end of the input again and again.
fn end_with_terminal() -> io::Result<()> {
    let wait = || {
        let input = stdin();
        // No events are requested, so only the end of the terminal is reported.
        let mut files = [PollFd::new(input.as_fd(), PollFlags::empty())];
        loop {
            match poll(&mut files, PollTimeout::NONE) {
                Ok(_) => process::exit(1),
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    };
    thread::Builder::new().name("terminal".to_owned()).spawn(wait)?;
    Ok(())
}

/// Abilities of the terminal.
#[derive(Clone, Copy, Debug)]
struct Look {
    has_colors: bool,
    is_utf8: bool,
}

/// Reports whether the locale in these environment variables has the encoding UTF-8. The first one that is set decides.
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
    locale.is_some_and(|locale| locale.to_ascii_lowercase().replace('-', "").ends_with("utf8"))
}

/// The event that ended a wait.
enum Wakeup {
    Timeout,
    Draw,
    Quit,
}

fn wait(until: Instant, view: &mut View, rows: &[Row]) -> io::Result<Wakeup> {
    loop {
        if !event::poll(until.saturating_duration_since(Instant::now()))? {
            return Ok(Wakeup::Timeout);
        }
        match event::read()? {
            Event::Resize(..) => return Ok(Wakeup::Draw),
            Event::Key(key) => match view.on_key(key, rows) {
                Reaction::Nothing => {}
                Reaction::Draw => return Ok(Wakeup::Draw),
                Reaction::Clear => {
                    execute!(stdout(), Clear(ClearType::All))?;
                    return Ok(Wakeup::Draw);
                }
                Reaction::Quit => return Ok(Wakeup::Quit),
            },
            _ => {}
        }
    }
}

fn draw(view: &mut View, title: &str, rows: Option<&[Row]>, interval: &str, look: Look) -> anyhow::Result<()> {
    let (width, height) = size()?;
    let lines = view.lines(title, rows, interval, width.into(), height.into());
    let mut out = stdout().lock();
    // Lines are cleared one by one, because clearing the whole screen flickers.
    for (number, line) in (0..height).zip(lines) {
        queue!(out, MoveTo(0, number))?;
        for span in line {
            let (attribute, color) = appearance(span.style);
            let text = if look.is_utf8 { span.text } else { ascii(&span.text) };
            attribute.map(|attribute| queue!(out, SetAttribute(attribute))).transpose()?;
            color.filter(|_| look.has_colors).map(|color| queue!(out, SetForegroundColor(color))).transpose()?;
            queue!(out, Print(text), SetAttribute(Attribute::Reset), ResetColor)?;
        }
        queue!(out, Clear(ClearType::UntilNewLine))?;
    }
    Ok(out.flush()?)
}

fn appearance(style: Style) -> (Option<Attribute>, Option<Color>) {
    match style {
        Style::Plain => (None, None),
        Style::Title => (Some(Attribute::Reverse), None),
        Style::Selected => (Some(Attribute::Bold), Some(Color::Cyan)),
        Style::Bar => (None, Some(Color::Green)),
        Style::Dim => (Some(Attribute::Dim), None),
        Style::Notice => (Some(Attribute::Bold), Some(Color::Yellow)),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_locale_that_is_set_decides_on_the_encoding() {
        let is_utf8 = |set: &[(&str, &str)]| {
            is_utf8(|name| set.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(is_utf8(&[("LANG", "C.UTF-8")]) && is_utf8(&[("LANG", "de_DE.utf8"), ("LC_ALL", "")]));
        for other in [&[][..], &[("LANG", "C")], &[("LANG", "C.UTF-8"), ("LC_ALL", "POSIX")]] {
            assert!(!is_utf8(other), "{other:?}");
        }
    }
}
