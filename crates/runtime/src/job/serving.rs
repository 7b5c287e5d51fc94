//! What a job does for its peers without its lock: sending what its dealings with them have to say (`peers`), reading tiers
//! for them, and taking in what they send. Nothing is decided here but what only a look into a tier can tell. What touches a
//! disk is left to a thread of its own (`chores`), whoever it is that comes upon it.

use std::sync::{Arc, Weak};

use foresee_core::homes::Home;
use foresee_core::ids::{Rank, SampleId, TierId};
use foresee_core::units::Bytes;

use super::chores::Chore;
use super::dealings::Errand;
use super::holding::HandedOver;
use super::outbox::Unsent;
use super::peer_stats::Moved;
use super::post::Posted;
use super::shared::Shared;
use crate::arena::Block;
use crate::peers::Waiting as Parker;
use crate::stamp::Stamp;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tier::{Arrived, Found, Shared as Shares, Stay, Tier};
use crate::transport::{Answer, Content, HandOver, Message, Payload, Receive};

/// A peer that has asked for less is served from disks, however small this rank's staging buffer is: its own may be larger.
const COPIED_LEAST_BYTES: u64 = 64 << 20;

/// A sample that was read in the source and lives elsewhere.
#[derive(Clone, Copy)]
pub(super) struct FromSource<'a> {
    /// Where it lies, if that is in the job's memory.
    pub(super) block: Option<&'a Arc<Block>>,
    pub(super) bytes: &'a [u8],
    /// What it was in the source.
    pub(super) stamp: Option<Stamp>,
}

/// A block as it is sent.
struct Sendable(Arc<Block>);

impl AsRef<[u8]> for Sendable {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Samples that peers got from here, and their bytes.
pub(super) struct Served {
    samples: AtomicU64,
    bytes: AtomicU64,
    /// Bytes that were read from a disk for a peer, and that it has not taken yet, by rank.
    copied: Vec<Arc<AtomicU64>>,
    /// Beyond so many a peer is refused: it asks for more than it can have staged.
    copied_most: u64,
}

impl Served {
    /// Among so many ranks, that ask for no more than they stage: about as much as this one, in samples of so many bytes at
    /// most.
    pub(super) fn new(ranks: u32, staging_bytes: u64, largest_bytes: u64) -> Self {
        Self {
            samples: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            copied: (0..ranks).map(|_| Arc::default()).collect(),
            copied_most: staging_bytes
                .max(COPIED_LEAST_BYTES)
                .saturating_add(largest_bytes),
        }
    }

    fn add(&self, bytes: usize) {
        if bytes > 0 {
            self.samples.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn so_far(&self) -> Moved {
        Moved {
            samples: self.samples.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    /// Memory for a sample that is read for a peer; none where that has not taken what it asked for before.
    fn memory(&self, to: Rank, bytes: u64) -> Option<Copied> {
        let out = Arc::clone(self.copied.get(to.index())?);
        let before = out.fetch_add(bytes, Ordering::Relaxed);
        let mut copied = Copied {
            out,
            bytes: Vec::new(),
            charged: bytes,
        };
        // One may always be on its way.
        if before > 0 && before.saturating_add(bytes) > self.copied_most {
            return None;
        }
        copied.bytes = vec![0; bytes as usize];
        Some(copied)
    }
}

/// A sample that was read for a peer, charged until it is sent.
struct Copied {
    out: Arc<AtomicU64>,
    bytes: Vec<u8>,
    charged: u64,
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.out.fetch_sub(self.charged, Ordering::Relaxed);
    }
}

/// Bytes that were read, for a peer: the trainer, who may change them, has them too, unless they are kept.
fn payload(block: Option<&Arc<Block>>, bytes: &[u8]) -> Payload {
    match block.filter(|block| block.is_kept()) {
        Some(kept) => Payload::new(Sendable(Arc::clone(kept))),
        None => Payload::new(bytes.to_vec()),
    }
}

impl Shared {
    /// Does what is to be done for peers, without the lock.
    pub(super) fn dispatch(&self, errands: Vec<Errand>) {
        for errand in errands {
            match errand {
                Errand::Send(to, message) => self.say(to, message),
                Errand::Serve { to, sample, tier } => self.serve(to, sample, tier),
            }
        }
    }

    /// Answers with what a tier holds, now or when its disk has been read.
    fn serve(&self, to: Parker, sample: SampleId, tier: TierId) {
        if !self.is_on_disk(tier) {
            let content = self.content(to.rank, sample, tier);
            self.answer(to, content);
        } else if self.put_off(Chore::Serve { to, sample, tier }).is_err() {
            self.answer(to, Content::WillNotCome);
        }
    }

    fn answer(&self, to: Parker, content: Content) {
        self.served.add(content.len());
        let ticket = to.ticket;
        self.say(to.rank, Message::Answer(Answer { ticket, content }));
    }

    fn is_on_disk(&self, tier: TierId) -> bool {
        self.stores.tier(tier).writes_files()
    }

    /// Leaves something to the thread that may wait for disks; what it does not take is given back.
    fn put_off(&self, chore: Chore) -> Result<(), Chore> {
        let patience = self.spec.config.peers.deadline;
        self.chores.add(chore, patience, &self.own)
    }

    /// Does what may wait for a disk.
    pub(super) fn do_chore(&self, chore: Chore) {
        match chore {
            Chore::Serve { to, sample, tier } => {
                let content = self.content(to.rank, sample, tier);
                self.answer(to, content);
            }
            Chore::Fetch { from, answer } => {
                let answer = self.read_file(from, answer);
                self.answered(from, answer);
            }
            Chore::Keep { from, handed } => self.keep_handed_over(from, &handed),
        }
    }

    fn answered(&self, from: Rank, answer: Answer) {
        self.change(|state| ((), state.answered(from, answer, &self.stores)));
    }

    /// Says something to a rank, now or soon.
    fn say(&self, to: Rank, message: Message) {
        let Some(post) = &self.post else {
            return;
        };
        let is_kept = matches!(message, Message::Ask(_));
        let kept = is_kept.then(|| message.clone());
        if let (Posted::Not(_), Some(message)) = (post.send(to, message, &self.own), kept) {
            self.not_sent(message);
        }
    }

    /// A message will not be sent: its rank is gone. An answer that is lost is one that does not come: the asker has a deadline.
    pub(super) fn not_sent(&self, message: Message) {
        match message {
            Message::Ask(ask) => {
                self.change(|state| ((), state.not_sent(ask.ticket, &self.stores)));
            }
            Message::HandOver(handed) => {
                if handed.content != Content::WillNotCome {
                    self.outbox.drop_one(Unsent::Gone);
                }
            }
            Message::Answer(_) | Message::Done(_) => {}
        }
    }

    /// What a tier holds of a sample, to be sent. What it holds from before must still be what the source has.
    fn content(&self, to: Rank, sample: SampleId, tier: TierId) -> Content {
        let tier = self.stores.tier(tier);
        if !self.reader.is_known(tier, sample) {
            return Content::WillNotCome;
        }
        match tier.share(sample) {
            Shares::Block(block) if self.sees(to) && block.publish(sample) => Content::Here,
            Shares::Block(block) => Content::Sample(Payload::new(Sendable(block))),
            Shares::NotHeld => Content::WillNotCome,
            Shares::Never => self.content_of_file(to, sample, tier),
        }
    }

    /// What a tier on disk holds of a sample. A rank of this host reads it itself, or gets it through memory.
    fn content_of_file(&self, to: Rank, sample: SampleId, tier: &dyn Tier) -> Content {
        let is_near = self.sees(to);
        if let Some(at) = tier.in_file(sample).filter(|_| is_near) {
            return Content::InFile(at);
        }
        let size = self.spec.catalog.size(sample).0;
        let Some(mut copied) = self.served.memory(to, size) else {
            return Content::WillNotCome;
        };
        match tier.read(sample, &mut copied.bytes) {
            Ok(Found::Yes) => {}
            Ok(Found::NotHeld) | Err(_) => return Content::WillNotCome,
        }
        // It is on its way to no home, and nobody says when it was fetched: that must not hold up what is.
        self.left.expire();
        match self.left_for(to, sample, None, &copied.bytes) {
            Some(left) => {
                self.left.put(to, sample, left, None);
                Content::Here
            }
            None => Content::Sample(Payload::new(copied)),
        }
    }

    /// Takes in an answer, now or when it has been read from the file that it names.
    fn take_answer(&self, from: Rank, answer: Answer) {
        if !matches!(answer.content, Content::InFile(_)) {
            self.answered(from, answer);
        } else if let Err(Chore::Fetch { from, answer }) =
            self.put_off(Chore::Fetch { from, answer })
        {
            let content = Content::WillNotCome;
            self.answered(from, Answer { content, ..answer });
        }
    }

    /// The answer of a rank of this host that told in which file a sample lies, with the sample.
    fn read_file(&self, from: Rank, answer: Answer) -> Answer {
        let Answer { ticket, content } = answer;
        let Content::InFile(at) = content else {
            return Answer { ticket, content };
        };
        let neighbours = self.stores.arena.neighbours();
        let is_near = neighbours.is_some_and(|neighbours| neighbours.has(from));
        let wanted = self.look(|state| {
            let dealings = state.dealings.as_ref()?;
            dealings.asked.wanted(from, ticket)
        });
        let read = wanted.filter(|_| is_near).and_then(|(_, bytes)| {
            let read = self.files.read(&at, bytes.0 as usize);
            read.ok().flatten()
        });
        let content = read.map_or(Content::WillNotCome, |bytes| {
            Content::Sample(Payload::of_file(bytes))
        });
        Answer { ticket, content }
    }

    /// Hands a sample that was read to its home. What there is no room for is not sent: the home need not wait for it.
    pub(super) fn hand_over(&self, home: Home, sample: SampleId, read: &FromSource<'_>) {
        let FromSource {
            block,
            bytes,
            stamp,
        } = *read;
        let Some(post) = &self.post else {
            return;
        };
        self.left.expire();
        let Some(room) = self.outbox.room(bytes.len()) else {
            self.will_not_come(home, sample);
            return;
        };
        let content = match self.left_for(home.rank, sample, block, bytes) {
            Some(left) => {
                self.left.put(home.rank, sample, left, Some(room));
                Content::Here
            }
            None => Content::Sample(room.fill(payload(block, bytes))),
        };
        let message = Message::HandOver(HandOver {
            sample,
            content,
            stamp,
        });
        match post.send(home.rank, message, &self.own) {
            Posted::Taken => self.outbox.sent_one(bytes.len()),
            Posted::Not(why) => {
                self.left.forget(home.rank, sample);
                self.outbox.drop_one(why);
            }
        }
    }

    /// Whether a rank has this one's memory before it.
    fn sees(&self, rank: Rank) -> bool {
        self.stores.arena.is_seen_by(rank)
    }

    /// Leaves a sample where its home can fetch it; none where that is on another host, or there is no room.
    fn left_for(
        &self,
        home: Rank,
        sample: SampleId,
        block: Option<&Arc<Block>>,
        bytes: &[u8],
    ) -> Option<Arc<Block>> {
        if !self.sees(home) {
            return None;
        }
        let kept = block.filter(|block| block.is_kept()).cloned();
        let left = kept.or_else(|| self.stores.arena.leave_copy(bytes))?;
        left.publish(sample).then_some(left)
    }

    /// Tells a sample's home not to wait for it. If that is lost, too, there are deadlines.
    pub(super) fn will_not_come(&self, home: Home, sample: SampleId) {
        let content = Content::WillNotCome;
        self.say(
            home.rank,
            Message::HandOver(HandOver::unstamped(sample, content)),
        );
    }

    /// Takes in what was handed over, now or when there is a disk for it.
    fn take_in(&self, from: Rank, handed: HandOver) {
        let HandOver {
            sample, content, ..
        } = &handed;
        if sample.0 >= self.spec.catalog.len() {
            return;
        }
        let home = self.look(|state| state.home_here(*sample));
        let is_on_disk = home.is_some_and(|tier| self.is_on_disk(tier));
        if !is_on_disk || *content == Content::WillNotCome {
            self.keep_handed_over(from, &handed);
        } else if let Err(Chore::Keep { from, handed }) = self.put_off(Chore::Keep { from, handed })
        {
            self.refuse_handed_over(from, &handed);
        }
    }

    /// What a disk does not take is not there, as if its reader could not read it.
    fn refuse_handed_over(&self, from: Rank, handed: &HandOver) {
        let sample = handed.sample;
        let refused = HandOver::unstamped(sample, Content::WillNotCome);
        self.keep_handed_over(from, &refused);
        if handed.content == Content::Here {
            self.say_fetched(from, sample);
        }
    }

    /// The reader of a sample that it left here for its home need not keep it any longer.
    fn say_fetched(&self, from: Rank, sample: SampleId) {
        let fetched = HandOver::unstamped(sample, Content::Here);
        self.say(from, Message::HandOver(fetched));
    }

    fn keep_handed_over(&self, from: Rank, handed: &HandOver) {
        let HandOver {
            sample, content, ..
        } = handed;
        let sample = *sample;
        let here = self.look(|state| state.home_here(sample));
        let Some(number) = here else {
            match content {
                Content::WillNotCome => {
                    self.change(|state| ((), state.need_not_bring(from, sample)));
                }
                // It has been fetched.
                Content::Here => self.left.forget(from, sample),
                Content::Sample(_) | Content::InFile(_) => {}
            }
            return;
        };
        let is_here = self.look(|state| state.course.desk.is_here(sample, number));
        let is_read = *content != Content::WillNotCome;
        // What lies here from before may be of another time, and was refused for that: what was read just now takes its place,
        // or it would be read again by who uses it here.
        let tier = self.stores.tier(number);
        let is_doubtful = self.reader.doubts(tier, sample);
        // Nor does anybody read in the source what lies here whole.
        let is_replaced = || is_read && (is_doubtful || self.is_damaged(tier, sample));
        if !is_here || is_replaced() {
            self.keep_at_home(from, handed, number);
        }
        if *content == Content::Here {
            self.say_fetched(from, sample);
        }
    }

    /// Whether a disk has other bytes of a sample than were put there; the tier lets go of it then.
    fn is_damaged(&self, tier: &dyn Tier, sample: SampleId) -> bool {
        if !tier.writes_files() {
            return false;
        }
        let mut bytes = vec![0; self.spec.catalog.size(sample).0 as usize];
        let read = tier.read(sample, &mut bytes);
        !matches!(read, Ok(Found::Yes))
    }

    /// Keeps a sample that lives here.
    fn keep_at_home(&self, from: Rank, handed: &HandOver, number: TierId) {
        let HandOver {
            sample,
            content,
            stamp,
        } = handed;
        let sample = *sample;
        let tier = self.stores.tier(number);
        let expected = self.spec.catalog.size(sample).0;
        let content = match content {
            Content::Here => {
                let near = self.stores.near(from, sample, Bytes(expected));
                near.map_or(Content::WillNotCome, Content::Sample)
            }
            other => other.clone(),
        };
        let kept = match &content {
            Content::Sample(payload) if payload.bytes().len() as u64 == expected => {
                let arrived = Arrived::Buffer(payload.bytes());
                let secured = tier.secure(arrived, Stay::Lasting);
                let kept = tier.keep_secured(sample, arrived, secured, *stamp);
                // Its reader had it from the source, in this job.
                self.reader.is_kept(sample, kept)
            }
            Content::Sample(_) | Content::Here | Content::InFile(_) | Content::WillNotCome => false,
        };
        let handed = HandedOver {
            from,
            sample,
            tier: number,
            kept: kept.then_some(Bytes(expected)),
        };
        self.change(|state| ((), state.handed_over(&handed, &self.stores)));
    }
}

/// Takes in what peers send to a job, as long as it runs. A panic is a defect of the job, and ends it, nothing else.
pub(super) struct Ear(pub(super) Weak<Shared>);

impl Ear {
    fn with_job(&self, act: impl FnOnce(&Shared)) {
        if let Some(shared) = self.0.upgrade() {
            shared.guarded(|| act(&shared));
        }
    }
}

impl Receive for Ear {
    fn receive(&self, from: Rank, message: Message) {
        self.with_job(|shared| match message {
            Message::Ask(ask) => shared.change(|state| ((), state.asked_by(from, ask))),
            Message::Answer(answer) => shared.take_answer(from, answer),
            Message::HandOver(handed) => shared.take_in(from, handed),
            Message::Done(done) => shared.change(|state| ((), state.finished(from, &done.report))),
        });
    }

    fn lost(&self, rank: Rank) {
        self.with_job(|shared| {
            shared.left.forget_all(rank);
            shared.change(|state| ((), state.lost_rank(rank, &shared.stores)));
        });
    }

    fn found(&self, rank: Rank) {
        self.with_job(|shared| shared.change(|state| ((), state.found_rank(rank))));
    }
}

#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod tests {
    use std::sync::{Condvar, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    use foresee_config::TierKind;

    use super::*;
    use crate::job::tests::{SAMPLE, SAMPLES, spec};
    use crate::job::{Asked, Job, JobSpec};
    use crate::source::{ReadError, Source};
    use crate::stamp::Stamp;
    use crate::transport::memory::{End, Network};
    use crate::transport::{Done, Transport};

    const MINUTE: Duration = Duration::from_secs(60);

    /// The last sample of all: by the time that it is wanted, all others have come.
    const LAST: SampleId = SampleId(SAMPLES - 1);

    #[derive(Default)]
    struct Gate {
        is_shut: bool,
        is_stood_at: bool,
    }

    /// Samples that are full of their number; a look at the last one may take as long as the test wants.
    #[derive(Default)]
    struct Slow {
        gate: Mutex<Gate>,
        changed: Condvar,
    }

    impl Slow {
        fn shut(&self, is_shut: bool) {
            self.gate.lock().unwrap().is_shut = is_shut;
            self.changed.notify_all();
        }

        fn await_a_look(&self) {
            let gate = self.gate.lock().unwrap();
            let waits = |gate: &mut Gate| !gate.is_stood_at;
            let stood_at = self.changed.wait_timeout_while(gate, MINUTE, waits);
            let waited = stood_at.unwrap().1;
            assert!(!waited.timed_out(), "nobody wants the last sample");
        }
    }

    impl Source for Slow {
        fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Option<Stamp>, ReadError> {
            into.fill(sample.0 as u8);
            Ok(None)
        }

        fn look(&self, sample: SampleId) -> Result<Option<Stamp>, ReadError> {
            if sample == LAST {
                let mut gate = self.gate.lock().unwrap();
                gate.is_stood_at = true;
                self.changed.notify_all();
                drop(self.changed.wait_while(gate, |gate| gate.is_shut).unwrap());
            }
            Ok(None)
        }

        fn name(&self, sample: SampleId) -> String {
            format!("number {sample}")
        }
    }

    /// A rank whose tier is on disk.
    fn on_disk(rank: u32, world: u32, source: &Arc<Slow>, folder: &std::path::Path) -> JobSpec {
        let mut spec = spec();
        spec.source = Arc::<Slow>::clone(source);
        spec.rank = rank;
        spec.world = world;
        spec.config.staging.capacity_bytes = u64::from(SAMPLES) * SAMPLE + u64::from(rank);
        spec.config.tiers[0].kind = TierKind::Disk {
            path: folder.join(rank.to_string()),
            free_space_floor_bytes: 0,
            trust_folder: false,
        };
        spec.config.tiers[0].capacity_bytes = 1 << 20;
        spec
    }

    fn delivered(job: &Job) -> usize {
        let mut samples = 0;
        loop {
            match job.next_batch(MINUTE).unwrap() {
                Asked::Batch(batch) => samples += batch.samples.len(),
                Asked::NotYet => panic!("a minute is enough: {}", job.stats()),
                Asked::End => return samples,
            }
        }
    }

    #[test]
    fn what_waits_for_a_disk_holds_up_nothing_else_that_arrives() {
        let folder = tempfile::tempdir().unwrap();
        let source = Arc::new(Slow::default());
        let before = Job::new(on_disk(0, 1, &source, folder.path())).unwrap();
        assert_eq!(delivered(&before), SAMPLES as usize);
        before.close();
        drop(before);
        source.gate.lock().unwrap().is_stood_at = false;
        source.shut(true);
        let network = Network::new(2);
        let ends: Vec<Arc<End>> = network.ends().into_iter().map(Arc::new).collect();
        let job = |rank: u32| {
            let transport = Arc::<End>::clone(&ends[rank as usize]);
            Job::among(on_disk(rank, 2, &source, folder.path()), transport).unwrap()
        };
        let jobs = [job(0), job(1)];
        thread::scope(|scope| {
            let trainers = jobs.each_ref().map(|job| scope.spawn(|| delivered(job)));
            source.await_a_look();
            let sample = SampleId(0);
            let content = Content::WillNotCome;
            let message = Message::HandOver(HandOver::unstamped(sample, content));
            assert_eq!(
                ends[1].send(Rank(0), message),
                crate::transport::Sent::Taken
            );
            let deadline = Instant::now() + MINUTE / 2;
            while network.waiting(Rank(0)) > 0 && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            let waiting = network.waiting(Rank(0));
            source.shut(false);
            assert_eq!(waiting, 0, "taken in while a disk is slow");
            for trainer in trainers {
                assert_eq!(trainer.join().unwrap(), SAMPLES as usize / 2);
            }
        });
    }

    #[test]
    fn a_panic_while_something_is_taken_in_ends_the_job_and_nothing_else() {
        let network = Network::new(2);
        let mut ends = network.ends().into_iter();
        let mut job = |rank: u32| {
            let mut spec = spec();
            spec.rank = rank;
            spec.world = 2;
            spec.config.staging.capacity_bytes += u64::from(rank);
            Job::among(spec, Arc::new(ends.next().unwrap())).unwrap()
        };
        let jobs = [job(0), job(1)];
        thread::scope(|scope| {
            for job in &jobs {
                scope.spawn(|| assert!(matches!(job.next_batch(MINUTE), Ok(Asked::Batch(_)))));
            }
        });
        let shared = jobs[0].lock_running().clone().unwrap();
        let ear = Ear(Arc::downgrade(&shared));
        // No transport knows such a rank.
        ear.receive(Rank(7), Message::Done(Done { report: Vec::new() }));
        assert!(jobs[0].next_batch(MINUTE).is_err());
    }
}
