//! Runs the program as a child, for who wants statistics: signals are passed on, and this process ends as the program did.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

use anyhow::Context;
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use super::{Arguments, Started, failed, say, stats};

/// What can be sent to a process to be passed on.
const SIGNALS: [i32; 9] = [
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
];

pub(crate) fn run(
    mut command: Command,
    arguments: &Arguments,
    started: &Started,
) -> anyhow::Result<u8> {
    let mut signals = SignalsInfo::<WithOrigin>::new(SIGNALS).context("cannot watch signals")?;
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(failed(&arguments.command[0], &error)),
    };
    let process = rustix::process::Pid::from_child(&child);
    let handle = signals.handle();
    let passing = std::thread::spawn(move || {
        for origin in &mut signals {
            if is_to_be_passed_on(&origin)
                && let Some(signal) = rustix::process::Signal::from_named_raw(origin.signal)
            {
                let _ = rustix::process::kill_process(process, signal);
            }
        }
    });
    let status = wait(child)?;
    handle.close();
    let _ = passing.join();
    let took = started.began.elapsed();
    if let Err(error) = stats::tell(arguments, started, took) {
        say(&format!("{error:#}"));
    }
    let _ = std::fs::remove_file(&started.path);
    Ok(end_as(status))
}

/// What a terminal sends, it sends to the program, too.
fn is_to_be_passed_on(origin: &Origin) -> bool {
    let by_terminal =
        [SIGINT, SIGQUIT, SIGTSTP, SIGWINCH, SIGHUP, SIGCONT].contains(&origin.signal);
    !(by_terminal && origin.cause == Cause::Kernel)
}

fn wait(mut child: Child) -> anyhow::Result<ExitStatus> {
    child.wait().context("cannot wait for the program")
}

/// The program's exit status; where a signal ended it, the same signal ends this process.
fn end_as(status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return 128_u8.saturating_add(signal as u8);
    }
    status.code().unwrap_or(1) as u8
}
