//! `ferroute top` on a terminal, in each mode of a default installation.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ferroute_testing::{NetNs, Running};

use crate::{Case, Mode, in_every_mode, proxy::FERROUTE, wait, web, web_tcp};

in_every_mode!(keys_do_what_users_of_htop_expect);

#[test]
fn end_of_the_terminal_ends_it_although_sighup_is_ignored() {
    let case = Case::new(Mode::Iptables, &web(&[0]));
    let terminal = Terminal::start(&case.cluster.node, 80, 24);
    terminal.wait("the table", |lines| lines.iter().any(|line| line.contains("default/web:tcp")));
    let program = format!("/proc/{}", terminal.program());
    drop(terminal);
    wait("the end of the program", || (!fs::exists(&program).unwrap()).then_some(()));
}

/// Output of the program on the terminal.
#[derive(Default)]
struct Screen {
    rows: BTreeMap<usize, Vec<char>>,
    cursor: (usize, usize),
    width: usize,
    height: usize,
    /// Text that did not fit.
    overflow: String,
    /// All bytes, for sequences that do not move text.
    raw: String,
    unread: String,
}

impl Screen {
    fn feed(&mut self, text: &str) {
        self.raw.push_str(text);
        self.unread.push_str(text);
        while let Some(first) = self.unread.chars().next() {
            let used = if first == '\x1b' { self.control() } else { Some(self.print(first)) };
            let Some(used) = used else { return };
            self.unread.drain(..used);
        }
    }

    /// Handles a control sequence, and returns its length if it is complete.
    fn control(&mut self) -> Option<usize> {
        let rest = self.unread.strip_prefix("\x1b[")?;
        let end = rest.find(|one: char| ('@'..='~').contains(&one))?;
        let numbers: Vec<usize> = rest[..end].split(';').map(|number| number.parse().unwrap_or(1)).collect();
        let whole = rest[..end].is_empty() || rest.starts_with(['0', '2']);
        match rest.as_bytes()[end] {
            b'H' => self.cursor = (numbers[0] - 1, numbers.get(1).map_or(0, |column| column - 1)),
            b'K' => {
                let (row, column) = self.cursor;
                self.rows.entry(row).or_default().truncate(column);
            }
            b'J' if whole => self.rows.clear(),
            _ => {}
        }
        Some(2 + end + 1)
    }

    fn print(&mut self, letter: char) -> usize {
        let (row, column) = self.cursor;
        match letter {
            '\r' => self.cursor.1 = 0,
            '\n' => self.cursor.0 += 1,
            _ if column >= self.width => self.overflow.push(letter),
            _ => {
                let line = self.rows.entry(row).or_default();
                line.resize(line.len().max(column + 1), ' ');
                line[column] = letter;
                self.cursor.1 += 1;
            }
        }
        letter.len_utf8()
    }

    fn lines(&self) -> Vec<String> {
        let last = self.rows.keys().next_back().map_or(0, |row| row + 1).min(self.height);
        let line = |row: usize| self.rows.get(&row).map(|line| line.iter().collect::<String>()).unwrap_or_default();
        (0..last).map(|row| line(row).trim_end().to_owned()).collect()
    }
}

/// The program on a terminal, which `script` provides.
struct Terminal {
    script: Running,
    screen: Arc<Mutex<Screen>>,
}

impl Terminal {
    fn start(node: &NetNs, width: usize, height: usize) -> Self {
        let run = format!("trap '' HUP; stty cols {width} rows {height}; exec {FERROUTE} top --interval 200ms");
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--flush", "--command", &run, "/dev/null"]);
        command.env_remove("NO_COLOR").env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script: Child = node.run(|| command.spawn()).unwrap();
        let mut output = script.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(Screen { width, height, ..Screen::default() }));
        let copy = screen.clone();
        thread::spawn(move || {
            let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                bytes.extend_from_slice(&buffer[..length]);
                // A character may be cut at the end of the data.
                let valid = std::str::from_utf8(&bytes).map_or_else(|error| error.valid_up_to(), str::len);
                copy.lock().unwrap().feed(&String::from_utf8(bytes.drain(..valid).collect()).unwrap());
            }
        });
        Self { script: Running(script), screen }
    }

    fn press(&mut self, keys: &str) {
        self.script.0.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the lines of the screen fulfil a condition, and returns them.
    #[track_caller]
    fn wait(&self, condition: &str, holds: impl Fn(&[String]) -> bool) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let lines = self.screen.lock().unwrap().lines();
            if holds(&lines) {
                return lines;
            }
            assert!(Instant::now() < deadline, "timeout: {condition}: {lines:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the number of the process on the terminal.
    fn program(&self) -> String {
        let children = format!("/proc/{0}/task/{0}/children", self.script.0.id());
        fs::read_to_string(children).unwrap().trim().to_owned()
    }

    /// Sets the size as a terminal emulator does.
    fn resize(&self, width: usize, height: usize) {
        let mut screen = self.screen.lock().unwrap();
        (screen.width, screen.height, screen.rows) = (width, height, BTreeMap::new());
        drop(screen);
        let child = self.program();
        let terminal = fs::read_link(format!("/proc/{child}/fd/0")).unwrap();
        let [width, height] = [width, height].map(|size| size.to_string());
        let status = Command::new("stty").arg("-F").arg(terminal).args(["cols", &width, "rows", &height]).status();
        assert!(status.unwrap().success());
    }
}

/// Returns the service ports in the table, from the top.
fn names(lines: &[String]) -> Vec<String> {
    let words = lines.iter().flat_map(|line| line.split_whitespace());
    words.filter(|word| word.starts_with("default/")).map(str::to_owned).collect()
}

fn keys_do_what_users_of_htop_expect(mode: Mode) {
    let mut yaml = web(&[0, 1, 2]);
    for number in 0..30 {
        let name = if number == 0 { "n".repeat(63) } else { format!("idle-{number:02}") };
        let service = web(&[0]).replace("web", &name).replace("10.96.0.1", &format!("10.96.1.{number}"));
        yaml += &format!("---\n{}", service.replace("fd00:96::1", &format!("fd00:96::1:{number}")));
    }
    let case = Case::new(mode, &yaml);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // In nftables mode without counters, only Services with connections are shown.
            for number in (0..30).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                let idle = std::net::SocketAddr::from(([10, 96, 1, number], 80));
                [web_tcp()[0]; 5].into_iter().chain([idle]).for_each(|to| _ = case.connect(to));
            }
        });
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&case)));
        stop.store(true, Ordering::Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn check(case: &Case) {
    let mut terminal = Terminal::start(&case.cluster.node, 80, 24);
    let is_busiest =
        |lines: &[String]| lines.get(3).is_some_and(|line| line.contains("[||") && line.contains("web:tcp"));
    // All Services are shown, and the screen is drawn to its end.
    let is_full = |lines: &[String]| {
        lines.len() == 24
            && ["of 31 active", "of 62 active"].iter().any(|all| lines[1].contains(all))
            && lines[3..23].iter().all(|line| line.contains("default/"))
            && lines[23].starts_with("lines 1-20 of ")
    };
    let lines = terminal.wait("the busiest Service in the first line", |lines| is_busiest(lines) && is_full(lines));
    assert!(lines[1].contains(" new/s, ") && lines[1].contains("by rate"), "totals: {lines:#?}");
    assert!(lines[2].contains("NEW/S") && lines[2].contains("SERVICE PORT"), "titles: {lines:#?}");
    assert!(lines[23].contains("? help"), "keys: {lines:#?}");
    assert!(terminal.screen.lock().unwrap().raw.contains("\x1b[38;5;"), "colours");

    terminal.press("?");
    terminal.wait("help", |lines| lines.iter().any(|line| line.contains("filter by service port")));
    terminal.press(" ");
    terminal.wait("the table", is_busiest);

    // The order by name is stable, regardless of the rates.
    terminal.press("N");
    let is_sorted = |lines: &[String]| {
        lines[1].contains("by name") && !lines[1].contains("reversed") && is_full(lines) && names(lines).is_sorted()
    };
    let by_name = terminal.wait("sorted by name", is_sorted);
    let later = terminal.wait("another reading", |lines| is_sorted(lines) && lines[1] != by_name[1]);
    assert_eq!(names(&later), names(&by_name));
    terminal.press("r");
    terminal.wait("the reversed order", |lines| {
        lines[1].contains("reversed") && is_full(lines) && names(lines).is_sorted_by(|one, other| one >= other)
    });

    // All rows can be reached.
    terminal.press("N");
    terminal.wait("sorted by name", is_sorted);
    terminal.press("\x1b[F");
    let end = |lines: &[String]| {
        let words: Vec<&str> = lines[lines.len() - 1].split([' ', '-']).collect();
        words.first() == Some(&"lines") && words.get(2) == words.get(4)
    };
    let has_last = |lines: &[String]| names(lines).iter().any(|name| name.starts_with("default/web:"));
    let lines = terminal.wait("the last lines", |lines| lines.len() == 24 && end(lines) && has_last(lines));
    // A name that does not fit has a mark.
    assert!(lines.iter().any(|line| line.contains("default/nnn") && line.contains('…')), "{lines:#?}");
    terminal.press("\x1b[H");
    terminal.wait("the first lines", |lines| lines.last().is_some_and(|line| line.starts_with("lines 1-")));

    terminal.press("/idle-07:tcp\r");
    terminal
        .wait("filtered", |lines| lines[1].contains("filter: idle-07:tcp") && names(lines) == ["default/idle-07:tcp"]);
    terminal.press("\x1b");
    terminal.wait("all", |lines| names(lines).len() >= 20);
    // The selected row stays visible, so the first lines need not be.
    terminal.press("R\x1b[H");
    terminal.wait("sorted by rate", is_busiest);
    terminal.press("\r");
    terminal.wait("endpoints", |lines| lines.iter().any(|line| line.contains("10.244.0.2:8080 ")));
    terminal.press("p");
    terminal.wait("paused", |lines| lines[1].contains("PAUSED"));
    terminal.press("p");

    assert_eq!(terminal.screen.lock().unwrap().overflow, "", "text beyond the width");
    for (width, height) in [(120, 30), (40, 10), (20, 5)] {
        terminal.resize(width, height);
        let is_drawn = |line: &String| line.starts_with("lines ") || line.starts_with("q quit");
        terminal.wait("the new size", |lines| lines.len() == height && lines.last().is_some_and(is_drawn));
    }
    terminal.press("q");
    let status = wait("the end", || terminal.script.0.try_wait().unwrap());
    assert!(status.success(), "{status}");
    let is_restored = |screen: &Screen| screen.raw.ends_with("\x1b[?1049l") && screen.raw.contains("\x1b[?25h");
    wait("the former screen", || is_restored(&terminal.screen.lock().unwrap()).then_some(()));
}
