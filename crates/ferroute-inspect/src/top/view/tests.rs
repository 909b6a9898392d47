use ferroute_core::testing::{HOSTILE, assert_visible};
use insta::assert_snapshot;

use super::*;
use crate::top::EndpointRate;

fn row(service_port: &str, rates: &[f64]) -> Row {
    let total: f64 = rates.iter().sum();
    let endpoints = (1..).zip(rates).map(|(number, rate)| {
        let endpoint = format!("10.244.0.{number}:8080").parse().unwrap();
        EndpointRate::new(endpoint, *rate, if total > 0.0 { rate / total } else { 0.0 })
    });
    Row { service_port: service_port.to_owned(), per_second: total, endpoints: endpoints.collect(), ended: None }
}

fn rows() -> Vec<Row> {
    vec![
        row("shop/web:http", &[30.0, 10.0]),
        row("shop/cart:http", &[10.0]),
        row("kube-system/dns:udp", &[0.0, 0.0, 0.0]),
    ]
}

fn screen(view: &mut View, rows: &[Row], width: usize, height: usize) -> String {
    let lines = view.lines("running proxy: node node-1, nftables mode", Some(rows), "1s", width, height);
    assert_eq!(lines.len(), height);
    let text = |line: &Vec<Span>| line.iter().map(|span| span.text.as_str()).collect::<String>();
    let lines: Vec<String> = lines.iter().map(text).collect();
    assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:?}");
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

fn press(view: &mut View, rows: &[Row], keys: &str) {
    for letter in keys.chars() {
        let code = match letter {
            '\n' => KeyCode::Enter,
            letter => KeyCode::Char(letter),
        };
        assert_eq!(view.on_key(KeyEvent::from(code), rows), Reaction::Draw);
    }
}

#[test]
fn table_has_totals_bars_and_keys_in_80_columns() {
    assert_snapshot!(screen(&mut View::default(), &rows(), 80, 8), @r"
    running proxy: node node-1, nftables mode
    50.0 new/s, 2 of 3 active, by rate, every 1s
        NEW/S                SERVICE PORT                 ENDPOINTS
         40.0  [||||||||||]  shop/web:http                  2  10.244.0.1:8080 75 %
         10.0  [|||       ]  shop/cart:http                 1  10.244.0.1:8080 100 %
          0.0  [          ]  kube-system/dns:udp            3

    q quit  ? help  s sort  / filter  Enter endpoints  t totals  p pause  arrows
    ");
}

#[test]
fn bytes_are_a_column_where_they_are_counted_and_totals_a_view_of_their_own() {
    let mut rows = rows();
    let counts = |connections, packets, bytes, bytes_per_second| {
        Some(TrafficCounts { connections, packets, bytes, packets_per_second: 1.0, bytes_per_second })
    };
    rows[0].endpoints[0].traffic = counts(1_234, 56_789, 9_960_000, 999.6);
    rows[0].endpoints[1].traffic = counts(1, 12, 800, 0.0);
    rows[2].endpoints[0].traffic = counts(5_000_000, 10_000_000, 12_345_678_900, 123_456.0);
    let mut view = View::default();
    press(&mut view, &rows, "\n");
    assert_snapshot!(screen(&mut view, &rows, 80, 9), @r"
    running proxy: node node-1, nftables mode
    50.0 new/s, 2 of 3 active, by rate, every 1s
        NEW/S    BYTES/S  SERVICE PORT                   ENDPOINTS
         40.0       1.0k  shop/web:http                    2  10.244.0.1:8080 75 %
         30.0       1.0k      10.244.0.1:8080 75 %
         10.0          0      10.244.0.2:8080 25 %
         10.0          0  shop/cart:http                   1  10.244.0.1:8080 100 %
          0.0       123k  kube-system/dns:udp              3
    q quit  ? help  s sort  / filter  Enter endpoints  t totals  p pause  arrows
    ");
    press(&mut view, &rows, "tB");
    assert_snapshot!(screen(&mut view, &rows, 80, 9), @r"
    running proxy: node node-1, nftables mode
    50.0 new/s, 2 of 3 active, by bytes, every 1s
        CONNS    PACKETS      BYTES  SERVICE PORT                     ENDPOINTS
         5.0M        10M        12G  kube-system/dns:udp                3
         1.2k        57k        10M  shop/web:http                      2
         1.2k        57k        10M      10.244.0.1:8080 75 %
            1         12        800      10.244.0.2:8080 25 %
            0          0          0  shop/cart:http                     1
    q quit  ? help  s sort  / filter  Enter endpoints  t totals  p pause  arrows
    ");
    press(&mut view, &rows, "t");
    assert_snapshot!(screen(&mut view, &rows, 120, 5), @r"
    running proxy: node node-1, nftables mode
    50.0 new/s, 2 of 3 active, by bytes, every 1s
        NEW/S                  BYTES/S  SERVICE PORT                                      ENDPOINTS
          0.0  [          ]       123k  kube-system/dns:udp                                 3
    lines 1-1 of 5  q quit  ? help  s sort  / filter  Enter endpoints  t totals  p pause  arrows
    ");
    rows[0].ended = counts(7, 70, 1_000_000, 0.0);
    press(&mut view, &rows, "t");
    assert_snapshot!(screen(&mut view, &rows, 80, 10), @r"
    running proxy: node node-1, nftables mode
    50.0 new/s, 2 of 3 active, by bytes, every 1s
        CONNS    PACKETS      BYTES  SERVICE PORT                     ENDPOINTS
         5.0M        10M        12G  kube-system/dns:udp                3
         1.2k        57k        11M  shop/web:http                      2
         1.2k        57k        10M      10.244.0.1:8080 75 %
            1         12        800      10.244.0.2:8080 25 %
            7         70       1.0M      former endpoints
            0          0          0  shop/cart:http                     1
    q quit  ? help  s sort  / filter  Enter endpoints  t totals  p pause  arrows
    ");
    rows[0].ended = None;
    rows.iter_mut().flat_map(|row| &mut row.endpoints).for_each(|rate| rate.traffic = None);
    assert!(screen(&mut view, &rows, 80, 9).contains("--count-traffic"));
}

#[test]
fn endpoints_of_the_selected_service_port_can_be_shown() {
    let (mut view, rows) = (View::default(), rows());
    press(&mut view, &rows, "\nj");
    assert_snapshot!(screen(&mut view, &rows, 80, 9), @r"
    running proxy: node node-1, nftables mode
    50.0 new/s, 2 of 3 active, by rate, every 1s
        NEW/S                SERVICE PORT                 ENDPOINTS
         40.0  [||||||||||]  shop/web:http                  2  10.244.0.1:8080 75 %
         30.0  [||||||||  ]      10.244.0.1:8080 75 %
         10.0  [|||       ]      10.244.0.2:8080 25 %
         10.0  [|||       ]  shop/cart:http                 1  10.244.0.1:8080 100 %
          0.0  [          ]  kube-system/dns:udp            3
    q quit  ? help  s sort  / filter  Enter endpoints  t totals  p pause  arrows
    ");
    assert_eq!(view.selected.as_deref(), Some("shop/cart:http"));
}

#[test]
fn rows_are_sorted_by_the_chosen_key_and_then_by_name() {
    let order = |keys: &str| {
        let (mut view, rows) = (View::default(), rows());
        press(&mut view, &rows, keys);
        view.shown(&rows).iter().map(|row| row.service_port.rsplit_once('/').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(order("R"), ["web:http", "cart:http", "dns:udp"]);
    assert_eq!(order("N"), ["dns:udp", "cart:http", "web:http"]);
    assert_eq!(order("E"), ["dns:udp", "web:http", "cart:http"]);
    assert_eq!(order("S"), ["cart:http", "web:http", "dns:udp"]);
    assert_eq!(order("Nr"), ["web:http", "cart:http", "dns:udp"]);
    assert_eq!(order("s"), order("N"));
    assert_eq!(order("sssss"), order("R"));
}

#[test]
fn filter_is_shown_and_can_be_cleared() {
    let (mut view, rows) = (View::default(), rows());
    press(&mut view, &rows, "/cartq");
    assert!(screen(&mut view, &rows, 80, 6).contains("filter: cartq_ (0 match)"));
    assert_eq!(view.on_key(KeyCode::Backspace.into(), &rows), Reaction::Draw);
    press(&mut view, &rows, "\n");
    assert_eq!(view.shown(&rows).len(), 1);
    assert_eq!(view.on_key(KeyCode::Esc.into(), &rows), Reaction::Draw);
    assert_eq!(view.shown(&rows).len(), 3);
    // It may be the start of the sequence of another key.
    assert_ne!(view.on_key(KeyCode::Esc.into(), &rows), Reaction::Quit);
}

#[test]
fn cursor_stays_visible_and_on_its_row_when_the_order_changes() {
    let many = |extra: f64| -> Vec<Row> {
        (0..100)
            .map(|number| {
                row(&format!("shop/s{number:02}:http"), &[f64::from(number) + if number == 50 { extra } else { 0.0 }])
            })
            .collect()
    };
    let (mut view, rows) = (View::default(), many(0.0));
    screen(&mut view, &rows, 80, 24);
    for _ in 0..49 {
        press(&mut view, &rows, "j");
    }
    assert_eq!(view.selected.as_deref(), Some("shop/s50:http"));
    let text = screen(&mut view, &rows, 80, 24);
    assert!(text.contains("shop/s50:http") && text.contains("lines 31-50 of 100"), "{text}");
    let text = screen(&mut view, &many(1000.0), 80, 24);
    assert!(text.contains("shop/s50:http") && text.contains("lines 1-20 of 100"), "{text}");
    view.on_key(KeyCode::End.into(), &rows);
    assert!(screen(&mut view, &rows, 80, 24).contains("lines 81-100 of 100"));
}

#[test]
fn long_names_are_cut_with_a_mark_in_any_size() {
    let rows = [row("a-namespace-with-a-long-name/a-service-with-a-long-name:a-port-with-a-long-name", &[1.0])];
    assert!(screen(&mut View::default(), &rows, 80, 24).contains("a-namespace-with-a-long-na…"));
    for (width, height) in [(0, 0), (1, 1), (10, 3), (30, 5), (300, 100)] {
        screen(&mut View::default(), &rows, width, height);
    }
}

#[test]
fn help_lists_every_key() {
    let (mut view, rows) = (View::default(), rows());
    press(&mut view, &rows, "?");
    let lines = view.lines("", Some(&rows), "1s", 80, 24);
    let help: String = lines.iter().flatten().map(|span| span.text.clone() + "\n").collect();
    for key in
        ["Enter", " s ", "R N E S B", " t ", " r ", " / ", " p ", " q ", " a ", "F3", "F4", "F6", "F10", "Ctrl-L"]
    {
        assert!(help.contains(key), "{key}");
    }
    press(&mut view, &rows, "x");
    assert_eq!(view.help, None);
}

#[test]
fn help_is_complete_on_any_terminal_by_scrolling() {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let all: Vec<String> = HELP.iter().flat_map(|(keys, text)| words(&format!("{keys} {text}"))).collect();
    for (width, height) in [(80, 24), (40, 10), (25, 5)] {
        let (mut view, rows) = (View::default(), rows());
        press(&mut view, &rows, "?");
        let (mut seen, mut last) = (Vec::new(), String::new());
        loop {
            let text = screen(&mut view, &rows, width, height);
            if text == last {
                break;
            }
            let (lines, footer) = text.rsplit_once('\n').unwrap();
            assert_eq!(footer.contains("scroll") || footer.contains('…'), height < 24, "{text}");
            seen.extend(words(lines));
            last = text;
            press(&mut view, &rows, "j");
        }
        for word in &all {
            let word = word.trim_end_matches(':');
            assert!(seen.iter().any(|seen| seen.trim_end_matches(':') == word), "{width}x{height}: {word}");
        }
        press(&mut view, &rows, "x");
        assert_eq!(view.help, None);
    }
}

#[test]
fn only_the_named_keys_quit() {
    let rows = rows();
    let quits = |code: KeyCode, modifiers: KeyModifiers| {
        View::default().on_key(KeyEvent::new(code, modifiers), &rows) == Reaction::Quit
    };
    let letters = (' '..='~').map(KeyCode::Char);
    let others = [KeyCode::Esc, KeyCode::Backspace, KeyCode::Tab, KeyCode::Insert, KeyCode::Delete, KeyCode::Null];
    for code in letters.chain(others).chain((1..=12).map(KeyCode::F)) {
        let is_named = matches!(code, KeyCode::Char('q') | KeyCode::F(10));
        assert_eq!(quits(code, KeyModifiers::NONE), is_named, "{code:?}");
        let is_letter = matches!(code, KeyCode::Char(_));
        assert_eq!(quits(code, KeyModifiers::ALT), is_named && !is_letter, "Alt {code:?}");
        let is_interrupt = code == KeyCode::Char('c') || is_named && !is_letter;
        assert_eq!(quits(code, KeyModifiers::CONTROL), is_interrupt, "Ctrl {code:?}");
    }
}

#[test]
fn other_encodings_get_marks_in_ascii() {
    let cut_name = cut("a-long-name/ü", 12);
    assert_eq!([ascii(&cut_name), ascii("ü")], ["a-long-name~", "?"]);
}

#[test]
fn names_in_rules_control_no_terminal() {
    assert_visible(&screen(&mut View::default(), &[row(HOSTILE, &[1.0])], 200, 6));
}
