//! Which jobs of different ranks belong together. Ranks find each other's job by a key: the digest of what a program says
//! when it makes a job (dataset, batch size, epochs and so on), and of how many such jobs this rank started before. What
//! ranks must have in common beyond that (seed, catalog, world, capacities, policy, version) is not in it: that is compared
//! when they have met, and a difference is named (`agreement`).
//!
//! Threads that start several such jobs at once may do so in another order on each rank. So where ranks differ, each job is
//! sought once more among those with its own seed, for a few seconds; a difference that lasts is the error.
//!
//! They meet in a thread of its own ([`Peers`]): who asks for the first sample meanwhile waits no longer than it says. A rank
//! that does not come in time is not waited for twice: whoever waited goes on alone, and says so once.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, PoisonError};
use std::time::{Duration, Instant};

use foresee_core::policy::{Brief, Inherited, Policy};
use foresee_core::stream::{Shuffle, Tail};
use sha2::{Digest as _, Sha256};

use super::Job;
use super::agreement::{Agreed, AgreementError, Apart, Table};
use super::error::JobError;
use super::sharing;
use super::spec::JobSpec;
use super::stores::Stores;
use crate::dataset::Dataset;
use crate::sync::atomic::Ordering;
use crate::sync::{Condvar, Mutex, MutexGuard, thread, whole};
use crate::transport::{JobKey, Transport};

/// Opens a job's way to its peers. It is called when the job starts, once, and must not wait for others: that is for
/// [`Gather`](crate::transport::Gather) to do, in bounds.
pub type Open = Arc<dyn Fn(JobKey) -> Arc<dyn Transport> + Send + Sync>;

/// How long a rank waits for its peers: programs start within seconds of each other, and one that validates on its first
/// rank only must not hang.
pub const MEET_MAX: Duration = Duration::from_secs(60);

/// Where nobody came to the job before of this kind, nobody is likely to come to the next: validation on one rank only
/// waits long once, not each time. Ranks that train together are together by then.
const PATIENCE_ONCE_ALONE: Duration = Duration::from_secs(5);

/// A kind of job of one rank: several ranks may live in one process, in tests.
type Kind = ([u8; 16], u32, u32);

/// What is known of a kind of job.
#[derive(Clone, Copy, Default)]
struct Past {
    /// How many were started.
    started: u64,
    /// Whether the last of them met nobody.
    alone: bool,
}

/// Counts jobs of this process. No part of what a job's threads share: it is looked at once a job.
static PAST: LazyLock<std::sync::Mutex<BTreeMap<Kind, Past>>> = LazyLock::new(Default::default);

/// How a job is to meet its peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meeting {
    pub(super) key: JobKey,
    /// How long others are waited for.
    pub(super) patience: Duration,
    kind: Kind,
}

impl Meeting {
    /// The meeting of a job that is about to start.
    pub(super) fn of(spec: &JobSpec, patience: Duration) -> Self {
        let kind = (digest_of_kind(spec), spec.world, spec.rank);
        let past = with_past(kind, |past| {
            let before = *past;
            past.started += 1;
            before
        });
        let patience = if past.alone {
            patience.min(PATIENCE_ONCE_ALONE)
        } else {
            patience
        };
        Self {
            key: JobKey(digest(&[&kind.0, &past.started.to_le_bytes()])),
            patience,
            kind,
        }
    }

    /// The meeting of those with the same seed, where ranks that have met differ; none where there is no seed.
    fn with_seed(&self, spec: &JobSpec) -> Option<Self> {
        let (Shuffle::Torch { seed } | Shuffle::Feistel { seed }) = spec.shuffle else {
            return None;
        };
        let (_, world, rank) = self.kind;
        let of_seed = digest(&[b"seed", &self.kind.0, &seed.to_le_bytes()]);
        let before = with_past((of_seed, world, rank), |past| {
            past.started += 1;
            past.started - 1
        });
        Some(Self {
            key: JobKey(digest(&[&of_seed, &before.to_le_bytes()])),
            patience: self.patience.min(PATIENCE_ONCE_ALONE),
            kind: self.kind,
        })
    }

    /// Whether anybody came.
    pub(super) fn note(&self, alone: bool) {
        with_past(self.kind, |past| past.alone = alone);
    }
}

fn with_past<T>(kind: Kind, act: impl FnOnce(&mut Past) -> T) -> T {
    let mut past = PAST.lock().unwrap_or_else(PoisonError::into_inner);
    act(past.entry(kind).or_default())
}

/// Of what a program says when it makes a job.
fn digest_of_kind(spec: &JobSpec) -> [u8; 16] {
    let JobSpec {
        source,
        dataset,
        shuffle,
        own_order,
        batch_size,
        epochs,
        drop_last,
        tail,
        ..
    } = spec;
    let place = source.dataset().map_or(*dataset, Dataset::place);
    let shuffle: &[u8] = match shuffle {
        Shuffle::Torch { .. } => b"torch",
        Shuffle::Feistel { .. } => b"feistel",
        Shuffle::Sequential => b"sequential",
        Shuffle::Explicit(_) => b"explicit",
    };
    let tail: &[u8] = match tail {
        Tail::Pad => b"pad",
        Tail::Drop => b"drop",
        Tail::Exact => b"exact",
    };
    digest(&[
        &place,
        &batch_size.to_le_bytes(),
        &epochs.to_le_bytes(),
        shuffle,
        &[u8::from(*drop_last)],
        tail,
        &[u8::from(*own_order)],
    ])
}

/// Of some parts, each behind its length.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let whole: [u8; 32] = hash.finalize().into();
    std::array::from_fn(|index| whole[index])
}

impl Job {
    /// The same for one of several ranks that serve each other. All are given the same but for their rank. They meet when
    /// the first sample is asked for, and wait for each other then.
    pub fn among(spec: JobSpec, transport: Arc<dyn Transport>) -> Result<Self, JobError> {
        Self::among_within(spec, transport, MEET_MAX)
    }

    /// The same, where others are waited for no longer than `patience`; without them the rank goes on alone.
    pub fn among_within(
        spec: JobSpec,
        transport: Arc<dyn Transport>,
        patience: Duration,
    ) -> Result<Self, JobError> {
        let job = Self::new(spec)?;
        job.meet(Arc::new(move |_| Arc::clone(&transport)), patience);
        Ok(job)
    }

    /// The job is one of several, on other ranks, that serve each other: `open` leads to them. It is called when the first
    /// sample is asked for; the others are then waited for no longer than `patience`, and without them the rank goes on
    /// alone. Who has started already goes on as it is.
    pub fn meet(&self, open: Open, patience: Duration) {
        let running = self.lock_running();
        let mut peers = whole(self.peers.write());
        let is_apart = peers.as_ref().is_none_or(|peers| peers.are_apart());
        if running.is_some() || !is_apart || self.closed.load(Ordering::Relaxed) {
            let rank = self.spec().rank;
            tracing::debug!("rank {rank}: the job has started already, and meets nobody any more");
            return;
        }
        *peers = Some(Arc::new(Peers::new(open, patience)));
    }
}

/// How far a job is with its peers.
enum Stage {
    /// They have not been sought.
    Apart,
    /// They are sought at present.
    Meeting,
    /// There is an agreement, and this is the way to them.
    Agreed(Arc<Agreed>, Arc<dyn Transport>),
    /// There was one, and the job is over.
    Left(Arc<Agreed>),
    /// It goes on without them.
    Alone,
    Refused(AgreementError),
}

/// The peers of a job.
pub(super) struct Peers {
    /// Until it was called: it may hold on to what it opens.
    open: Mutex<Option<Open>>,
    /// How long others are waited for.
    patience: Duration,
    stage: Mutex<Stage>,
    decided: Condvar,
}

/// What a rank brings to a meeting.
pub(super) struct Brought {
    pub(super) spec: Arc<JobSpec>,
    /// What this rank knows.
    pub(super) brief: Brief,
    /// What its tiers hold from before.
    pub(super) inherited: Inherited,
    /// Where it keeps samples.
    pub(super) stores: Arc<Stores>,
}

impl Brought {
    /// Meets the others, and agrees with them.
    fn agree(
        &self,
        meeting: &Meeting,
        policy: &'static dyn Policy,
        open: &Open,
    ) -> Result<(Agreed, Arc<dyn Transport>), Apart> {
        let Self {
            spec,
            brief,
            inherited,
            stores,
        } = self;
        let transport = open(meeting.key);
        let table = Table {
            rank: spec.rank(),
            policy,
            transport: &*transport,
            patience: meeting.patience,
            stores,
        };
        let agreed = table.agree(brief.clone(), inherited.clone())?;
        sharing::share(spec, &*transport, &stores.arena, meeting.patience)?;
        Ok((agreed, transport))
    }
}

impl Peers {
    pub(super) fn new(open: Open, patience: Duration) -> Self {
        Self {
            open: Mutex::new(Some(open)),
            patience,
            stage: Mutex::new(Stage::Apart),
            decided: Condvar::new(),
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        whole(self.stage.lock())
    }

    /// Whether they have not been sought yet.
    pub(super) fn are_apart(&self) -> bool {
        matches!(*self.stage(), Stage::Apart)
    }

    /// What was agreed on; none before, or where the job goes on alone.
    pub(super) fn agreed(&self) -> Option<Arc<Agreed>> {
        match &*self.stage() {
            Stage::Agreed(agreed, _) | Stage::Left(agreed) => Some(Arc::clone(agreed)),
            Stage::Apart | Stage::Meeting | Stage::Alone | Stage::Refused(_) => None,
        }
    }

    /// The way to those with whom there is an agreement.
    pub(super) fn transport(&self) -> Option<Arc<dyn Transport>> {
        match &*self.stage() {
            Stage::Agreed(_, transport) => Some(Arc::clone(transport)),
            Stage::Apart | Stage::Meeting | Stage::Left(_) | Stage::Alone | Stage::Refused(_) => {
                None
            }
        }
    }

    /// The job needs them no more; what a meeting that is under way comes to is dropped.
    pub(super) fn leave(&self) {
        let mut stage = self.stage();
        let after = match &*stage {
            Stage::Agreed(agreed, _) | Stage::Left(agreed) => Stage::Left(Arc::clone(agreed)),
            Stage::Apart | Stage::Meeting | Stage::Alone | Stage::Refused(_) => Stage::Alone,
        };
        let left = std::mem::replace(&mut *stage, after);
        drop(stage);
        // After the lock: closing connections may take a moment.
        drop(left);
        self.decided.notify_all();
    }

    /// Begins to agree with all others, the first time.
    pub(super) fn seek(self: &Arc<Self>, brought: Brought) -> Result<(), JobError> {
        let mut stage = self.stage();
        let rank = brought.spec.rank;
        match &*stage {
            Stage::Apart => {}
            Stage::Meeting | Stage::Left(_) | Stage::Alone | Stage::Refused(_) => return Ok(()),
            Stage::Agreed(..) => {
                tracing::warn!(
                    "rank {rank}: the dataset was measured again, and is another than what was agreed on: this rank goes on alone"
                );
                *stage = Stage::Alone;
                return Ok(());
            }
        }
        // Who has an order of its own shares nothing with others.
        if brought.spec.own_order || brought.spec.world < 2 {
            *stage = Stage::Alone;
            return Ok(());
        }
        let peers = Arc::clone(self);
        let thread = thread::Builder::new().name(format!("foresee-meet-{rank}"));
        let begun = thread.spawn(move || peers.meet(&brought));
        begun.map_err(|cause| JobError::Threads {
            cause: Arc::new(cause),
        })?;
        *stage = Stage::Meeting;
        Ok(())
    }

    /// Waits until it is known whether there is an agreement; says no at the deadline.
    pub(super) fn wait(&self, deadline: Instant) -> Result<bool, JobError> {
        let patience = deadline.saturating_duration_since(Instant::now());
        let is_open = |stage: &mut Stage| matches!(stage, Stage::Meeting);
        let waited = self
            .decided
            .wait_timeout_while(self.stage(), patience, is_open);
        match &*whole(waited).0 {
            Stage::Meeting => Ok(false),
            Stage::Refused(why) => Err(why.clone().into()),
            Stage::Apart | Stage::Agreed(..) | Stage::Left(_) | Stage::Alone => Ok(true),
        }
    }

    /// Meets the others, and notes what came of it.
    fn meet(&self, brought: &Brought) {
        let met = self.met(brought);
        let mut stage = self.stage();
        if matches!(*stage, Stage::Meeting) {
            *stage = met;
        }
        drop(stage);
        self.decided.notify_all();
    }

    fn met(&self, brought: &Brought) -> Stage {
        let spec = &brought.spec;
        let Ok(policy) = spec.policy() else {
            return Stage::Alone;
        };
        let Some(open) = whole(self.open.lock()).take() else {
            return Stage::Alone;
        };
        let meeting = Meeting::of(spec, self.patience);
        let mut agreed = brought.agree(&meeting, policy, &open);
        if let Err(Apart::Unlike(AgreementError::Unlike { .. })) = &agreed
            && let Some(again) = meeting.with_seed(spec)
            && let Ok(found) = brought.agree(&again, policy, &open)
        {
            agreed = Ok(found);
        }
        drop(open);
        meeting.note(matches!(agreed, Err(Apart::Late(_))));
        match agreed {
            Ok((agreed, transport)) => Stage::Agreed(Arc::new(agreed), transport),
            Err(Apart::Late(absent)) => {
                let waited_s = meeting.patience.as_secs_f64();
                let missing = if absent.0.is_empty() {
                    String::new()
                } else {
                    format!(" (missing: {absent})")
                };
                tracing::warn!(
                    "rank {}: not all ranks came to this job within {waited_s} s{missing}, or they made another one (dataset, batch_size, epochs or shuffle): this one goes on alone",
                    spec.rank
                );
                Stage::Alone
            }
            Err(Apart::Unlike(why)) => Stage::Refused(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::spec;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A job of a kind that no other test has.
    fn of_kind(number: u8) -> JobSpec {
        JobSpec {
            dataset: [number; 16],
            world: 4,
            ..spec()
        }
    }

    #[test]
    fn jobs_of_a_kind_are_told_apart_by_their_number_and_are_the_same_on_all_ranks() {
        let keys = |rank| {
            let spec = JobSpec {
                rank,
                ..of_kind(201)
            };
            [(); 3].map(|()| Meeting::of(&spec, PATIENCE).key)
        };
        let first = keys(0);
        assert_eq!(first, keys(1));
        assert_eq!(first, keys(3));
        assert_ne!(first[0], first[1]);
        assert_ne!(first[1], first[2]);
    }

    #[test]
    fn what_is_compared_later_does_not_keep_jobs_apart_and_what_names_them_does() {
        let key = |spec: &JobSpec| digest_of_kind(spec);
        let one = of_kind(202);
        let mut other = one.clone();
        other.shuffle = Shuffle::Torch { seed: 99 };
        other.policy = "nopfs".into();
        other.config.staging.capacity_bytes += 1;
        let seeded = JobSpec {
            shuffle: Shuffle::Torch { seed: 7 },
            ..one.clone()
        };
        assert_eq!(key(&seeded), key(&other));
        let named: [fn(&mut JobSpec); 6] = [
            |spec| spec.dataset[0] += 1,
            |spec| spec.batch_size += 1,
            |spec| spec.epochs += 1,
            |spec| spec.shuffle = Shuffle::Feistel { seed: 7 },
            |spec| spec.drop_last = !spec.drop_last,
            |spec| spec.own_order = !spec.own_order,
        ];
        for change in named {
            let mut other = seeded.clone();
            change(&mut other);
            assert_ne!(key(&seeded), key(&other));
        }
    }

    #[test]
    fn who_was_alone_waits_long_once() {
        let spec = of_kind(203);
        let first = Meeting::of(&spec, PATIENCE);
        assert_eq!(first.patience, PATIENCE);
        first.note(true);
        let second = Meeting::of(&spec, PATIENCE);
        assert_eq!(second.patience, PATIENCE_ONCE_ALONE);
        second.note(false);
        assert_eq!(Meeting::of(&spec, PATIENCE).patience, PATIENCE);
    }
}
