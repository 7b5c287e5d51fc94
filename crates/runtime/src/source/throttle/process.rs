//! Processes, told apart by number and start, so that a number which is used again is not taken for the old process.

use std::fs;
use std::io;

/// A process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// In ticks since the machine started.
    pub(super) started: u64,
}

impl Process {
    /// This one.
    pub(super) fn current() -> io::Result<Self> {
        let pid = std::process::id();
        let started = started(pid)
            .ok_or_else(|| io::Error::other("/proc does not show this process; mount it"))?;
        Ok(Self { pid, started })
    }

    /// Whether it has not ended; one that nobody has waited for yet has.
    pub(super) fn is_alive(self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// When a process that is alive was started.
fn started(pid: u32) -> Option<u64> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The fields of proc(5): the name is in parentheses and may hold anything, state is the 3rd, start the 22nd.
fn parse(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if ["Z", "X", "x"].contains(&state) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn this_process_is_alive_and_one_that_was_never_started_is_not() {
        let current = Process::current().unwrap();
        assert!(current.is_alive());
        assert!(
            !Process {
                started: current.started + 1,
                ..current
            }
            .is_alive()
        );
    }

    #[test]
    fn a_process_that_ended_is_dead_before_anybody_waits_for_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process {
            pid: child.id(),
            started: started(child.id()).unwrap(),
        };
        assert!(process.is_alive());
        child.kill().unwrap();
        while process.is_alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn reads_the_start_behind_any_name() {
        let rest = "1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        assert_eq!(parse(&format!("7 (a) b (c)) S {rest}")), Some(4711));
        assert_eq!(parse(&format!("7 (a) Z {rest}")), None);
        assert_eq!(parse("7 (a) S 1"), None);
    }
}
