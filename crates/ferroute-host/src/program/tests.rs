use std::thread;

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::*;

/// Short enough for a test to wait for it, and longer than a shell needs to start on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

fn shell(script: &str, stream: Stream, patience: Duration) -> Program {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    Program::start_with(command, stream, patience).unwrap()
}

/// Feeds `input` to a script.
fn feed(script: &str, input: &[u8], patience: Duration) -> Result<Exit, ProgramError> {
    let mut program = shell(script, Stream::Input, patience);
    let written = program.write_all(input);
    program.finish(written)
}

/// Reads the output of a script.
fn read(script: &str, patience: Duration) -> Result<(Exit, String), ProgramError> {
    let mut program = shell(script, Stream::Output, patience);
    let mut output = String::new();
    let read = program.read_to_string(&mut output).map(|_| ());
    program.finish(read).map(|exit| (exit, output))
}

#[track_caller]
fn assert_hung<T: fmt::Debug>(result: Result<T, ProgramError>, expected: &str) {
    match result {
        Err(ProgramError::Hung { doing, silent, ran, .. }) => {
            assert_eq!(doing, expected);
            assert!(silent >= SHORT && ran >= silent, "{silent:?} {ran:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_that_makes_no_progress_is_killed_whatever_it_should_do() {
    thread::scope(|scope| {
        scope.spawn(|| assert_hung(feed("exec sleep 1000", &vec![b'x'; 1 << 20], SHORT), "did not read its input"));
        scope.spawn(|| assert_hung(feed("cat >/dev/null; exec sleep 1000", b"x", SHORT), "did not exit"));
        scope.spawn(|| assert_hung(read("echo some; exec sleep 1000", SHORT), "wrote no output"));
        // It has closed all its streams.
        scope.spawn(|| assert_hung(read("exec sleep 1000 >/dev/null 2>&1", SHORT), "did not exit"));
    });
}

#[test]
fn silence_is_limited_and_not_the_duration() {
    let busy = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done";
    let (exit, output) = read(busy, SHORT).unwrap();
    assert!(exit.status.success() && output.lines().count() == 8, "{output}");
    assert!(exit.took >= SHORT);
}

/// Computes for about the number of seconds in the argument.
const COMPUTE: &str = "end=$(($(date +%s) + $0)); while [ $(date +%s) -lt $end ]; do i=0; while [ $i -lt 100000 ]; do \
                       i=$((i + 1)); done; done";

#[test]
fn a_program_that_computes_is_not_killed_before_it_has_had_much_more_time() {
    let compute = |seconds: &str, patience| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", COMPUTE, seconds]);
        let mut program = Program::start_with(command, Stream::Output, patience).unwrap();
        let read = program.read(&mut [0]).map(|_| ());
        program.finish(read)
    };
    thread::scope(|scope| {
        scope.spawn(|| assert!(compute("6", SHORT).unwrap().status.success()));
        let endless = compute("100000", Duration::from_millis(300));
        assert!(matches!(endless, Err(ProgramError::Hung { .. })), "{endless:?}");
    });
}

#[test]
fn children_of_a_hung_program_are_killed_with_it_and_it_is_reaped() {
    let mut program = shell("sleep 1000 & echo $!; wait", Stream::Output, SHORT);
    let leader = Pid::from_raw(program.child.get_mut().id().cast_signed());
    let mut output = String::new();
    let read = program.read_to_string(&mut output).map(|_| ());
    assert_hung(program.finish(read), "wrote no output");
    let child = Pid::from_raw(output.trim().parse().unwrap());
    assert_eq!(kill(leader, None), Err(Errno::ESRCH), "reaped");
    // init reaps the other process, but a container may have no init.
    let is_gone = || {
        let status = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        status.is_empty() || status.contains(") Z ")
    };
    while !is_gone() {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_background_process_that_keeps_the_streams_open_does_not_delay_the_exit() {
    let exit = feed("sleep 1000 & echo $! >&2", b"", Duration::from_secs(1000)).unwrap();
    kill(Pid::from_raw(exit.stderr.parse().unwrap()), Signal::SIGKILL).unwrap();
    assert!(exit.status.success());
}

#[test]
fn input_and_standard_error_do_not_block_each_other() {
    let echo = "while read -r line; do echo \"$line$line$line\" >&2; done; echo end";
    let line = format!("{}\n", "x".repeat(1000)).repeat(1000);
    let exit = feed(echo, line.as_bytes(), Duration::from_secs(1000)).unwrap();
    assert_eq!(exit.stderr.len(), MAX_STDERR);
}
