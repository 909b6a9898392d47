//! What the live view shows, and what keys do. Pure: rows, keys and the size of the terminal are its input, lines its output.

use std::{cmp::Ordering, collections::BTreeSet};

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ferroute_core::Escaped;

use super::Row;

/// The state of the view.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    sort: Sort,
    is_reversed: bool,
    /// Rows with this text in their service port or an endpoint.
    filter: String,
    is_typing: bool,
    has_help: bool,
    pub(super) is_paused: bool,
    /// The service port under the cursor, which the cursor follows when the order changes.
    selected: Option<String>,
    /// The service ports whose endpoints are shown.
    expanded: BTreeSet<String>,
    /// The first shown line of the table.
    offset: usize,
    /// The lines of the table that fitted last.
    page: usize,
}

/// What rows are sorted by; the service port decides among equal ones, so that the order is stable.
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
}

/// What a key requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    Nothing,
    Draw,
    /// Another program has written to the terminal.
    Clear,
    Quit,
}

/// A part of a line in one style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) style: Style,
    pub(super) text: String,
}

/// How a part of a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// The titles of columns.
    Title,
    /// The row under the cursor.
    Selected,
    /// A bar.
    Bar,
    /// Of less importance.
    Dim,
    /// Something that the user should know.
    Notice,
}

/// A line of the table: a service port, or one of its endpoints.
struct TableLine<'a> {
    row: &'a Row,
    endpoint: Option<usize>,
}

impl Sort {
    const ALL: [Self; 4] = [Self::Rate, Self::Name, Self::Endpoints, Self::Share];

    fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Name => "name",
            Self::Endpoints => "endpoints",
            Self::Share => "share",
        }
    }

    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let share = |row: &Row| row.endpoints.iter().map(|rate| rate.share).fold(0.0, f64::max);
        match self {
            Self::Rate => other.per_second.total_cmp(&one.per_second),
            Self::Name => Ordering::Equal,
            Self::Endpoints => other.endpoints.len().cmp(&one.endpoints.len()),
            Self::Share => share(other).total_cmp(&share(one)),
        }
    }
}

impl View {
    /// Handles a key.
    pub(super) fn on_key(&mut self, key: KeyEvent, rows: &[Row]) -> Reaction {
        if key.kind == KeyEventKind::Release {
            return Reaction::Nothing;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Reaction::Quit;
        }
        if key.code == KeyCode::Char('l') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Reaction::Clear;
        }
        if self.is_typing {
            return self.on_typed(key.code);
        }
        if self.has_help {
            self.has_help = false;
            return if key.code == KeyCode::Char('q') { Reaction::Quit } else { Reaction::Draw };
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return Reaction::Quit,
            KeyCode::Esc if self.filter.is_empty() => return Reaction::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.has_help = true,
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
            let by_key = self.sort.compare(one, other).then_with(|| one.service_port.cmp(&other.service_port));
            if self.is_reversed { by_key.reverse() } else { by_key }
        });
        shown
    }

    /// Returns the position of the selected row; the first one if it is gone.
    fn cursor(&self, shown: &[&Row]) -> usize {
        shown.iter().position(|row| Some(&row.service_port) == self.selected.as_ref()).unwrap_or(0)
    }

    /// Returns the lines of the screen. `title` is what the rows are about, and `rows` are `None` before the first interval.
    pub(super) fn lines(
        &mut self,
        title: &str,
        rows: Option<&[Row]>,
        interval: &str,
        width: usize,
        height: usize,
    ) -> Vec<Vec<Span>> {
        if self.has_help {
            let help = HELP.iter().map(|line| vec![span(Style::Plain, cut(line, width))]);
            return help.take(height).collect();
        }
        let all = rows.unwrap_or_default();
        let shown = self.shown(all);
        let mut lines = vec![vec![span(Style::Plain, cut(title, width))], self.totals(all, &shown, interval, width)];
        lines.push(vec![span(Style::Title, format!("{:<width$}", cut(&titles(width), width)))]);
        let space = height.saturating_sub(lines.len() + 1);
        let table: Vec<TableLine<'_>> = shown
            .iter()
            .flat_map(|row| {
                let count = if self.expanded.contains(&row.service_port) { row.endpoints.len() } else { 0 };
                let own = TableLine { row, endpoint: None };
                [own].into_iter().chain((0..count).map(|index| TableLine { row, endpoint: Some(index) }))
            })
            .collect();
        let cursor = shown.get(self.cursor(&shown)).map(|row| row.service_port.as_str());
        self.scroll(&table, cursor, space);
        let highest = all.iter().map(|row| row.per_second).fold(0.0, f64::max);
        let visible = table.iter().skip(self.offset).take(space);
        lines.extend(visible.map(|line| table_line(line, highest, cursor, width)));
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
        // A sum of nothing would be -0.0.
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
        text = cut(&text, width);
        let left = width - text.chars().count();
        vec![span(Style::Plain, text), span(Style::Notice, cut(&notice, left))]
    }

    fn footer(&self, count: usize, space: usize, width: usize) -> Vec<Span> {
        let (first, last) = (self.offset + 1, (self.offset + space).min(count));
        let position = if count > space { format!("lines {first}-{last} of {count}  ") } else { String::new() };
        let keys = "q quit  ? help  s sort  / filter  Enter endpoints  p pause  arrows scroll";
        vec![span(Style::Dim, cut(&format!("{position}{keys}"), width))]
    }
}

fn table_line(line: &TableLine<'_>, highest: f64, cursor: Option<&str>, width: usize) -> Vec<Span> {
    let TableLine { row, endpoint } = line;
    let is_selected = Some(row.service_port.as_str()) == cursor && endpoint.is_none();
    let (per_second, share) = match endpoint.and_then(|index| row.endpoints.get(index)) {
        Some(rate) => (rate.per_second, rate.share),
        None => (row.per_second, if highest > 0.0 { row.per_second / highest } else { 0.0 }),
    };
    let style = match (is_selected, per_second > 0.0) {
        (true, _) => Style::Selected,
        (false, true) if endpoint.is_none() => Style::Plain,
        (false, _) => Style::Dim,
    };
    let (rest, name_width) = widths(width);
    let text = match endpoint.and_then(|index| row.endpoints.get(index)) {
        Some(rate) => cut(&format!("    {rate}"), rest),
        None => {
            let name = cut(&Escaped(&row.service_port).to_string(), name_width);
            cut(&format!("{name:<name_width$}  {}", endpoints(row)), rest)
        }
    };
    let left = width.saturating_sub(RATE + 2);
    vec![
        span(style, cut(&format!("{per_second:>RATE$.1}  "), width)),
        span(Style::Bar, bar(share).chars().take(left).collect()),
        span(style, format!("  {text}").chars().take(left.saturating_sub(BAR)).collect()),
    ]
}

/// Returns the number of endpoints, and the busiest one.
fn endpoints(row: &Row) -> String {
    let busiest = row.endpoints.first().filter(|rate| rate.share > 0.0);
    let busiest = busiest.map(|rate| format!("  {} {:.0} %", rate.endpoint, rate.share * 100.0)).unwrap_or_default();
    let ejected = match row.endpoints.iter().filter(|rate| rate.ejected).count() {
        0 => String::new(),
        count => format!("  {count} ejected"),
    };
    format!("{:>3}{ejected}{busiest}", row.endpoints.len())
}

/// Returns the width of everything after the bar, and that of service ports.
fn widths(width: usize) -> (usize, usize) {
    let rest = width.saturating_sub(RATE + BAR + 4);
    (rest, rest.saturating_sub(ENDPOINTS).max(rest / 2))
}

fn titles(width: usize) -> String {
    let (_, name_width) = widths(width);
    format!("{:>RATE$}  {:BAR$}  {:<name_width$}  ENDPOINTS", "NEW/S", "", "SERVICE PORT")
}

/// Returns a bar, as htop draws it.
fn bar(share: f64) -> String {
    // The cast is of a number from 0 to the width.
    let filled = (share.clamp(0.0, 1.0) * (BAR - 2) as f64).round() as usize;
    format!("[{}{}]", "|".repeat(filled), " ".repeat(BAR - 2 - filled))
}

/// Returns the text, with a mark at the end if it had to be cut.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain((width > 0).then_some('…')).collect()
}

fn span(style: Style, text: String) -> Span {
    Span { style, text }
}

/// The width of the rate.
const RATE: usize = 9;
/// The width of a bar.
const BAR: usize = 12;
/// The width of the number of endpoints, and the busiest one with its share, and the space before them.
const ENDPOINTS: usize = 36;

const HELP: &[&str] = &[
    "ferroute top: new connections by service port",
    "",
    "  Up Down j k      select a service port     PageUp PageDown Home End g G",
    "  Enter            show or hide its endpoints",
    "  a                show or hide all endpoints",
    "  s > F6           next sort key: rate, name, endpoints, share",
    "  R N E S          sort by rate, name, number of endpoints, busiest share",
    "  r I              reverse the order",
    "  / F3 F4          filter by service port or endpoint; Esc clears it",
    "  p Space          pause",
    "  ? h F1           this help",
    "  Ctrl-L           draw the screen again",
    "  q F10 Ctrl-C     quit",
    "",
    "  The bar of a service port compares it with the busiest one, that of an",
    "  endpoint with its service port. A mark … shows that text is cut.",
    "",
    "  any key: back",
];

#[cfg(test)]
mod tests;
