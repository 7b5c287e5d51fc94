//! The arithmetic of the emulated storage: when a read's turn comes and when it has passed. Pure; time comes in.

use foresee_core::units::Seconds;

/// A reader that books within this time after one was woken came back at once: what it needs to look at what it read.
const PROMPT_NS: u64 = 1_000_000;

/// The pipe waits for a reader that is woken late, as if it had been woken in time, or else late wakings would add up and
/// the storage be slower than asked for. Busy machines let a thread wait for some milliseconds; more is a machine that
/// stood still, which is not made up for.
const LATE_NS_MAX: u64 = 20_000_000;

/// The pipe that all reads pass through, one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pipe {
    /// Reads that have begun and not ended, of all processes.
    pub(super) under_way: u32,
    /// When the last read that was booked has passed.
    pub(super) free_ns: u64,
    /// When a reader last came back.
    pub(super) woken_ns: u64,
    /// When processes were last checked to be alive.
    pub(super) checked_ns: u64,
}

/// A read's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Booking {
    pub(super) ends_ns: u64,
    pub(super) transfer_ns: u64,
}

impl Pipe {
    /// Books a read that begins now and takes `transfer` for a number of reads under way, itself included.
    pub(super) fn book(
        &mut self,
        now_ns: u64,
        latency_ns: u64,
        transfer: impl Fn(u32) -> Seconds,
    ) -> Booking {
        self.under_way += 1;
        let begins_ns = if self.is_awaiting(now_ns) {
            self.free_ns
        } else {
            now_ns
        };
        let transfer_ns = (transfer(self.under_way).0 * 1e9).round() as u64;
        self.free_ns = self
            .free_ns
            .max(begins_ns.saturating_add(latency_ns))
            .saturating_add(transfer_ns);
        Booking {
            ends_ns: self.free_ns,
            transfer_ns,
        }
    }

    /// Whether the pipe is only free because a reader was woken late.
    fn is_awaiting(&self, now_ns: u64) -> bool {
        let Some(idle_ns) = now_ns.checked_sub(self.free_ns) else {
            return false;
        };
        let since_woken_ns = now_ns.saturating_sub(self.woken_ns);
        idle_ns <= LATE_NS_MAX && idle_ns.min(since_woken_ns) <= PROMPT_NS
    }

    /// A read is over, and its reader back.
    pub(super) fn end(&mut self, now_ns: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        self.woken_ns = now_ns;
    }

    /// Reads will not be made: `under_way` are left, and what was booked for the others is free again.
    pub(super) fn forget(&mut self, under_way: u32, booked_ns: u64) {
        self.under_way = under_way;
        self.free_ns = self.free_ns.saturating_sub(booked_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Takes 10 ms alone, and half as long for each of two.
    fn transfer(gamma: u32) -> Seconds {
        Seconds(0.010 / f64::from(gamma))
    }

    fn fresh() -> Pipe {
        Pipe::default()
    }

    #[test]
    fn reads_pass_one_after_another_each_at_the_rate_of_those_under_way() {
        let mut pipe = fresh();
        assert_eq!(pipe.book(100 * MS, 0, transfer).ends_ns, 110 * MS);
        assert_eq!(pipe.book(101 * MS, 0, transfer).ends_ns, 115 * MS);
        pipe.end(110 * MS);
        assert_eq!(pipe.book(110 * MS, 0, transfer).ends_ns, 120 * MS);
    }

    #[test]
    fn latencies_overlap() {
        let mut pipe = fresh();
        assert_eq!(pipe.book(100 * MS, 50 * MS, transfer).ends_ns, 160 * MS);
        assert_eq!(pipe.book(101 * MS, 50 * MS, transfer).ends_ns, 165 * MS);
        assert_eq!(
            pipe.book(130 * MS, 50 * MS, |_| Seconds(0.001)).ends_ns,
            181 * MS
        );
    }

    /// When the second of two reads ends: the first ends at 110 ms, its reader is woken and books again at these times.
    fn second_ends_ns(woken_ns: u64, again_ns: u64) -> u64 {
        let mut pipe = fresh();
        assert_eq!(pipe.book(100 * MS, 0, transfer).ends_ns, 110 * MS);
        pipe.end(woken_ns);
        pipe.book(again_ns, 0, transfer).ends_ns
    }

    #[test]
    fn a_reader_that_was_woken_late_loses_nothing() {
        assert_eq!(second_ends_ns(110 * MS, 111 * MS), 120 * MS);
        assert_eq!(second_ends_ns(115 * MS, 116 * MS), 120 * MS);
        assert_eq!(second_ends_ns(130 * MS, 130 * MS), 120 * MS);
    }

    #[test]
    fn a_reader_that_comes_after_a_pause_gains_nothing() {
        assert_eq!(second_ends_ns(110 * MS, 111 * MS + 1), 121 * MS + 1);
        assert_eq!(second_ends_ns(115 * MS, 116 * MS + 1), 126 * MS + 1);
    }

    #[test]
    fn a_machine_that_stood_still_gets_nothing_back() {
        assert_eq!(second_ends_ns(130 * MS + 1, 130 * MS + 1), 140 * MS + 1);
    }

    #[test]
    fn what_a_dead_process_booked_is_free_again() {
        let mut pipe = fresh();
        let lost = pipe.book(100 * MS, 0, |_| Seconds(100.0));
        pipe.forget(0, lost.transfer_ns);
        assert_eq!(pipe.book(110 * MS, 0, transfer).ends_ns, 120 * MS);
    }
}
