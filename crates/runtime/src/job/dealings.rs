//! A rank's dealings with its peers, behind the job's lock: the books of what is asked and what is parked, what is to be
//! sent, who is heard, who is done, and what happened. `peers` is the asker's side of it, `holding` the holder's.
//!
//! Nothing is sent, and no tier is read, with the lock: what is to be done is noted ([`Errand`]) and done after unlocking, by
//! whoever changed the state (`serving`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_core::engine::Read;
use foresee_core::ids::{Rank, SampleId, TierId};
use foresee_core::units::Bytes;

use super::outbox::Outbox;
use super::peer_stats::{Faults, FetchTimes, Moved, PeerStats, Report};
use super::slots::Decoded;
use super::stores::Stores;
use crate::peers::{Asked, NotAsked, Parked, Waiting as Parker};
use crate::transport::{Answer, Content, Done, HandOver, Message};

/// Requests of one peer that wait here at most.
const PARKED_MAX: usize = 1 << 16;

/// However slow a rank is known to be, what it brings is waited for at least so long: about what an answer takes.
const PATIENCE_MIN: Duration = Duration::from_millis(10);

/// A rank that was slow is taken to be so for as many deadlines.
const SLOW_FOR: u32 = 8;

/// A mute rank is asked again after one deadline, then after twice that, and so on, up to so many times.
const BACK_OFF_MAX: u32 = 16;

/// What a request is for.
pub(super) enum Purpose {
    /// A slot whose sample is awaited.
    Awaited { slot: u64 },
    /// A slot whose sample is at its home.
    AtHome {
        slot: u64,
        read: Read,
        part: Option<Decoded>,
    },
    /// To hear whether a mute rank answers again. Nobody waits for it.
    Probe,
}

impl Purpose {
    pub(super) fn slot(&self) -> Option<u64> {
        match self {
            Self::Awaited { slot } | Self::AtHome { slot, .. } => Some(*slot),
            Self::Probe => None,
        }
    }
}

/// What a request is for, and since when it is open.
pub(super) struct Wanted {
    pub(super) at: Instant,
    pub(super) purpose: Purpose,
}

/// What is to be done for peers when the lock is free.
pub(super) enum Errand {
    /// Say this.
    Send(Rank, Message),
    /// Answer with what a tier holds.
    Serve {
        to: Parker,
        sample: SampleId,
        tier: TierId,
    },
}

/// What is known of another rank.
pub(super) struct Peer {
    /// When it was heard last; to begin with, when the job started.
    heard: Instant,
    /// How often it was too slow lately, although it was heard, and when last.
    slow: (u32, Instant),
    /// From when on it may be asked again, if it is mute, and after how many deadlines then.
    probe: (Instant, u32),
    /// Whether it cannot be reached.
    is_lost: bool,
    /// Whether its stream has ended.
    is_done: bool,
    /// What it said of it, if that could be read.
    report: Option<Report>,
    pub(super) faults: Faults,
}

/// What time it is. In tests it may be ahead.
#[derive(Clone, Default)]
pub(super) struct Clock {
    #[cfg(test)]
    ahead_s: Option<Arc<std::sync::atomic::AtomicU64>>,
}

impl Clock {
    /// Ahead of all other clocks by as many seconds as that says.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn ahead(ahead_s: Arc<std::sync::atomic::AtomicU64>) -> Self {
        Self {
            ahead_s: Some(ahead_s),
        }
    }

    #[cfg_attr(
        not(test),
        expect(clippy::unused_self, reason = "only tests have another time")
    )]
    pub(super) fn now(&self) -> Instant {
        #[cfg(test)]
        if let Some(ahead_s) = &self.ahead_s {
            let ahead_s = ahead_s.load(std::sync::atomic::Ordering::Relaxed);
            return Instant::now() + Duration::from_secs(ahead_s);
        }
        Instant::now()
    }
}

/// A rank's dealings with its peers.
pub(super) struct Dealings {
    pub(super) clock: Clock,
    pub(super) rank: Rank,
    /// How long a trainer stands at a sample that is to come from a peer.
    deadline: Duration,
    pub(super) asked: Asked<Wanted>,
    pub(super) parked: Parked,
    /// Samples that live here and will not come before they are read here.
    pub(super) missing: BTreeSet<SampleId>,
    pub(super) errands: Vec<Errand>,
    /// By rank; this one's own is never heard.
    pub(super) peers: Vec<Peer>,
    /// What is on its way to homes.
    pub(super) outbox: Arc<Outbox>,
    /// Since when this rank's own stream is over.
    pub(super) done_since: Option<Instant>,
    /// What it said of it then.
    done: Done,
    pub(super) times: FetchTimes,
    /// Requests that waited here, and requests that were refused here.
    pub(super) parked_here: u64,
    pub(super) refused_here: u64,
    /// What others handed over to this rank.
    pub(super) received: Moved,
}

impl Dealings {
    /// Of this rank, with so many in all.
    pub(super) fn new((rank, ranks): (Rank, u32), deadline: Duration, outbox: Arc<Outbox>) -> Self {
        let now = Instant::now();
        let peer = |_| Peer {
            heard: now,
            slow: (0, now),
            probe: (now, 1),
            is_lost: false,
            is_done: false,
            report: None,
            faults: Faults::default(),
        };
        Self {
            clock: Clock::default(),
            rank,
            deadline,
            asked: Asked::new(ranks),
            parked: Parked::new(ranks, PARKED_MAX),
            missing: BTreeSet::new(),
            errands: Vec::new(),
            peers: (0..ranks).map(peer).collect(),
            outbox,
            done_since: None,
            done: Done { report: Vec::new() },
            times: FetchTimes::default(),
            parked_here: 0,
            refused_here: 0,
            received: Moved::default(),
        }
    }

    pub(super) fn send(&mut self, to: Rank, message: Message) {
        self.errands.push(Errand::Send(to, message));
    }

    pub(super) fn refuse(&mut self, to: Parker) {
        self.refused_here += 1;
        let answer = Answer {
            ticket: to.ticket,
            content: Content::WillNotCome,
        };
        self.send(to.rank, Message::Answer(answer));
    }

    /// Tells who is to bring a sample here that it need not: somebody else did.
    pub(super) fn need_not_bring(&mut self, bringer: Rank, sample: SampleId) {
        let content = Content::WillNotCome;
        self.send(
            bringer,
            Message::HandOver(HandOver::unstamped(sample, content)),
        );
    }

    /// Asks a rank for a sample. Who is mute is not asked, but now and then whether it still is.
    pub(super) fn ask(
        &mut self,
        rank: Rank,
        sample: SampleId,
        bytes: Bytes,
        purpose: Purpose,
    ) -> Result<(), Purpose> {
        let at = self.clock.now();
        match self.asked.ask(rank, sample, bytes, Wanted { at, purpose }) {
            Ok(ask) => {
                self.send(rank, Message::Ask(ask));
                Ok(())
            }
            Err(NotAsked::Mute(wanted)) => {
                self.probe(rank, sample, bytes, at);
                Err(wanted.purpose)
            }
            Err(NotAsked::Refused(wanted)) => Err(wanted.purpose),
        }
    }

    /// Asks a mute rank once more, if it is time: it may have nothing to say by itself.
    fn probe(&mut self, rank: Rank, sample: SampleId, bytes: Bytes, now: Instant) {
        let Peer { probe, .. } = &mut self.peers[rank.index()];
        if now < probe.0 {
            return;
        }
        let (_, deadlines) = *probe;
        *probe = (
            now + self.deadline * deadlines,
            (deadlines * 2).min(BACK_OFF_MAX),
        );
        let purpose = Purpose::Probe;
        let ask = self
            .asked
            .probe(rank, sample, bytes, Wanted { at: now, purpose });
        self.send(rank, Message::Ask(ask));
    }

    /// An answer that says that a sample lies in memory of this host, with the sample; or that it is not there after all.
    pub(super) fn looked_up(&self, from: Rank, answer: Answer, stores: &Stores) -> Answer {
        let Answer { ticket, content } = answer;
        if content != Content::Here {
            return Answer { ticket, content };
        }
        let wanted = self.asked.wanted(from, ticket);
        let near = wanted.and_then(|(sample, bytes)| stores.near(from, sample, bytes));
        let content = near.map_or(Content::WillNotCome, Content::Sample);
        Answer { ticket, content }
    }

    /// A rank was heard, by whatever message.
    pub(super) fn heard(&mut self, from: Rank) {
        self.asked.heard(from);
        let now = self.clock.now();
        let peer = &mut self.peers[from.index()];
        peer.heard = now;
        peer.is_lost = false;
    }

    /// How long the trainer stands at something that is to come from a rank. A rank that was too slow again and again is not
    /// waited for as long: who reads in its stead tells it so, and nothing is read twice.
    pub(super) fn patience(&self, rank: Rank) -> Duration {
        let (times, last) = self.peers[rank.index()].slow;
        let is_over = self.clock.now() > last + self.deadline * SLOW_FOR;
        self.shortened(if is_over { 0 } else { times })
    }

    /// The deadline, halved so often.
    fn shortened(&self, times: u32) -> Duration {
        let least = PATIENCE_MIN.min(self.deadline);
        (self.deadline / 2_u32.pow(times.min(16))).max(least)
    }

    /// How long the trainer stands at something that nobody is known to bring, when that happened so often before.
    pub(super) fn patience_with_nobody(&self, forsaken: u32) -> Duration {
        self.shortened(forsaken)
    }

    /// A rank let its deadline pass; whether it is slow, not silent: it was heard since.
    pub(super) fn is_slow(&mut self, rank: Rank) -> bool {
        let deadline = self.deadline;
        let now = self.clock.now();
        let peer = &mut self.peers[rank.index()];
        let is_alive = !peer.is_lost && now < peer.heard + deadline;
        if is_alive {
            let is_over = now > peer.slow.1 + deadline * SLOW_FOR;
            let times = if is_over { 0 } else { peer.slow.0 };
            peer.slow = (times + 1, now);
            peer.faults.slow += 1;
        }
        is_alive
    }

    /// A rank is mute, or lost: it is asked again later.
    pub(super) fn falls_silent(&mut self, rank: Rank, is_lost: bool) {
        let next = self.clock.now() + self.deadline;
        let was_mute = self.asked.is_mute(rank);
        let peer = &mut self.peers[rank.index()];
        peer.is_lost |= is_lost;
        if is_lost {
            // Who is done leaves, and that is no fault.
            peer.faults.lost += u64::from(!peer.is_done);
        } else if !was_mute {
            peer.faults.mute += 1;
        }
        peer.probe = (next, 2);
    }

    /// Holders make nobody wait, and refuse what they do not have yet.
    #[must_use]
    pub(super) fn guessing(mut self) -> Self {
        self.asked = Asked::guessing(self.peers.len() as u32);
        self
    }

    /// Nothing that was asked is wanted any more, and nobody here is served: the job moves, or ends.
    pub(super) fn break_off(&mut self) {
        drop(self.asked.withdraw(|_| true));
        for parked in self.parked.take_all() {
            self.refuse(parked);
        }
        self.missing.clear();
    }

    /// This rank's stream is over: all others are told, once.
    pub(super) fn finish(&mut self, report: &Report) {
        if self.done_since.is_some() {
            return;
        }
        self.done_since = Some(Instant::now());
        self.done.report = serde_json::to_vec(report).unwrap_or_default();
        let own = self.rank;
        let others = (0..self.peers.len() as u32).map(Rank);
        for rank in others.filter(|rank| *rank != own) {
            self.send(rank, Message::Done(self.done.clone()));
        }
    }

    /// A rank that was lost is there again. That this rank's stream is over may have been lost with it: then it would be
    /// waited for.
    pub(super) fn found(&mut self, rank: Rank) {
        self.heard(rank);
        if self.done_since.is_some() {
            self.send(rank, Message::Done(self.done.clone()));
        }
    }

    /// Another rank's stream is over.
    pub(super) fn finished(&mut self, from: Rank, report: &[u8]) {
        self.heard(from);
        let report = serde_json::from_slice::<Report>(report).ok();
        // Who says it is another is not believed.
        let report = report.filter(|report| report.rank == from.0);
        let peer = &mut self.peers[from.index()];
        peer.is_done = true;
        peer.report = report;
    }

    /// Whether some rank may still want something of this one: it is neither done nor lost.
    pub(super) fn is_needed(&self) -> bool {
        let own = self.rank.index();
        let mut others = self
            .peers
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != own);
        others.any(|(_, peer)| !peer.is_done && !peer.is_lost)
    }

    /// What each rank did that is done, and this one, which says so here.
    pub(super) fn reports(&self, own: &Report) -> Vec<Report> {
        let others = self.peers.iter().enumerate();
        let others = others.filter(|(rank, _)| *rank != self.rank.index());
        let told = others.filter_map(|(_, peer)| peer.report.clone());
        told.chain([own.clone()]).collect()
    }

    /// What happened so far, but for what others got from here.
    pub(super) fn stats(&self) -> PeerStats {
        let counts = self.asked.counts();
        let mut stats = PeerStats {
            asked: counts.asked,
            came: counts.came,
            refused: counts.refused,
            expired: counts.expired,
            withdrawn: counts.withdrawn,
            late: counts.late,
            traffic_bytes: counts.traffic_bytes,
            fetch: self.times.summed(),
            parked: self.parked_here,
            refused_here: self.refused_here,
            received: self.received,
            ..PeerStats::default()
        };
        for (rank, peer) in self.peers.iter().enumerate() {
            stats.blame(rank as u32, peer.faults);
        }
        stats
    }
}
