//! Log lines about objects, limited for each object: one that becomes invalid and valid many times a second must not fill
//! the log.

use std::{
    collections::HashMap,
    mem,
    time::{Duration, Instant},
};

use ferroute_core::TokenBucket;

/// The limits of the objects that had log lines in the last minutes.
#[derive(Debug, Default)]
pub(super) struct ObjectLog(HashMap<String, Recent>);

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) is_warning: bool,
    pub(super) text: String,
}

/// The recent lines about an object.
#[derive(Debug)]
struct Recent {
    tokens: TokenBucket,
    /// When the last one was received.
    last: Instant,
    /// The last line, if it has not been written.
    unwritten: Option<Line>,
    /// The number of lines before it that are never written.
    left_out: u32,
}

impl ObjectLog {
    /// Writes a line about an object, or keeps it until lines about the object are allowed again.
    pub(super) fn write(&mut self, object: String, line: Line, now: Instant) {
        if let Some(line) = self.limited(object, line, now) {
            line.write();
        }
    }

    /// Returns when kept lines are to be written.
    pub(super) fn due(&self) -> Option<Instant> {
        let kept = self.0.values().filter(|recent| recent.unwritten.is_some());
        kept.map(|recent| recent.tokens.available_at(recent.last)).min()
    }

    /// Writes the kept lines that are due.
    pub(super) fn write_due(&mut self, now: Instant) {
        self.due_lines(now).iter().for_each(Line::write);
    }

    /// Returns the line to write now.
    fn limited(&mut self, object: String, line: Line, now: Instant) -> Option<Line> {
        if self.0.len() >= MAX_OBJECTS && !self.0.contains_key(&object) {
            self.0.retain(|_, recent| recent.unwritten.is_some() || now.duration_since(recent.last) < PAUSE * BURST);
            if self.0.len() >= MAX_OBJECTS {
                return Some(line);
            }
        }
        let tokens = || TokenBucket::new(PAUSE, BURST, now);
        let new = || Recent { tokens: tokens(), last: now, unwritten: None, left_out: 0 };
        let recent = self.0.entry(object).or_insert_with(new);
        recent.last = now;
        recent.left_out += u32::from(recent.unwritten.replace(line).is_some());
        recent.take(now)
    }

    fn due_lines(&mut self, now: Instant) -> Vec<Line> {
        self.0.values_mut().filter_map(|recent| recent.take(now)).collect()
    }
}

impl Recent {
    /// Returns the last line if it may be written.
    fn take(&mut self, now: Instant) -> Option<Line> {
        if self.unwritten.is_none() || !self.tokens.try_take(now) {
            return None;
        }
        let mut line = self.unwritten.take()?;
        match mem::take(&mut self.left_out) {
            0 => {}
            count => line.text += &format!(" (left out {count} earlier messages about it)"),
        }
        Some(line)
    }
}

impl Line {
    pub(super) fn write(&self) {
        let Self { is_warning, text } = self;
        if *is_warning { tracing::warn!("{text}") } else { tracing::info!("{text}") }
    }
}

/// The number of lines about an object after a quiet time.
const BURST: u32 = 4;
/// The interval of further lines.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of objects that are limited.
const MAX_OBJECTS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        Line { is_warning: true, text: text.to_owned() }
    }

    #[test]
    fn lines_about_an_object_that_changes_all_the_time_are_left_out_and_counted() {
        let (mut log, start) = (ObjectLog::default(), Instant::now());
        let at = |tenths: u32| start + Duration::from_millis(50) * tenths;
        let mut written = Vec::new();
        // 20 a second for five minutes.
        for number in 0..6000_u32 {
            let text = if number % 2 == 0 { "invalid" } else { "resolved" };
            written.extend(log.limited("a".to_owned(), line(text), at(number)));
        }
        assert_eq!(written.len(), 8, "four at once and one a minute");
        assert_eq!(written[3], line("resolved"));
        assert_eq!(written[4].text, "invalid (left out 1196 earlier messages about it)");
        assert_eq!(log.limited("b".to_owned(), line("invalid"), at(6000)), Some(line("invalid")), "another object");

        let due = log.due().unwrap();
        assert_eq!(due, at(6000));
        assert_eq!(log.due_lines(due - Duration::from_millis(1)), []);
        let last = log.due_lines(due);
        assert_eq!(last.len(), 1, "the last state is written in the end");
        assert!(last[0].text.starts_with("resolved (left out 11"), "{last:?}");
        assert_eq!((log.due(), log.due_lines(at(60_000)).len()), (None, 0));
        assert_eq!(log.limited("a".to_owned(), line("invalid"), at(60_000)), Some(line("invalid")));
    }

    #[test]
    fn number_of_limited_objects_is_bounded() {
        let (mut log, start) = (ObjectLog::default(), Instant::now());
        for number in 0..=MAX_OBJECTS {
            assert_eq!(log.limited(number.to_string(), line("invalid"), start), Some(line("invalid")));
        }
        assert_eq!(log.0.len(), MAX_OBJECTS);
        log.limited("new".to_owned(), line("invalid"), start + PAUSE * BURST);
        assert_eq!(log.0.len(), 1);
    }
}
