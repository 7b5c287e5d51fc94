//! The book of what is gathered on a channel: what this rank gave in each call, who asked for it before it was given, and
//! what has come of the others' gifts. Pure: who sends, waits and looks at the clock is elsewhere.
//!
//! Who gathers asks each other rank for its gift, again where nothing comes; a gift is kept until all have said that they
//! have it. So nothing is sent to a rank that does not want it, and a connection that breaks costs a question.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foresee_core::ids::Rank;

use crate::transport::{Given, Payload};

/// Bytes that a rank may give in a call.
pub(super) const GIFT_BYTES_MAX: usize = 1 << 30;

/// What a rank gave, as it is sent to one other.
struct Gift(Arc<Given>, Rank);

impl AsRef<[u8]> for Gift {
    fn as_ref(&self) -> &[u8] {
        self.0.for_rank(self.1)
    }
}

/// What this rank gave in a call.
struct Own {
    given: Arc<Given>,
    got: BTreeSet<Rank>,
}

/// What comes from another rank in the call under way.
#[derive(Default)]
struct Incoming {
    bytes: Vec<u8>,
    is_whole: bool,
}

/// The calls of one channel.
#[derive(Default)]
pub(super) struct Calls {
    /// The number of the next call.
    next: u32,
    own: BTreeMap<u32, Own>,
    /// What this rank gave in the call under way: all others may have got it before that ends here.
    current: Option<Arc<Given>>,
    /// Who asked for a call that has not been made here, and which.
    early: BTreeMap<Rank, u32>,
    /// What came so far in the call under way.
    incoming: BTreeMap<Rank, Incoming>,
    /// Parts that came in the call under way.
    parts: u64,
}

impl Calls {
    /// Begins a call; with the ranks that have asked for it already.
    pub(super) fn begin(&mut self, given: Given) -> (u32, Vec<Rank>) {
        let call = self.next;
        self.next += 1;
        self.incoming.clear();
        self.parts = 0;
        let given = Arc::new(given);
        self.current = Some(Arc::clone(&given));
        let own = Own {
            given,
            got: BTreeSet::new(),
        };
        self.own.insert(call, own);
        let asked = self.early.iter().filter(|(_, wanted)| **wanted == call);
        let ranks: Vec<Rank> = asked.map(|(rank, _)| *rank).collect();
        for rank in &ranks {
            self.early.remove(rank);
        }
        (call, ranks)
    }

    /// What this rank gave to another one in a call; a question that comes before the call waits for it.
    pub(super) fn asked(&mut self, from: Rank, call: u32) -> Option<Payload> {
        if call >= self.next {
            self.early.insert(from, call);
        }
        let own = self.own.get(&call)?;
        Some(Payload::new(Gift(Arc::clone(&own.given), from)))
    }

    /// A rank has all of what this one gave in a call, and of those before: calls are made in order.
    pub(super) fn got(&mut self, from: Rank, call: u32, others: usize) {
        for (_, own) in self.own.range_mut(..=call) {
            own.got.insert(from);
        }
        self.own.retain(|_, own| own.got.len() < others);
    }

    /// A part came. One that does not follow what is there is dropped, and asked for again.
    pub(super) fn part(&mut self, from: Rank, number: u64, at: u32, bytes: &[u8]) {
        let call = (number >> 32) as u32;
        let total = (number & u64::from(u32::MAX)) as usize;
        if self.next == 0 || call != self.next - 1 || total > GIFT_BYTES_MAX {
            return;
        }
        let incoming = self.incoming.entry(from).or_default();
        if incoming.is_whole {
            return;
        }
        if at == 0 {
            incoming.bytes.clear();
        }
        let after = incoming.bytes.len() + bytes.len();
        if incoming.bytes.len() == at as usize && after <= total {
            incoming.bytes.extend_from_slice(bytes);
            incoming.is_whole = after == total;
            self.parts += 1;
        }
    }

    /// Whose gifts of the call under way are not whole.
    pub(super) fn missing(&self, others: impl Iterator<Item = Rank>) -> Vec<Rank> {
        let is_missing = |rank: &Rank| !self.incoming.get(rank).is_some_and(|one| one.is_whole);
        others.filter(is_missing).collect()
    }

    /// Changes when something of the call under way has come.
    pub(super) fn progress(&self) -> u64 {
        self.parts
    }

    /// All gifts of the call under way, in the order of ranks, once none is missing.
    pub(super) fn end(&mut self, rank: Rank, world: u32) -> Vec<Vec<u8>> {
        let current = self.current.take();
        let mut incoming = std::mem::take(&mut self.incoming);
        let mut gift = |of: Rank| match &current {
            Some(given) if of == rank => given.for_rank(rank).to_vec(),
            _ => incoming.remove(&of).unwrap_or_default().bytes,
        };
        (0..world).map(|of| gift(Rank(of))).collect()
    }

    /// Nothing is given any more.
    pub(super) fn forget(&mut self) {
        self.own.clear();
        self.early.clear();
    }

    /// Ranks that have asked for what is not there yet, or have not got what is, as far as they are among `there`.
    pub(super) fn owes(&self, there: impl Fn(Rank) -> bool, others: &[Rank]) -> bool {
        let waits = |own: &Own| {
            let mut others = others.iter();
            others.any(|rank| there(*rank) && !own.got.contains(rank))
        };
        self.own.values().any(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Rank; 2] = [Rank(1), Rank(2)];

    fn number(call: u64, total: u64) -> u64 {
        call << 32 | total
    }

    #[test]
    fn parts_are_put_together_and_begin_anew_after_a_loss() {
        let mut calls = Calls::default();
        assert_eq!(calls.begin(Given::to_all(vec![9])), (0, vec![]));
        calls.part(Rank(1), number(0, 4), 0, &[1, 2]);
        calls.part(Rank(1), number(0, 4), 3, &[4]);
        assert_eq!(calls.missing(BOTH.into_iter()), BOTH);
        calls.part(Rank(1), number(0, 4), 0, &[5, 6, 7]);
        calls.part(Rank(1), number(0, 4), 3, &[8]);
        calls.part(Rank(2), number(1, 1), 0, &[8]);
        assert_eq!(calls.missing(BOTH.into_iter()), [Rank(2)]);
        calls.part(Rank(2), number(0, 0), 0, &[]);
        assert!(calls.missing(BOTH.into_iter()).is_empty());
        let all = calls.end(Rank(0), 3);
        assert_eq!(all, [vec![9], vec![5, 6, 7, 8], vec![]]);
    }

    #[test]
    fn questions_wait_for_their_call_and_gifts_until_all_have_them() {
        let mut calls = Calls::default();
        assert!(calls.asked(Rank(2), 0).is_none());
        assert_eq!(calls.begin(Given::to_all(vec![7])), (0, vec![Rank(2)]));
        let gift = calls.asked(Rank(1), 0).unwrap();
        assert_eq!(gift.bytes(), [7]);
        calls.got(Rank(1), 0, 2);
        assert!(calls.owes(|_| true, &BOTH));
        assert!(!calls.owes(|rank| rank == Rank(1), &BOTH));
        assert!(calls.asked(Rank(2), 0).is_some());
        calls.got(Rank(2), 0, 2);
        assert!(calls.asked(Rank(2), 0).is_none());
        assert!(!calls.owes(|_| true, &BOTH));
    }
}
