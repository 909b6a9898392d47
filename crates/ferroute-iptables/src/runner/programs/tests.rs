use super::*;

fn sh(script: &str) -> [&str; 2] {
    ["-c", script]
}

fn call<'a>(arguments: &'a [&'a str]) -> Call<'a> {
    Call { program: Path::new("/bin/sh"), arguments }
}

fn feed(script: &str, text: &[u8]) -> Result<Exit, RunError> {
    HostPrograms.feed(call(&sh(script)), &mut |stdin| stdin.write_all(text))
}

#[test]
fn a_program_gets_all_of_its_input_and_its_status_and_complaints_come_back() {
    let exit = feed("cat >&2; exit 3", b"one\ntwo\n").unwrap();
    assert_eq!((exit.status.code(), exit.stderr.as_str()), (Some(3), "one\ntwo"));
}

#[test]
fn a_program_that_stops_reading_is_judged_by_its_status() {
    let exit = feed("echo enough >&2; exit 1", &vec![b'x'; 1 << 20]).unwrap();
    assert_eq!((exit.status.code(), exit.stderr.as_str()), (Some(1), "enough"));
}

#[test]
fn a_program_that_complains_without_end_neither_blocks_nor_fills_the_memory() {
    let exit = feed("yes complaint | head -c 1000000 >&2; cat >/dev/null", &vec![b'x'; 1 << 20]).unwrap();
    assert!(exit.status.success());
    assert_eq!(exit.stderr.len() as u64, LONGEST_COMPLAINT);
}

#[test]
fn a_program_is_killed_when_its_input_cannot_be_made() {
    let result = HostPrograms.feed(call(&sh("exec sleep 1000")), &mut |_| Err(io::Error::other("no rules")));
    let error = result.unwrap_err();
    assert!(matches!(&error, RunError::Talk { source, .. } if source.to_string() == "no rules"), "{error:?}");
}

#[test]
fn what_a_program_prints_can_be_read_line_by_line() {
    let mut lines = Vec::new();
    let exit = HostPrograms.read(call(&sh("echo one; echo two; exit 4")), &mut |stdout| {
        for line in stdout.lines() {
            lines.push(line?);
        }
        Ok(())
    });
    assert_eq!(exit.unwrap().status.code(), Some(4));
    assert_eq!(lines, ["one", "two"]);
}

#[test]
fn a_program_that_is_missing_is_named() {
    let call = Call { program: Path::new("/nonexistent/iptables"), arguments: &["--version"] };
    let error = HostPrograms.read(call, &mut |_| Ok(())).unwrap_err();
    assert_eq!(error.to_string(), "cannot start /nonexistent/iptables");
    assert_eq!(call.to_string(), "/nonexistent/iptables --version");
}
