//! The asker's book: which samples were asked of whom, and what became of it.
//!
//! A request is open from [`Asked::ask`] until exactly one of these: it is answered with the sample, it is refused, its rank
//! is given up ([`Asked::expired`]), it alone is ([`Asked::give_up`]), or the asker wants it no more ([`Asked::withdraw`]). Whatever is said of it afterwards
//! is counted as traffic and otherwise ignored, so a late answer can do no harm: what the asker keeps for an attempt (`T`,
//! with the memory it fills) left the book with the first outcome.
//!
//! A rank that let a deadline pass is mute: all that was asked of it is given up at once, and nothing is asked of it until it
//! is heard again, so a dead rank costs one deadline, not one for each sample. Whether it is still mute can be probed
//! ([`Asked::probe`]); nobody waits for that.
//!
//! A sample that was refused once is read from the source and handed to its holder, who then has it; one that is refused
//! again is not asked for any more, as handing over does not help.

use std::collections::BTreeMap;

use foresee_core::ids::{Rank, SampleId};
use foresee_core::units::Bytes;

use crate::transport::{Answer, Ask, Content, Payload, Ticket};

/// After so many refusals a sample is not asked for again in this job.
const REFUSALS_MAX: u32 = 2;

/// A request that is open, or was.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<T> {
    /// Whom it was sent to.
    pub rank: Rank,
    /// What is wanted.
    pub sample: SampleId,
    /// How long it is.
    pub bytes: Bytes,
    /// How often this sample had been refused before.
    pub attempt: u32,
    /// Whether it was asked only to hear whether the rank answers.
    pub is_probe: bool,
    /// What the asker needs to go on.
    pub purpose: T,
}

/// What an answer means.
#[derive(Debug, PartialEq)]
pub enum Answered<T> {
    /// Here it is.
    Came(Request<T>, Payload),
    /// It is to be read from the source.
    Refused {
        /// What was asked.
        request: Request<T>,
        /// Whether it is then handed to the rank that was asked.
        hand_over: bool,
    },
    /// Nobody waits for it.
    Ignored,
}

/// Why a sample is not asked for. It is to be read from the source; what was to be done with it comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum NotAsked<T> {
    /// The rank has not been heard since it let a deadline pass.
    Mute(T),
    /// It was refused too often.
    Refused(T),
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests sent.
    pub asked: u64,
    /// Requests that were answered with their sample.
    pub came: u64,
    /// Requests that were answered without it, and those whose answer was no sample.
    pub refused: u64,
    /// Among the refused: answers of a wrong length.
    pub garbled: u64,
    /// Requests given up because their rank was mute, or slow.
    pub expired: u64,
    /// Requests that were not wanted any more.
    pub withdrawn: u64,
    /// Answers to requests that were not open any more: late, or said twice.
    pub late: u64,
    /// Answers to what was never asked, or not of who answered.
    pub stray: u64,
    /// Bytes of all answers, used or not.
    pub traffic_bytes: u64,
}

/// The book.
#[derive(Debug)]
pub struct Asked<T> {
    /// The ticket of the next request.
    next: u64,
    open: BTreeMap<Ticket, Request<T>>,
    /// Whether each rank is mute.
    mute: Vec<bool>,
    /// The ticket that was next when each rank was heard last.
    heard: Vec<u64>,
    /// How often samples were refused; those that never were are not in it.
    refusals: BTreeMap<SampleId, u32>,
    /// Whether a refusal says nothing of the next time.
    forgives: bool,
    counts: Counts,
}

impl<T> Asked<T> {
    /// Nothing is asked yet of a world of so many ranks.
    pub fn new(ranks: u32) -> Self {
        Self {
            next: 0,
            open: BTreeMap::new(),
            mute: vec![false; ranks as usize],
            heard: vec![0; ranks as usize],
            refusals: BTreeMap::new(),
            forgives: false,
            counts: Counts::default(),
        }
    }

    /// The same where samples are asked for on a guess: one that is refused may be there the next time.
    pub fn guessing(ranks: u32) -> Self {
        Self {
            forgives: true,
            ..Self::new(ranks)
        }
    }

    /// Whether a sample would be asked of a rank now.
    pub fn would_ask(&self, rank: Rank, sample: SampleId) -> bool {
        !self.is_mute(rank) && !self.is_refused(sample)
    }

    /// Opens a request; the caller sends what is returned. What cannot be sent is answered at once, by whoever tried:
    /// [`Asked::refuse`].
    pub fn ask(
        &mut self,
        rank: Rank,
        sample: SampleId,
        bytes: Bytes,
        purpose: T,
    ) -> Result<Ask, NotAsked<T>> {
        if self.is_mute(rank) {
            return Err(NotAsked::Mute(purpose));
        }
        if self.is_refused(sample) {
            return Err(NotAsked::Refused(purpose));
        }
        let request = Request {
            rank,
            sample,
            bytes,
            attempt: self.refusals_of(sample),
            is_probe: false,
            purpose,
        };
        Ok(self.enter(request))
    }

    /// Asks a rank for something although it is mute: its answer, of whatever kind, is a sign of life, and refuses nothing.
    pub fn probe(&mut self, rank: Rank, sample: SampleId, bytes: Bytes, purpose: T) -> Ask {
        self.enter(Request {
            rank,
            sample,
            bytes,
            attempt: self.refusals_of(sample),
            is_probe: true,
            purpose,
        })
    }

    fn enter(&mut self, request: Request<T>) -> Ask {
        let ticket = Ticket(self.next);
        let sample = request.sample;
        self.next += 1;
        self.counts.asked += 1;
        self.open.insert(ticket, request);
        Ask { ticket, sample }
    }

    /// An answer arrived. Whoever sent it is heard by that.
    pub fn answered(&mut self, from: Rank, answer: Answer) -> Answered<T> {
        let Answer { ticket, content } = answer;
        self.heard(from);
        self.counts.traffic_bytes += content.sent_bytes();
        let Some(request) = self.close(from, ticket) else {
            return Answered::Ignored;
        };
        match content {
            Content::Sample(payload) if payload.bytes().len() as u64 == request.bytes.0 => {
                self.counts.came += 1;
                Answered::Came(request, payload)
            }
            Content::Sample(_) => {
                self.counts.garbled += 1;
                self.refused(request)
            }
            Content::Here | Content::InFile(_) | Content::WillNotCome => self.refused(request),
        }
    }

    /// What is wanted by a request that is open at this rank, and how long it is.
    pub fn wanted(&self, from: Rank, ticket: Ticket) -> Option<(SampleId, Bytes)> {
        let request = self.open.get(&ticket)?;
        (request.rank == from).then_some((request.sample, request.bytes))
    }

    /// A request could not be sent: it counts as refused, but neither was the rank heard, nor does it say anything of the
    /// sample, which is asked for again the next time.
    pub fn refuse(&mut self, ticket: Ticket) -> Answered<T> {
        match self.open.remove(&ticket) {
            Some(request) => {
                self.counts.refused += 1;
                let hand_over = false;
                Answered::Refused { request, hand_over }
            }
            None => Answered::Ignored,
        }
    }

    /// The deadline of something asked of a rank passed, or the rank is lost: all that is asked of it is given up, and
    /// nothing is asked of it until it is heard.
    pub fn expired(&mut self, rank: Rank) -> Vec<Request<T>> {
        self.mute[rank.index()] = true;
        let given_up = self.take_open(|request| request.rank == rank);
        self.counts.expired += given_up.len() as u64;
        given_up
    }

    /// A rank was heard, by whatever message. True where it was mute before.
    pub fn heard(&mut self, rank: Rank) -> bool {
        self.heard[rank.index()] = self.next;
        std::mem::replace(&mut self.mute[rank.index()], false)
    }

    /// Whether a rank was heard since a request was opened: then it lives, and waits for the sample itself.
    pub fn is_heard_since(&self, rank: Rank, ticket: Ticket) -> bool {
        self.heard[rank.index()] > ticket.0
    }

    /// Closes the requests that are not wanted any more, as after a move.
    pub fn withdraw(&mut self, unwanted: impl Fn(&Request<T>) -> bool) -> Vec<Request<T>> {
        let withdrawn = self.take_open(unwanted);
        self.counts.withdrawn += withdrawn.len() as u64;
        withdrawn
    }

    /// Closes the requests that are not waited for any longer, though their rank is not mute.
    pub fn give_up(&mut self, overdue: impl Fn(&Request<T>) -> bool) -> Vec<Request<T>> {
        let given_up = self.take_open(overdue);
        self.counts.expired += given_up.len() as u64;
        given_up
    }

    /// Whether nothing is asked of a rank at present because it let a deadline pass.
    pub fn is_mute(&self, rank: Rank) -> bool {
        self.mute[rank.index()]
    }

    /// The requests that are open, oldest first.
    pub fn open(&self) -> impl Iterator<Item = (Ticket, &Request<T>)> {
        self.open.iter().map(|(ticket, request)| (*ticket, request))
    }

    /// How many are open.
    pub fn open_len(&self) -> usize {
        self.open.len()
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn is_refused(&self, sample: SampleId) -> bool {
        self.refusals_of(sample) >= REFUSALS_MAX
    }

    fn refusals_of(&self, sample: SampleId) -> u32 {
        self.refusals.get(&sample).copied().unwrap_or(0)
    }

    /// Takes the request that an answer is for out of the book, if it is open.
    fn close(&mut self, from: Rank, ticket: Ticket) -> Option<Request<T>> {
        match self.open.get(&ticket) {
            Some(request) if request.rank == from => return self.open.remove(&ticket),
            None if ticket.0 < self.next => self.counts.late += 1,
            // Who answers what it was not asked is not believed.
            Some(_) | None => self.counts.stray += 1,
        }
        None
    }

    fn refused(&mut self, request: Request<T>) -> Answered<T> {
        self.counts.refused += 1;
        if request.is_probe || self.forgives {
            let hand_over = false;
            return Answered::Refused { request, hand_over };
        }
        let refusals = self.refusals.entry(request.sample).or_default();
        *refusals += 1;
        let hand_over = *refusals < REFUSALS_MAX;
        Answered::Refused { request, hand_over }
    }

    fn take_open(&mut self, wanted: impl Fn(&Request<T>) -> bool) -> Vec<Request<T>> {
        let tickets: Vec<Ticket> = self
            .open
            .iter()
            .filter(|(_, request)| wanted(request))
            .map(|(ticket, _)| *ticket)
            .collect();
        tickets
            .iter()
            .filter_map(|ticket| self.open.remove(ticket))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANKS: u32 = 3;
    const SAMPLES: u32 = 4;
    const LEN: u64 = 5;

    fn sample(len: u64) -> Content {
        Content::Sample(Payload::new(vec![7; len as usize]))
    }

    fn answer(ticket: Ticket, content: Content) -> Answer {
        Answer { ticket, content }
    }

    /// A book of two ranks with one request, for sample 0 of rank 1.
    fn one_asked() -> (Asked<&'static str>, Ticket) {
        let mut asked = Asked::new(2);
        let ask = asked.ask(Rank(1), SampleId(0), Bytes(LEN), "mine");
        (asked, ask.unwrap().ticket)
    }

    #[test]
    fn a_sample_comes_once_however_often_it_is_sent() {
        let (mut asked, ticket) = one_asked();
        let came = asked.answered(Rank(1), answer(ticket, sample(LEN)));
        assert!(matches!(came, Answered::Came(request, _) if request.purpose == "mine"));
        let again = asked.answered(Rank(1), answer(ticket, sample(LEN)));
        assert_eq!(again, Answered::Ignored);
        let counts = asked.counts();
        assert_eq!([counts.came, counts.late], [1, 1]);
        assert_eq!(counts.traffic_bytes, 2 * LEN);
    }

    #[test]
    fn a_late_answer_is_heard_and_counted_but_not_delivered() {
        let (mut asked, ticket) = one_asked();
        assert_eq!(asked.expired(Rank(1)).len(), 1);
        assert!(asked.is_mute(Rank(1)));
        let late = asked.answered(Rank(1), answer(ticket, sample(LEN)));
        assert_eq!(late, Answered::Ignored);
        assert!(!asked.is_mute(Rank(1)));
    }

    #[test]
    fn a_rank_is_heard_since_a_request_only_if_it_said_something_after_it() {
        let mut asked = Asked::new(2);
        asked.heard(Rank(1));
        let ask = asked.ask(Rank(1), SampleId(0), Bytes(LEN), ()).unwrap();
        assert!(!asked.is_heard_since(Rank(1), ask.ticket));
        asked.heard(Rank(1));
        assert!(asked.is_heard_since(Rank(1), ask.ticket));
    }

    #[test]
    fn one_deadline_gives_up_all_that_is_asked_of_a_rank_and_of_no_other() {
        let mut asked = Asked::new(3);
        for sample in 0..10 {
            let rank = Rank(1 + sample % 2);
            asked.ask(rank, SampleId(sample), Bytes(1), ()).unwrap();
        }
        assert_eq!(asked.expired(Rank(1)).len(), 5);
        assert_eq!(asked.open().count(), 5);
        let more = asked.ask(Rank(1), SampleId(11), Bytes(1), ());
        assert_eq!(more, Err(NotAsked::Mute(())));
        assert!(asked.ask(Rank(2), SampleId(11), Bytes(1), ()).is_ok());
    }

    #[test]
    fn what_is_refused_is_handed_over_once_and_then_not_asked_for_again() {
        let (mut asked, ticket) = one_asked();
        let first = asked.answered(Rank(1), answer(ticket, Content::WillNotCome));
        assert!(matches!(
            first,
            Answered::Refused {
                hand_over: true,
                ..
            }
        ));
        let ask = asked.ask(Rank(1), SampleId(0), Bytes(LEN), "again");
        let will_not = answer(ask.unwrap().ticket, Content::WillNotCome);
        let second = asked.answered(Rank(1), will_not);
        assert!(
            matches!(second, Answered::Refused { hand_over: false, request } if request.attempt == 1)
        );
        let third = asked.ask(Rank(1), SampleId(0), Bytes(LEN), "once more");
        assert_eq!(third, Err(NotAsked::Refused("once more")));
        assert!(!asked.would_ask(Rank(1), SampleId(0)));
        assert!(asked.would_ask(Rank(1), SampleId(1)));
    }

    #[test]
    fn what_could_not_be_sent_is_asked_for_again_however_often() {
        let (mut asked, ticket) = one_asked();
        let mut unsent = ticket;
        for _ in 0..=REFUSALS_MAX {
            let said = asked.refuse(unsent);
            let is_read = matches!(said, Answered::Refused { hand_over, .. } if !hand_over);
            assert!(is_read);
            let again = asked.ask(Rank(1), SampleId(0), Bytes(LEN), "again");
            unsent = again.unwrap().ticket;
        }
    }

    #[test]
    fn an_answer_of_another_length_is_no_sample() {
        let (mut asked, ticket) = one_asked();
        let garbled = asked.answered(Rank(1), answer(ticket, sample(LEN + 1)));
        assert!(matches!(garbled, Answered::Refused { .. }));
        assert_eq!(asked.counts().garbled, 1);
    }

    #[test]
    fn who_answers_what_it_was_not_asked_is_not_believed() {
        let (mut asked, ticket) = one_asked();
        let other = asked.answered(Rank(0), answer(ticket, sample(LEN)));
        assert_eq!(other, Answered::Ignored);
        let unknown = asked.answered(Rank(1), answer(Ticket(99), sample(LEN)));
        assert_eq!(unknown, Answered::Ignored);
        assert_eq!(asked.counts().stray, 2);
        assert_eq!(asked.open().count(), 1);
    }

    /// What can happen to a book.
    #[derive(Clone, Debug)]
    enum Step {
        Ask(u32, u32),
        /// By whom, to which of the tickets given out so far (or one beyond), with how many bytes or none.
        Answer(u32, usize, Option<u64>),
        Unsent(usize),
        Expire(u32),
        Hear(u32),
        Withdraw(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let content = prop_oneof![Just(Some(LEN)), Just(Some(LEN - 1)), Just(None)];
        let step = prop_oneof![
            4 => (0..RANKS, 0..SAMPLES).prop_map(|(rank, sample)| Step::Ask(rank, sample)),
            4 => (0..RANKS, 0..20_usize, content).prop_map(|(rank, of, len)| Step::Answer(rank, of, len)),
            1 => (0..20_usize).prop_map(Step::Unsent),
            1 => (0..RANKS).prop_map(Step::Expire),
            1 => (0..RANKS).prop_map(Step::Hear),
            1 => (0..SAMPLES).prop_map(Step::Withdraw),
        ];
        prop::collection::vec(step, 0..80)
    }

    /// The same by looking through all that ever happened.
    #[derive(Default)]
    struct Naive {
        /// By ticket: whom, what, and whether it is open.
        requests: Vec<(u32, u32, bool)>,
        refused: Vec<u32>,
        mute: Vec<u32>,
    }

    impl Naive {
        fn refusals(&self, sample: u32) -> usize {
            self.refused.iter().filter(|one| **one == sample).count()
        }

        fn close(&mut self, gone: impl Fn(u32, u32) -> bool) -> Vec<usize> {
            let mut closed = Vec::new();
            for (ticket, (rank, sample, open)) in self.requests.iter_mut().enumerate() {
                if *open && gone(*rank, *sample) {
                    *open = false;
                    closed.push(ticket);
                }
            }
            closed
        }

        /// Whether an answer counts, and then what it is for.
        fn answer(&mut self, from: u32, ticket: usize) -> Option<u32> {
            self.mute.retain(|rank| *rank != from);
            let (rank, sample, open) = self.requests.get_mut(ticket)?;
            let counts = *open && *rank == from;
            *open &= !counts;
            counts.then_some(*sample)
        }
    }

    fn purposes(requests: Vec<Request<usize>>) -> Vec<usize> {
        requests.into_iter().map(|one| one.purpose).collect()
    }

    /// Does a step in both, and compares what they say.
    fn step(asked: &mut Asked<usize>, naive: &mut Naive, step: &Step) {
        match *step {
            Step::Ask(rank, sample) => {
                let ticket = naive.requests.len();
                let is_mute = naive.mute.contains(&rank);
                let is_refused = naive.refusals(sample) >= 2;
                let made = asked.ask(Rank(rank), SampleId(sample), Bytes(LEN), ticket);
                assert_eq!(made.is_ok(), !is_mute && !is_refused);
                if let Ok(ask) = made {
                    assert_eq!(ask.ticket, Ticket(ticket as u64));
                    naive.requests.push((rank, sample, true));
                }
            }
            Step::Answer(from, ticket, len) => {
                let content = len.map_or(Content::WillNotCome, sample);
                let said = asked.answered(Rank(from), answer(Ticket(ticket as u64), content));
                let expected = naive.answer(from, ticket);
                match said {
                    Answered::Came(request, payload) => {
                        assert_eq!(Some(request.sample.0), expected);
                        assert_eq!(request.purpose, ticket);
                        assert_eq!(payload.bytes().len() as u64, LEN);
                        assert_eq!(len, Some(LEN));
                    }
                    Answered::Refused { request, hand_over } => {
                        assert_eq!(Some(request.sample.0), expected);
                        assert_ne!(len, Some(LEN));
                        assert_eq!(hand_over, naive.refusals(request.sample.0) == 0);
                        naive.refused.push(request.sample.0);
                    }
                    Answered::Ignored => assert_eq!(expected, None),
                }
            }
            Step::Unsent(ticket) => {
                let of = naive.requests.get(ticket).copied();
                let said = asked.refuse(Ticket(ticket as u64));
                match (said, of) {
                    (Answered::Refused { request, .. }, Some((_, sample, true))) => {
                        assert_eq!(request.sample.0, sample);
                        naive.requests[ticket].2 = false;
                    }
                    (said, of) => {
                        assert_eq!(said, Answered::Ignored);
                        assert!(of.is_none_or(|(_, _, open)| !open));
                    }
                }
            }
            Step::Expire(rank) => {
                let given_up = purposes(asked.expired(Rank(rank)));
                assert_eq!(given_up, naive.close(|of, _| of == rank));
                naive.mute.push(rank);
            }
            Step::Hear(rank) => {
                let was_mute = naive.mute.contains(&rank);
                naive.mute.retain(|one| *one != rank);
                assert_eq!(asked.heard(Rank(rank)), was_mute);
            }
            Step::Withdraw(sample) => {
                let withdrawn = purposes(asked.withdraw(|one| one.sample.0 == sample));
                assert_eq!(withdrawn, naive.close(|_, of| of == sample));
            }
        }
    }

    proptest! {
        #[test]
        fn says_what_a_look_through_all_that_happened_says(steps in steps()) {
            let mut asked = Asked::new(RANKS);
            let mut naive = Naive::default();
            for one in &steps {
                step(&mut asked, &mut naive, one);
                let open: Vec<usize> = asked.open().map(|(_, request)| request.purpose).collect();
                let expected: Vec<usize> = (0..naive.requests.len()).filter(|&of| naive.requests[of].2).collect();
                prop_assert_eq!(open, expected);
            }
            // Each request ends once, or is open.
            let counts = asked.counts();
            let ended = counts.came + counts.refused + counts.expired + counts.withdrawn;
            prop_assert_eq!(counts.asked, ended + asked.open().count() as u64);
        }
    }
}
