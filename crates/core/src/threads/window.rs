//! How much is staged ahead. It has room for what the trainer asks for at a time, and grows when the trainer had to wait
//! although all of it had been full: then more would have helped.

use crate::units::Seconds;

/// How much is staged ahead.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    bytes: u64,
    initial: u64,
    most: u64,
    /// Whether it was full since the trainer waited last, since when it is, and for how long it was at most.
    was_full: bool,
    full_since: Option<Seconds>,
    idle: Seconds,
}

/// While samples are copied from memory the window is full and empty by turns, for a moment, whatever its size. More of it
/// helps only a trainer that waits for so long after threads had nothing to do for so long.
const WAITS: Seconds = Seconds(0.0005);
const IDLE: Seconds = Seconds(0.005);

impl Window {
    /// So much to begin with, and so much at most.
    pub fn new(bytes: u64, most: u64) -> Self {
        let bytes = bytes.min(most);
        Self {
            bytes,
            initial: bytes,
            most,
            was_full: false,
            full_since: None,
            idle: Seconds::ZERO,
        }
    }

    /// How much it is at present.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// At most so much from now on.
    pub fn bound(&mut self, most: u64) {
        self.most = most;
        self.bytes = self.bytes.max(self.initial).min(most);
    }

    /// The trainer asks for so much at a time. True where the window grew.
    pub fn serve(&mut self, asked: u64) -> bool {
        // One of them is in the trainer's hands, one whole, one on its way.
        self.initial = self.initial.max(asked.saturating_mul(5) / 2);
        let before = self.bytes;
        self.bytes = self.bytes.max(self.initial.min(self.most));
        self.bytes > before
    }

    /// There was no room for another sample. `now` is asked where that is new.
    pub fn note_full(&mut self, now: impl FnOnce() -> Seconds) {
        self.was_full = true;
        self.full_since.get_or_insert_with(now);
    }

    /// There was. `now` is asked where that is new.
    pub fn note_room(&mut self, now: impl FnOnce() -> Seconds) {
        if let Some(since) = self.full_since.take() {
            self.idle = self.idle.max(now() - since);
        }
    }

    /// The trainer had to wait for so long. True where the window grew.
    pub fn grow(&mut self, waited: Seconds, copies: bool) -> bool {
        let (was_full, idle) = (
            std::mem::take(&mut self.was_full),
            std::mem::take(&mut self.idle),
        );
        let helps = if copies {
            waited >= WAITS && idle >= IDLE
        } else {
            was_full
        };
        let grows = helps && self.bytes < self.most;
        if grows {
            self.bytes = self.bytes.saturating_mul(2).min(self.most);
        }
        grows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_only_where_it_was_full_and_never_beyond_its_bound() {
        let mut window = Window::new(10, 35);
        assert!(!window.grow(WAITS, false), "it was not full");
        for expected in [20, 35] {
            window.note_full(|| Seconds::ZERO);
            assert!(window.grow(WAITS, false));
            assert_eq!(window.bytes, expected);
        }
        window.note_full(|| Seconds::ZERO);
        assert!(!window.grow(WAITS, false));
    }

    #[test]
    fn with_quick_reads_a_window_grows_only_if_threads_were_idle_for_long() {
        let mut window = Window::new(10, 35);
        for (idle, waited, grows) in [
            (IDLE, WAITS, true),
            (IDLE / 2.0, WAITS, false),
            (IDLE, Seconds(1e-5), false),
        ] {
            window.note_full(|| Seconds::ZERO);
            window.note_full(|| unreachable!("it was full before"));
            window.note_room(|| idle);
            window.note_room(|| unreachable!("there was room before"));
            assert_eq!(window.grow(waited, true), grows, "{idle:?}, {waited:?}");
        }
    }

    #[test]
    fn a_window_gets_back_what_another_job_has_left() {
        let mut window = Window::new(10, 35);
        window.bound(2);
        assert_eq!(window.bytes, 2);
        window.bound(35);
        assert_eq!(window.bytes, 10);
    }

    #[test]
    fn a_window_has_room_for_what_is_asked_for_at_a_time() {
        let mut window = Window::new(10, 35);
        assert!(!window.serve(1));
        assert!(window.serve(8));
        assert_eq!(window.bytes, 20);
        assert!(!window.serve(8) && !window.serve(1), "that it has");
        assert!(window.serve(1000));
        assert_eq!(window.bytes, 35);
    }
}
