//! Content of the live view, and effects of keys. Pure: rows, keys and the size of the terminal are its input, lines
//! its output.

use std::{cmp::Ordering, collections::BTreeSet};

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ferroute_core::Escaped;

use super::{EndpointRate, Row, TrafficCounts};

/// The state of the view.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    sort: Sort,
    is_reversed: bool,
    /// Text that the service port or an endpoint of shown rows contains.
    filter: String,
    is_typing: bool,
    /// The first shown line of the help, while it is shown.
    help: Option<usize>,
    pub(super) is_paused: bool,
    /// Totals of connections, packets and bytes instead of rates.
    has_totals: bool,
    /// The service port under the cursor, which the cursor follows when the order changes.
    selected: Option<String>,
    /// Service ports whose endpoints are shown.
    expanded: BTreeSet<String>,
    /// The first shown line of the table.
    offset: usize,
    /// The lines of the table that fitted last.
    page: usize,
}

/// Sort key of rows. Rows with equal keys are sorted by service port, so that the order is stable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    /// New connections per second, the busiest first.
    #[default]
    Rate,
    /// The service port.
    Name,
    /// The number of endpoints, the most first.
    Endpoints,
    /// The share of the busiest endpoint, the highest first.
    Share,
    /// Bytes per second, or in total, the most first.
    Bytes,
}

/// Reaction to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    Nothing,
    Draw,
    /// Redraw the screen, because another program has written to the terminal.
    Clear,
    Quit,
}

/// A part of a line in one style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) style: Style,
    pub(super) text: String,
}

/// Style of a part of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// The titles of columns.
    Title,
    /// The row under the cursor.
    Selected,
    /// A bar.
    Bar,
    /// Less important text.
    Dim,
    /// A notice for the user.
    Notice,
}

/// A line of the table.
struct TableLine<'a> {
    row: &'a Row,
    part: Part<'a>,
}

/// The part of a service port that a line shows.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// All of it.
    All,
    Endpoint(&'a EndpointRate),
    /// Its former endpoints.
    Ended(TrafficCounts),
}

impl Sort {
    const ALL: [Self; 5] = [Self::Rate, Self::Name, Self::Endpoints, Self::Share, Self::Bytes];

    fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Name => "name",
            Self::Endpoints => "endpoints",
            Self::Share => "share",
            Self::Bytes => "bytes",
        }
    }

    fn compare(self, one: &Row, other: &Row, has_totals: bool) -> Ordering {
        let bytes = |row: &Row| {
            let counts = row.traffic().unwrap_or_default();
            if has_totals { counts.bytes as f64 } else { counts.bytes_per_second }
        };
        let share = |row: &Row| row.endpoints.iter().map(|rate| rate.share).fold(0.0, f64::max);
        match self {
            Self::Rate => other.per_second.total_cmp(&one.per_second),
            Self::Name => Ordering::Equal,
            Self::Endpoints => other.endpoints.len().cmp(&one.endpoints.len()),
            Self::Share => share(other).total_cmp(&share(one)),
            Self::Bytes => bytes(other).total_cmp(&bytes(one)),
        }
    }
}

impl View {
    /// Handles a key.
    pub(super) fn on_key(&mut self, key: KeyEvent, rows: &[Row]) -> Reaction {
        if key.kind == KeyEventKind::Release {
            return Reaction::Nothing;
        }
        let code = match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            (KeyCode::Char('c'), true) => return Reaction::Quit,
            (KeyCode::Char('l'), true) => return Reaction::Clear,
            // Some terminals send it for Backspace.
            (KeyCode::Char('h'), true) => KeyCode::Backspace,
            // Other keys with these modifiers are not those without them: Ctrl-Q does not quit.
            (KeyCode::Char(_), true) => return Reaction::Nothing,
            (KeyCode::Char(_), false) if key.modifiers.intersects(OTHER_MODIFIERS) => return Reaction::Nothing,
            (code, _) => code,
        };
        if self.is_typing {
            return self.on_typed(code);
        }
        if let Some(first) = self.help {
            return self.on_key_in_help(code, first);
        }
        match code {
            KeyCode::Char('q') | KeyCode::F(10) => return Reaction::Quit,
            // It does not quit: it may be the start of a key's sequence that arrives in parts.
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = Some(0),
            KeyCode::Char('/' | '\\') | KeyCode::F(3 | 4) => self.is_typing = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('r' | 'I') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('s' | '>') | KeyCode::F(6) => {
                let next = Sort::ALL.iter().position(|sort| *sort == self.sort).map_or(0, |index| index + 1);
                self.sort_by(Sort::ALL[next % Sort::ALL.len()]);
            }
            KeyCode::Char('N') => self.sort_by(Sort::Name),
            KeyCode::Char('R') => self.sort_by(Sort::Rate),
            KeyCode::Char('E') => self.sort_by(Sort::Endpoints),
            KeyCode::Char('S') => self.sort_by(Sort::Share),
            KeyCode::Char('B') => self.sort_by(Sort::Bytes),
            KeyCode::Char('t') => self.has_totals = !self.has_totals,
            KeyCode::Char('a') => self.expand_all(rows),
            KeyCode::Enter => self.expand_selected(rows),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1, rows),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1, rows),
            KeyCode::PageUp => self.move_by(-self.page_rows(), rows),
            KeyCode::PageDown => self.move_by(self.page_rows(), rows),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(isize::MIN, rows),
            KeyCode::End | KeyCode::Char('G') => self.move_by(isize::MAX, rows),
            _ => return Reaction::Nothing,
        }
        Reaction::Draw
    }

    /// Scrolls the help, or leaves it. [`lines`](Self::lines) limits the position.
    fn on_key_in_help(&mut self, code: KeyCode, first: usize) -> Reaction {
        let page = self.page.saturating_sub(1).max(1);
        self.help = match code {
            KeyCode::Char('q') | KeyCode::F(10) => return Reaction::Quit,
            KeyCode::Up | KeyCode::Char('k') => Some(first.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => Some(first + 1),
            KeyCode::PageUp => Some(first.saturating_sub(page)),
            KeyCode::PageDown => Some(first + page),
            KeyCode::Home | KeyCode::Char('g') => Some(0),
            KeyCode::End | KeyCode::Char('G') => Some(usize::MAX),
            _ => None,
        };
        Reaction::Draw
    }

    fn on_typed(&mut self, code: KeyCode) -> Reaction {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => return Reaction::Nothing,
        }
        Reaction::Draw
    }

    fn sort_by(&mut self, sort: Sort) {
        (self.sort, self.is_reversed) = (sort, false);
    }

    fn page_rows(&self) -> isize {
        isize::try_from(self.page.saturating_sub(1).max(1)).unwrap_or(isize::MAX)
    }

    fn move_by(&mut self, distance: isize, rows: &[Row]) {
        let shown = self.shown(rows);
        let Some(last) = shown.len().checked_sub(1) else { return };
        let next = self.cursor(&shown).saturating_add_signed(distance).min(last);
        self.selected = Some(shown[next].service_port.clone());
    }

    fn expand_selected(&mut self, rows: &[Row]) {
        let shown = self.shown(rows);
        let Some(row) = shown.get(self.cursor(&shown)) else { return };
        let name = row.service_port.clone();
        if !self.expanded.remove(&name) {
            self.expanded.insert(name);
        }
    }

    fn expand_all(&mut self, rows: &[Row]) {
        if self.expanded.is_empty() {
            self.expanded = rows.iter().map(|row| row.service_port.clone()).collect();
        } else {
            self.expanded.clear();
        }
    }

    /// Returns the rows that the filter selects, in the order of the view.
    fn shown<'a>(&self, rows: &'a [Row]) -> Vec<&'a Row> {
        let matches = |row: &&Row| {
            row.service_port.contains(&self.filter)
                || row.endpoints.iter().any(|rate| rate.endpoint.to_string().contains(&self.filter))
        };
        let mut shown: Vec<&Row> = rows.iter().filter(matches).collect();
        shown.sort_by(|one, other| {
            let by_key =
                self.sort.compare(one, other, self.has_totals).then_with(|| one.service_port.cmp(&other.service_port));
            if self.is_reversed { by_key.reverse() } else { by_key }
        });
        shown
    }

    /// Returns the position of the selected row; the first one if the selected row no longer exists.
    fn cursor(&self, shown: &[&Row]) -> usize {
        shown.iter().position(|row| Some(&row.service_port) == self.selected.as_ref()).unwrap_or(0)
    }

    /// Returns the lines of the screen. `title` is the subject of the rows; `rows` is `None` before the first interval.
    pub(super) fn lines(
        &mut self,
        title: &str,
        rows: Option<&[Row]>,
        interval: &str,
        width: usize,
        height: usize,
    ) -> Vec<Vec<Span>> {
        if let Some(first) = self.help {
            return self.help_lines(first, width, height);
        }
        let all = rows.unwrap_or_default();
        let shown = self.shown(all);
        let mut lines = vec![vec![span(Style::Plain, cut(title, width))], self.totals(all, &shown, interval, width)];
        let columns = match (self.has_totals, all.iter().any(|row| row.traffic().is_some())) {
            (true, _) => Columns::Totals,
            (false, true) if width < WIDE => Columns::RatesAndBytes,
            (false, true) => Columns::BarsAndBytes,
            (false, false) => Columns::Bars,
        };
        lines.push(vec![span(Style::Title, format!("{:<width$}", cut(&columns.titles(width), width)))]);
        let space = height.saturating_sub(lines.len() + 1);
        let table: Vec<TableLine<'_>> = shown
            .iter()
            .flat_map(|row| {
                let is_expanded = self.expanded.contains(&row.service_port);
                let parts = row.endpoints.iter().map(Part::Endpoint).chain(row.ended.map(Part::Ended));
                let parts = [Part::All].into_iter().chain(parts.filter(move |_| is_expanded));
                parts.map(|part| TableLine { row, part })
            })
            .collect();
        let cursor = shown.get(self.cursor(&shown)).map(|row| row.service_port.as_str());
        self.scroll(&table, cursor, space);
        let highest = all.iter().map(|row| row.per_second).fold(0.0, f64::max);
        let visible = table.iter().skip(self.offset).take(space);
        lines.extend(visible.map(|line| columns.line(line, highest, cursor, width)));
        if table.is_empty() {
            let text = match rows {
                None => "waiting for the first interval",
                Some([]) => "no service ports",
                Some(_) => "no service port matches the filter",
            };
            lines.push(vec![span(Style::Dim, cut(text, width))]);
        }
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Vec::new());
        lines.push(self.footer(table.len(), space, width));
        lines.truncate(height);
        lines
    }

    /// Returns the lines of the help from the first one, or as many of the last ones as fit.
    fn help_lines(&mut self, first: usize, width: usize, height: usize) -> Vec<Vec<Span>> {
        let all: Vec<String> = HELP.iter().flat_map(|(keys, text)| help_entry(keys, text, width)).collect();
        let space = height.saturating_sub(1);
        let first = first.min(all.len().saturating_sub(space));
        (self.help, self.page) = (Some(first), space);
        let shown = all.iter().skip(first).take(space).map(|line| vec![span(Style::Plain, cut(line, width))]);
        let mut lines: Vec<Vec<Span>> = shown.collect();
        lines.resize(space, Vec::new());
        let keys = if all.len() > space {
            format!("lines {}-{} of {}  arrows scroll, others: back", first + 1, first + space, all.len())
        } else {
            "any key: back".to_owned()
        };
        lines.push(vec![span(Style::Dim, cut(&keys, width))]);
        lines.truncate(height);
        lines
    }

    /// Scrolls so that the selected row, and its endpoints as far as possible, are visible.
    fn scroll(&mut self, table: &[TableLine<'_>], cursor: Option<&str>, space: usize) {
        self.page = space;
        let is_selected = |line: &TableLine<'_>| Some(line.row.service_port.as_str()) == cursor;
        let first = table.iter().position(is_selected).unwrap_or(0);
        let count = table.iter().skip(first).take_while(|line| is_selected(line)).count();
        let last = (first + count).min(first + space);
        self.offset = self.offset.min(table.len().saturating_sub(space)).min(first).max(last.saturating_sub(space));
    }

    fn totals(&self, all: &[Row], shown: &[&Row], interval: &str, width: usize) -> Vec<Span> {
        // A sum without elements would be -0.0.
        let total = all.iter().map(|row| row.per_second).fold(0.0, |sum, rate| sum + rate);
        let active = all.iter().filter(|row| row.per_second > 0.0).count();
        let order = if self.is_reversed { ", reversed" } else { "" };
        let mut text = format!(
            "{total:.1} new/s, {active} of {} active, by {}{order}, every {interval}",
            all.len(),
            self.sort.name()
        );
        let mut notice = String::new();
        if self.is_paused {
            notice += "  PAUSED";
        }
        if self.is_typing || !self.filter.is_empty() {
            let typing = if self.is_typing { "_" } else { "" };
            notice += &format!("  filter: {}{typing} ({} match)", Escaped(&self.filter), shown.len());
        }
        if self.has_totals && all.iter().all(|row| row.traffic().is_none()) {
            notice += "  requires --count-traffic";
        }
        text = cut(&text, width);
        let left = width - text.chars().count();
        vec![span(Style::Plain, text), span(Style::Notice, cut(&notice, left))]
    }

    fn footer(&self, count: usize, space: usize, width: usize) -> Vec<Span> {
        let (first, last) = (self.offset + 1, (self.offset + space).min(count));
        let position = if count > space { format!("lines {first}-{last} of {count}  ") } else { String::new() };
        let keys = "q quit  ? help  s sort  / filter  Enter endpoints  t totals  p pause  arrows";
        vec![span(Style::Dim, cut(&format!("{position}{keys}"), width))]
    }
}

/// Columns of the table besides service ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Columns {
    /// New connections, and a bar for them.
    Bars,
    /// The same, and bytes per second.
    BarsAndBytes,
    /// New connections, and bytes per second.
    RatesAndBytes,
    /// All connections, packets and bytes since the proxy started.
    Totals,
}

impl Columns {
    fn titles(self, width: usize) -> String {
        let (_, name_width) = self.widths(width);
        let figures = match self {
            Self::Bars => format!("{:>NUMBER$}  {:BAR$}", "NEW/S", ""),
            Self::BarsAndBytes => format!("{:>NUMBER$}  {:BAR$}  {:>NUMBER$}", "NEW/S", "", "BYTES/S"),
            Self::RatesAndBytes => format!("{:>NUMBER$}  {:>NUMBER$}", "NEW/S", "BYTES/S"),
            Self::Totals => format!("{:>NUMBER$}  {:>NUMBER$}  {:>NUMBER$}", "CONNS", "PACKETS", "BYTES"),
        };
        format!("{figures}  {:<name_width$}  ENDPOINTS", "SERVICE PORT")
    }

    /// Returns the width of the columns after the figures, and the width of service ports.
    fn widths(self, width: usize) -> (usize, usize) {
        let figures = match self {
            Self::Bars => NUMBER + BAR + 4,
            Self::BarsAndBytes => 2 * NUMBER + BAR + 6,
            Self::RatesAndBytes => 2 * NUMBER + 4,
            Self::Totals => 3 * NUMBER + 6,
        };
        let rest = width.saturating_sub(figures);
        let endpoints = if self == Self::Totals { COUNT } else { ENDPOINTS };
        (rest, rest.saturating_sub(endpoints).max(rest / 2))
    }

    fn line(self, line: &TableLine<'_>, highest: f64, cursor: Option<&str>, width: usize) -> Vec<Span> {
        let TableLine { row, part } = line;
        let is_all = matches!(part, Part::All);
        let is_selected = Some(row.service_port.as_str()) == cursor && is_all;
        let (per_second, share, traffic) = match part {
            Part::All => (row.per_second, if highest > 0.0 { row.per_second / highest } else { 0.0 }, row.traffic()),
            Part::Endpoint(rate) => (rate.per_second, rate.share, rate.traffic),
            Part::Ended(traffic) => (0.0, 0.0, Some(*traffic)),
        };
        let style = match (is_selected, per_second > 0.0) {
            (true, _) => Style::Selected,
            (false, true) if is_all => Style::Plain,
            (false, _) => Style::Dim,
        };
        let TrafficCounts { connections, packets, bytes, bytes_per_second, .. } = traffic.unwrap_or_default();
        let (rest, name_width) = self.widths(width);
        let text = match part {
            Part::Endpoint(rate) => cut(&format!("    {rate}"), rest),
            Part::Ended(_) => cut("    former endpoints", rest),
            Part::All => {
                let name = cut(&Escaped(&row.service_port).to_string(), name_width);
                cut(&format!("{name:<name_width$}  {}", endpoints(row, self != Self::Totals)), rest)
            }
        };
        let text = span(style, format!("  {text}"));
        let rate = span(style, format!("{per_second:>NUMBER$.1}"));
        let bar = [span(style, "  ".to_owned()), span(Style::Bar, bar(share))];
        let number = |value: f64| format!("{:>NUMBER$}", short(value));
        let byte_rate = span(style, format!("  {}", number(bytes_per_second)));
        let spans = match self {
            Self::Bars => [rate].into_iter().chain(bar).chain([text]).collect(),
            Self::BarsAndBytes => [rate].into_iter().chain(bar).chain([byte_rate, text]).collect(),
            Self::RatesAndBytes => vec![rate, byte_rate, text],
            Self::Totals => {
                let totals = [connections, packets, bytes].map(|total| number(total as f64)).join("  ");
                vec![span(style, totals), text]
            }
        };
        clip(spans, width)
    }
}

/// Returns the beginning of a line that may be longer than a narrow screen.
fn clip(spans: Vec<Span>, width: usize) -> Vec<Span> {
    let mut left = width;
    let clipped = spans.into_iter().map(|Span { style, text }| {
        let text: String = text.chars().take(left).collect();
        left -= text.chars().count();
        Span { style, text }
    });
    clipped.collect()
}

/// Returns a number in four digits and a unit at most.
fn short(number: f64) -> String {
    let (mut value, mut units) = (number, ["", "k", "M", "G", "T", "P"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    // Values that round to 1000 use the next unit.
    while value >= 999.5
        && let Some(next) = units.next()
    {
        (value, unit) = (value / 1000.0, next);
    }
    match unit {
        "" => format!("{value:.0}"),
        _ if value < 9.95 => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

/// Returns the number of endpoints, and the busiest one.
fn endpoints(row: &Row, has_busiest: bool) -> String {
    let busiest = row.endpoints.first().filter(|rate| has_busiest && rate.share > 0.0);
    let busiest = busiest.map(|rate| format!("  {} {:.0} %", rate.endpoint, rate.share * 100.0)).unwrap_or_default();
    let ejected = match row.endpoints.iter().filter(|rate| rate.ejected).count() {
        0 => String::new(),
        count => format!("  {count} ejected"),
    };
    format!("{:>3}{ejected}{busiest}", row.endpoints.len())
}

/// Returns a bar, as htop draws it.
fn bar(share: f64) -> String {
    // The cast is of a number from 0 to the width.
    let filled = (share.clamp(0.0, 1.0) * (BAR - 2) as f64).round() as usize;
    format!("[{}{}]", "|".repeat(filled), " ".repeat(BAR - 2 - filled))
}

/// Returns the lines of keys with their effect, or of text without keys, wrapped at words.
fn help_entry(keys: &str, text: &str, width: usize) -> Vec<String> {
    let is_wide = width >= WIDE_HELP;
    let (mut line, indent) = match (keys.is_empty(), is_wide) {
        (true, _) => (String::new(), String::new()),
        (false, true) => (format!("  {keys:<HELP_KEYS$}"), " ".repeat(HELP_KEYS + 2)),
        (false, false) => (format!("{keys}:"), "  ".to_owned()),
    };
    let mut lines = Vec::new();
    for word in text.split(' ') {
        let separator = if line.is_empty() || line.ends_with(' ') { "" } else { " " };
        if line.chars().count() + separator.len() + word.chars().count() > width && !line.trim().is_empty() {
            lines.push(std::mem::replace(&mut line, format!("{indent}{word}")));
        } else {
            line += separator;
            line += word;
        }
    }
    lines.push(line);
    lines
}

/// Returns the text in ASCII, for terminals with another encoding than UTF-8.
pub(super) fn ascii(text: &str) -> String {
    let letter = |letter: char| match letter {
        CUT => '~',
        letter if letter.is_ascii() => letter,
        _ => '?',
    };
    text.chars().map(letter).collect()
}

/// Returns the text, with a mark at the end if it had to be cut.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain((width > 0).then_some(CUT)).collect()
}

fn span(style: Style, text: String) -> Span {
    Span { style, text }
}

/// The width of a number.
const NUMBER: usize = 9;
/// Minimum width of a screen with space for bars beside two numbers.
const WIDE: usize = 100;
/// The width of a bar.
const BAR: usize = 12;
/// Width of the number of endpoints, and the busiest one with its share, including the space before them.
const ENDPOINTS: usize = 36;

/// Width of the number of endpoints, and of ejected ones, including the space before them.
const COUNT: usize = 16;

/// The mark of cut text.
const CUT: char = '…';

/// Modifiers besides Shift and Ctrl.
const OTHER_MODIFIERS: KeyModifiers =
    KeyModifiers::ALT.union(KeyModifiers::SUPER).union(KeyModifiers::HYPER).union(KeyModifiers::META);

/// Minimum width of a screen with effects beside keys.
const WIDE_HELP: usize = 72;
/// The width of keys.
const HELP_KEYS: usize = 18;
/// Keys and their effects.
const HELP: &[(&str, &str)] = &[
    ("", "ferroute top: new connections by service port"),
    ("", ""),
    ("Up Down j k", "select a service port"),
    ("PageUp PageDown", "move by a page"),
    ("Home End g G", "move to the first or last service port"),
    ("Enter", "show or hide its endpoints"),
    ("a", "show or hide all endpoints"),
    ("s > F6", "next sort key: rate, name, endpoints, share, bytes"),
    ("R N E S B", "sort by rate, name, number of endpoints, busiest share, bytes"),
    ("r I", "reverse the order"),
    ("/ F3 F4", "filter by service port or endpoint; Esc clears it"),
    ("t", "totals of connections, packets and bytes, or rates"),
    ("p Space", "pause"),
    ("? h F1", "this help"),
    ("Ctrl-L", "draw the screen again"),
    ("q F10 Ctrl-C", "quit"),
    ("", ""),
    (
        "",
        "The bar of a service port compares it with the busiest one, that of an endpoint with its service port. A mark … \
         shows that text is cut. Bytes and totals are those that the proxy counts with --count-traffic.",
    ),
];

#[cfg(test)]
mod tests;
