//! Which lane a free loader thread serves next. Owns how many threads a rank has, what they are doing and what each lane
//! answered last; knows no thread, and reads nothing. Simulator and loader follow the same rule.
//!
//! - The staging buffer comes first: what is staged is needed before what is kept. Tiers follow, fastest first.
//! - [`Threads::OfLanes`]: a lane has its own threads.
//! - [`Threads::OfRank`]: any free thread serves any lane. Threads that have nothing to bring in help to stage, and those
//!   that find the staging buffer full fill tiers. A tier's number limits how many fill it at a time, since a device is
//!   no faster for more; staging is limited by the rank's threads alone, or to as many as the driver says are of use.
//! - A lane that answered `Full` is not asked again before something has changed, one that answered `Done` never.
//!
//! A driver does this whenever a read has completed, a sample has arrived or the trainer has gone on:
//!
//! ```text
//! lanes.reopen();
//! while awaited samples have arrived and lanes.has_thread(Lane::Staging): resume one, lanes.begin(Lane::Staging)
//! while let Some(lane) = lanes.next():
//!     match engine.poll(lane):
//!         Read => lanes.begin(lane), and lanes.end(lane) when it is complete
//!         Await => remember it by its sample; those behind it are asked for
//!         Full => lanes.wait(lane)
//!         Done => lanes.finish(lane)
//! ```

use super::Lane;
use crate::ids::TierId;
use crate::policy::Threads;

/// What a lane answered last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It may have something to do.
    Open,
    /// It has not, until something changes.
    Full,
    /// It will have nothing more.
    Done,
}

#[derive(Clone, Debug)]
struct Served {
    threads: u32,
    busy: u32,
    answer: Answer,
}

/// The lanes of a rank and its threads.
#[derive(Clone, Debug)]
pub struct Lanes {
    whose: Threads,
    /// The staging buffer's first, then by tier.
    served: Vec<Served>,
    /// More than so many that stage at a time are of no use, whosever they are.
    staging_most: Option<u32>,
    /// So many threads have something to do at a time, where a host's are shared among its ranks.
    permits: Option<u32>,
    /// Threads of the staging buffer before any were shared.
    brought: u32,
}

impl Lanes {
    /// Lanes with so many threads each, the staging buffer's first; all are idle.
    ///
    /// # Panics
    /// If there is no lane: each rank has a staging buffer.
    pub fn new(whose: Threads, threads: impl IntoIterator<Item = u32>) -> Self {
        let idle = |threads| Served {
            threads,
            busy: 0,
            answer: Answer::Open,
        };
        let served: Vec<Served> = threads.into_iter().map(idle).collect();
        assert!(!served.is_empty(), "a rank has a staging buffer");
        let brought = served[0].threads;
        Self {
            brought,
            whose,
            served,
            staging_most: None,
            permits: None,
        }
    }

    /// A lane that has a thread to spare and may have something to do for it.
    #[inline]
    pub fn next(&self) -> Option<Lane> {
        let serves = |index: &usize| {
            self.served[*index].answer == Answer::Open && self.has_thread(lane_at(*index))
        };
        (0..self.served.len()).find(serves).map(lane_at)
    }

    /// Whether there is a thread to spare for a lane.
    #[inline]
    pub fn has_thread(&self, lane: Lane) -> bool {
        let Served { threads, busy, .. } = self.served[index_of(lane)];
        match (self.whose, lane) {
            (Threads::OfLanes, _) => busy < threads,
            (Threads::OfRank, Lane::Staging) => {
                self.has_idle() && self.staging_most.is_none_or(|most| busy < most)
            }
            (Threads::OfRank, Lane::Tier(_)) => busy < threads && self.has_idle(),
        }
    }

    /// Whether there is a thread to spare for a lane that is not done.
    #[inline]
    pub fn has_thread_for_any(&self) -> bool {
        let serves = |index: usize| {
            self.served[index].answer != Answer::Done && self.has_thread(lane_at(index))
        };
        (0..self.served.len()).any(serves)
    }

    /// Whether any thread of the rank is idle.
    fn has_idle(&self) -> bool {
        self.all_busy() < self.all_threads()
    }

    /// How many threads the rank has.
    pub fn all_threads(&self) -> u32 {
        let own = self.served.iter().map(|lane| lane.threads).sum();
        match self.whose {
            Threads::OfLanes => own,
            Threads::OfRank => self.permits.unwrap_or(own),
        }
    }

    /// How many it has by its lanes' numbers, whatever it has of its host's.
    pub fn own_threads(&self) -> u32 {
        match self.whose {
            Threads::OfLanes => self.brought,
            Threads::OfRank => self.served.iter().map(|lane| lane.threads).sum(),
        }
    }

    /// How many of them are at work.
    pub fn all_busy(&self) -> u32 {
        self.served.iter().map(|lane| lane.busy).sum()
    }

    /// How many of those that can be shared are at work.
    pub fn shareable_busy(&self) -> u32 {
        match self.whose {
            Threads::OfLanes => self.served[0].busy,
            Threads::OfRank => self.all_busy(),
        }
    }

    /// From now on the rank has so many of its host's threads, where these are shared. Those that are at work beyond that
    /// end what they do. Where lanes have their own, it is the staging buffer that has more or fewer.
    pub fn permit(&mut self, threads: u32) {
        match self.whose {
            Threads::OfLanes => self.resize(Lane::Staging, threads),
            Threads::OfRank => self.permits = Some(threads),
        }
    }

    /// How many of the rank's threads can be shared among the ranks of its host.
    pub fn shareable(&self) -> u32 {
        match self.whose {
            Threads::OfLanes => self.served[0].threads,
            Threads::OfRank => self.all_threads(),
        }
    }

    /// How many threads each lane has, the staging buffer's first.
    pub fn threads(&self) -> impl Iterator<Item = u32> + '_ {
        self.served.iter().map(|lane| lane.threads)
    }

    /// Whether a read of any lane is under way.
    pub fn is_busy(&self) -> bool {
        self.served.iter().any(|lane| lane.busy > 0)
    }

    /// Whether nothing is left to bring into any tier, and nothing on its way there.
    pub fn are_tiers_filled(&self) -> bool {
        let mut tiers = self.served.iter().skip(1).filter(|lane| lane.threads > 0);
        tiers.all(|lane| lane.answer == Answer::Done && lane.busy == 0)
    }

    /// How many threads serve a lane now.
    #[inline]
    pub fn busy(&self, lane: Lane) -> u32 {
        self.served[index_of(lane)].busy
    }

    /// A thread begins a read of a lane.
    pub fn begin(&mut self, lane: Lane) {
        self.served[index_of(lane)].busy += 1;
    }

    /// A read of a lane is complete.
    pub fn end(&mut self, lane: Lane) {
        self.served[index_of(lane)].busy -= 1;
    }

    /// A lane has nothing to do until something changes.
    pub fn wait(&mut self, lane: Lane) {
        self.served[index_of(lane)].answer = Answer::Full;
    }

    /// A lane will have nothing more to do.
    pub fn finish(&mut self, lane: Lane) {
        self.served[index_of(lane)].answer = Answer::Done;
    }

    /// Something has changed: lanes that had nothing to do may have.
    pub fn reopen(&mut self) {
        for lane in &mut self.served {
            if lane.answer == Answer::Full {
                lane.answer = Answer::Open;
            }
        }
    }

    /// The job goes on elsewhere. Threads that are busy stay so until their reads are complete.
    pub fn restart(&mut self) {
        for lane in &mut self.served {
            lane.answer = Answer::Open;
        }
    }

    /// From now on so many threads are a lane's.
    pub fn resize(&mut self, lane: Lane, threads: u32) {
        self.served[index_of(lane)].threads = threads;
    }

    /// From now on no more than so many threads stage at a time, or all that are idle do.
    pub fn limit_staging(&mut self, most: Option<u32>) {
        self.staging_most = most;
    }
}

fn lane_at(index: usize) -> Lane {
    match index {
        0 => Lane::Staging,
        tier => Lane::Tier(TierId(tier as u8)),
    }
}

fn index_of(lane: Lane) -> usize {
    match lane {
        Lane::Staging => 0,
        Lane::Tier(tier) => tier.index(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Lane = Lane::Tier(TierId(1));
    const DISK: Lane = Lane::Tier(TierId(2));

    /// Begins whatever there is to do, and tells for which lanes.
    fn begin_all(lanes: &mut Lanes) -> Vec<Lane> {
        std::iter::from_fn(|| {
            let lane = lanes.next()?;
            lanes.begin(lane);
            Some(lane)
        })
        .collect()
    }

    #[test]
    fn a_lane_has_its_own_threads_in_the_papers_reading() {
        let mut lanes = Lanes::new(Threads::OfLanes, [2, 1, 1]);
        let begun = begin_all(&mut lanes);
        assert_eq!(begun, [Lane::Staging, Lane::Staging, MEMORY, DISK]);
        lanes.end(MEMORY);
        lanes.finish(MEMORY);
        assert_eq!(lanes.next(), None, "the thread of a tier idles");
    }

    #[test]
    fn threads_of_the_rank_stage_first() {
        let mut lanes = Lanes::new(Threads::OfRank, [2, 1, 1]);
        assert_eq!(begin_all(&mut lanes), [Lane::Staging; 4]);
    }

    #[test]
    fn threads_that_cannot_stage_fill_tiers_as_many_as_each_takes() {
        let mut lanes = Lanes::new(Threads::OfRank, [4, 1, 2]);
        lanes.wait(Lane::Staging);
        assert_eq!(begin_all(&mut lanes), [MEMORY, DISK, DISK]);
        lanes.reopen();
        assert_eq!(begin_all(&mut lanes), [Lane::Staging; 4]);
        lanes.end(DISK);
        assert_eq!(begin_all(&mut lanes), [Lane::Staging]);
    }

    #[test]
    fn threads_that_have_nothing_to_bring_in_help_to_stage() {
        let mut lanes = Lanes::new(Threads::OfRank, [1, 3]);
        lanes.finish(MEMORY);
        assert_eq!(begin_all(&mut lanes), [Lane::Staging; 4]);
        lanes.end(Lane::Staging);
        lanes.reopen();
        assert_eq!(lanes.next(), Some(Lane::Staging), "what is done stays done");
        lanes.restart();
        lanes.wait(Lane::Staging);
        assert_eq!(lanes.next(), Some(MEMORY));
    }

    #[test]
    fn a_tier_without_threads_is_never_filled_by_others() {
        let mut lanes = Lanes::new(Threads::OfRank, [2, 0]);
        lanes.wait(Lane::Staging);
        assert_eq!(lanes.next(), None);
    }

    #[test]
    fn threads_beyond_those_that_are_of_use_in_staging_fill_tiers_or_idle() {
        let mut lanes = Lanes::new(Threads::OfRank, [1, 3]);
        lanes.limit_staging(Some(2));
        let begun = begin_all(&mut lanes);
        assert_eq!(begun, [Lane::Staging, Lane::Staging, MEMORY, MEMORY]);
        lanes.end(MEMORY);
        lanes.finish(MEMORY);
        assert!(!lanes.has_thread_for_any());
        lanes.limit_staging(None);
        assert!(lanes.has_thread_for_any());
        assert_eq!(lanes.next(), Some(Lane::Staging));
    }

    #[test]
    fn permits_are_what_a_rank_has_of_its_hosts_threads() {
        let mut lanes = Lanes::new(Threads::OfRank, [2, 2]);
        assert_eq!(lanes.shareable(), 4);
        lanes.permit(6);
        assert_eq!(begin_all(&mut lanes), [Lane::Staging; 6]);
        lanes.permit(1);
        (0..5).for_each(|_| lanes.end(Lane::Staging));
        assert_eq!((lanes.next(), lanes.all_busy()), (None, 1));
        lanes.end(Lane::Staging);
        assert_eq!(begin_all(&mut lanes), [Lane::Staging]);
        let mut papers = Lanes::new(Threads::OfLanes, [2, 1]);
        assert_eq!(papers.shareable(), 2);
        papers.permit(1);
        assert_eq!(begin_all(&mut papers), [Lane::Staging, MEMORY]);
    }

    #[test]
    fn fewer_threads_than_are_busy_begin_nothing_until_enough_have_ended() {
        let mut lanes = Lanes::new(Threads::OfRank, [3]);
        begin_all(&mut lanes);
        lanes.resize(Lane::Staging, 1);
        lanes.end(Lane::Staging);
        lanes.end(Lane::Staging);
        assert_eq!(lanes.next(), None);
        lanes.end(Lane::Staging);
        assert_eq!(lanes.next(), Some(Lane::Staging));
    }
}
