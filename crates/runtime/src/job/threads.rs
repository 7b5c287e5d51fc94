//! How many threads may be busy in each lane: as many as configured, or, where nobody said, as the reads suggest. A read
//! that sleeps leaves its core idle, so more threads are of use; one that copies from the page cache does not.

use foresee_core::engine::Lane;
use foresee_core::ids::TierId;

/// More threads than this never helped a storage that was tried: cold files are fastest with 16.
const AUTO_MAX: u32 = 32;

/// Reads between two looks at the number of threads.
const LOOK_EVERY: u32 = 32;

/// One lane.
#[derive(Clone, Debug)]
struct Threads {
    lane: Lane,
    most: u32,
    busy: u32,
    done: bool,
}

/// All lanes of a job, the staging buffer's first.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    lanes: Vec<Threads>,
    auto: Option<Auto>,
}

/// What is known of reads, where the number of threads is ours to choose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Auto {
    pub(super) cores: u32,
    reads: u32,
    took_s: f64,
    slept_s: f64,
}

impl Auto {
    pub(super) fn new(cores: u32) -> Self {
        Self { cores, reads: 0, took_s: 0.0, slept_s: 0.0 }
    }

    /// As many threads as keep all cores busy when each sleeps for such a part of its time.
    fn suggested(&self) -> u32 {
        let awake = (1.0 - self.slept_s / self.took_s.max(1e-9)).clamp(0.01, 1.0);
        ((f64::from(self.cores) / awake).round() as u32).clamp(self.cores.max(2), AUTO_MAX)
    }
}

impl Lanes {
    /// So many threads for the staging buffer, to begin with where `auto` is given, and for each tier.
    pub(super) fn new(staging: u32, tiers: &[u32], auto: Option<Auto>) -> Self {
        let lane = |lane, most| Threads { lane, most, busy: 0, done: false };
        let tiers = tiers.iter().enumerate().map(|(index, &most)| lane(Lane::Tier(TierId(index as u8 + 1)), most));
        Self { lanes: std::iter::once(lane(Lane::Staging, staging)).chain(tiers).collect(), auto }
    }

    /// How many threads all lanes can use.
    pub(super) fn most(&self) -> u32 {
        let tiers: u32 = self.lanes[1..].iter().map(|lane| lane.most).sum();
        tiers + if self.auto.is_some() { AUTO_MAX } else { self.lanes[0].most }
    }

    /// Threads of the staging buffer at present.
    pub(super) fn staging(&self) -> u32 {
        self.lanes[0].most
    }

    /// Threads of each tier.
    pub(super) fn of_tiers(&self) -> Vec<u32> {
        self.lanes[1..].iter().map(|lane| lane.most).collect()
    }

    pub(super) fn has_room(&self, lane: Lane) -> bool {
        self.lanes.iter().any(|threads| threads.lane == lane && threads.busy < threads.most)
    }

    /// The tiers' lanes that have something left to do and a thread to spare, or get one, where they are helped.
    pub(super) fn tiers(&self, helped: bool) -> [Option<Lane>; 4] {
        let mut free = [None; 4];
        let has_thread = |threads: &Threads| threads.busy < threads.most || (helped && threads.most > 0);
        let lanes = self.lanes[1..].iter().filter(|threads| !threads.done && has_thread(threads));
        lanes.zip(&mut free).for_each(|(threads, place)| *place = Some(threads.lane));
        free
    }

    pub(super) fn begin(&mut self, lane: Lane) {
        self.of(lane).busy += 1;
    }

    pub(super) fn end(&mut self, lane: Lane) {
        self.of(lane).busy -= 1;
    }

    pub(super) fn finish(&mut self, lane: Lane) {
        self.of(lane).done = true;
    }

    /// The job goes on elsewhere. Threads that are busy stay so until they come back.
    pub(super) fn restart(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.done = false);
    }

    /// Whether a thread is busy.
    pub(super) fn is_busy(&self) -> bool {
        self.lanes.iter().any(|lane| lane.busy > 0)
    }

    /// A read took so long, and slept for a part of it.
    pub(super) fn learn(&mut self, took_s: f64, slept_s: f64) {
        let Some(auto) = &mut self.auto else { return };
        (auto.took_s, auto.slept_s, auto.reads) = (auto.took_s + took_s, auto.slept_s + slept_s, auto.reads + 1);
        if auto.reads >= LOOK_EVERY {
            self.lanes[0].most = auto.suggested();
            *auto = Auto::new(auto.cores);
        }
    }

    fn of(&mut self, lane: Lane) -> &mut Threads {
        let found = self.lanes.iter_mut().find(|threads| threads.lane == lane);
        found.expect("the engine has no lanes that the job has not")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_sleep_are_multiplied_and_threads_that_copy_are_not() {
        let mut lanes = Lanes::new(2, &[], Some(Auto::new(2)));
        (0..LOOK_EVERY).for_each(|_| lanes.learn(1e-3, 0.9e-3));
        assert_eq!(lanes.staging(), 20);
        (0..LOOK_EVERY).for_each(|_| lanes.learn(1e-3, 0.0));
        assert_eq!(lanes.staging(), 2);
        let mut fixed = Lanes::new(3, &[1], None);
        (0..LOOK_EVERY).for_each(|_| fixed.learn(1e-3, 0.9e-3));
        assert_eq!((fixed.staging(), fixed.most()), (3, 4));
    }
}
