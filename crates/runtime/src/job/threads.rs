//! How many threads may be busy in each lane: as many as configured, or, where nobody said, as the reads suggest. A read
//! that sleeps leaves its core idle, so more threads are of use, and there is latency to hide; one that copies from the
//! page cache does not.

use foresee_core::engine::Lane;
use foresee_core::ids::TierId;

use super::task::Doer;

/// More threads than this never helped a storage that was tried: cold files are fastest with 16.
const AUTO_MAX: u32 = 32;

/// Reads between two looks at what they are like.
const LOOK_EVERY: u32 = 32;

/// A thread that is awake for such a part of its time reads from memory.
const AWAKE_WHEN_QUICK: f64 = 0.9;

/// A read that slept so long was slow.
const SLOW_S: f64 = 0.002;

/// The most looks that are asked for before reads are believed to be quick.
const DOUBT_MAX: u32 = 1 << 16;

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
    threads: Vec<Threads>,
    /// Reads that the trainer is doing itself.
    own: u32,
    auto: Option<Auto>,
    reads: Reads,
    /// Looks in a row at which reads were quick, and how many it takes to believe it.
    quick_looks: u32,
    doubt: u32,
}

/// What the number of threads is chosen by, where it is ours to choose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Auto {
    pub(super) cores: u32,
    /// Whether the trainer reads as well, when it would wait and reads are quick.
    pub(super) helped: bool,
}

impl Auto {
    /// As many threads as keep all cores busy when each is awake for such a part of its time.
    fn suggested(self, awake: f64, quick: bool) -> u32 {
        if self.helped && quick {
            return self.cores.saturating_sub(1).max(1);
        }
        ((f64::from(self.cores) / awake).round() as u32).clamp(self.cores.max(2), AUTO_MAX)
    }
}

/// What is known of the latest reads.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    number: u32,
    took_s: f64,
    slept_s: f64,
}

impl Reads {
    /// Which part of its time a thread is awake in.
    fn awake(&self) -> f64 {
        (1.0 - self.slept_s / self.took_s.max(1e-9)).clamp(0.01, 1.0)
    }
}

impl Lanes {
    /// So many threads for the staging buffer, to begin with where `auto` is given, and for each tier.
    pub(super) fn new(staging: u32, tiers: &[u32], auto: Option<Auto>) -> Self {
        let lane = |lane, most| Threads {
            lane,
            most,
            busy: 0,
            done: false,
        };
        let tiers = tiers
            .iter()
            .enumerate()
            .map(|(index, &most)| lane(Lane::Tier(TierId(index as u8 + 1)), most));
        let threads = std::iter::once(lane(Lane::Staging, staging))
            .chain(tiers)
            .collect();
        Self {
            threads,
            own: 0,
            auto,
            reads: Reads::default(),
            quick_looks: 0,
            doubt: 1,
        }
    }

    /// How many threads all lanes can use at present.
    pub(super) fn most(&self) -> u32 {
        self.threads.iter().map(|lane| lane.most).sum()
    }

    /// Threads of the staging buffer at present.
    pub(super) fn staging(&self) -> u32 {
        self.threads[0].most
    }

    /// Threads of each tier.
    pub(super) fn of_tiers(&self) -> Vec<u32> {
        self.threads[1..].iter().map(|lane| lane.most).collect()
    }

    pub(super) fn has_room(&self, lane: Lane) -> bool {
        self.threads
            .iter()
            .any(|threads| threads.lane == lane && threads.busy < threads.most)
    }

    /// Whether a lane has a thread to spare.
    pub(super) fn any_has_room(&self) -> bool {
        self.threads
            .iter()
            .any(|threads| !threads.done && threads.busy < threads.most)
    }

    /// The tiers' lanes that have something left to do and a thread to spare, or get one, where they are helped.
    pub(super) fn tiers(&self, helped: bool) -> [Option<Lane>; 4] {
        let mut free = [None; 4];
        let has_thread =
            |threads: &Threads| threads.busy < threads.most || (helped && threads.most > 0);
        let lanes = self.threads[1..]
            .iter()
            .filter(|threads| !threads.done && has_thread(threads));
        lanes
            .zip(&mut free)
            .for_each(|(threads, place)| *place = Some(threads.lane));
        free
    }

    pub(super) fn begin(&mut self, lane: Lane) {
        self.of(lane).busy += 1;
    }

    /// The trainer begins to read itself.
    pub(super) fn begin_own(&mut self) {
        self.own += 1;
    }

    /// A read is over.
    pub(super) fn end(&mut self, doer: Doer) {
        match doer {
            Doer::Thread(lane) => self.of(lane).busy -= 1,
            Doer::Trainer => self.own -= 1,
        }
    }

    pub(super) fn finish(&mut self, lane: Lane) {
        self.of(lane).done = true;
    }

    /// The job goes on elsewhere. Threads that are busy stay so until they come back.
    pub(super) fn restart(&mut self) {
        self.threads.iter_mut().for_each(|lane| lane.done = false);
    }

    /// Whether a read is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.own > 0 || self.threads.iter().any(|lane| lane.busy > 0)
    }

    /// A read took so long, and slept for a part of it.
    pub(super) fn learn(&mut self, took_s: f64, slept_s: f64) {
        let Reads {
            number,
            took_s: so_far_s,
            slept_s: slept_so_far_s,
        } = self.reads;
        self.reads = Reads {
            number: number + 1,
            took_s: so_far_s + took_s,
            slept_s: slept_so_far_s + slept_s,
        };
        if slept_s > SLOW_S && self.are_quick() {
            self.doubt_quickness();
        }
        if self.reads.number < LOOK_EVERY {
            return;
        }
        let awake = std::mem::take(&mut self.reads).awake();
        self.quick_looks = if awake >= AWAKE_WHEN_QUICK {
            self.quick_looks.saturating_add(1)
        } else {
            0
        };
        let quick = self.are_quick();
        if let Some(auto) = self.auto {
            self.threads[0].most = auto.suggested(awake, quick);
        }
    }

    /// One read was slow or failed: that is enough, or the trainer might hang in the next one. Each time it takes longer to
    /// believe again that reads are quick.
    pub(super) fn doubt_quickness(&mut self) {
        self.quick_looks = 0;
        self.doubt = (self.doubt * 8).min(DOUBT_MAX);
    }

    /// Whether reads come from memory: threads copy and hardly ever sleep. There is then nothing to gain from reading
    /// further ahead, or from more threads.
    pub(super) fn are_quick(&self) -> bool {
        self.quick_looks >= self.doubt
    }

    fn of(&mut self, lane: Lane) -> &mut Threads {
        let found = self.threads.iter_mut().find(|threads| threads.lane == lane);
        found.expect("the engine has no lanes that the job has not")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many looks at reads of a millisecond that slept for so long.
    fn look(lanes: &mut Lanes, looks: u32, slept_s: f64) {
        (0..looks * LOOK_EVERY).for_each(|_| lanes.learn(1e-3, slept_s));
    }

    #[test]
    fn threads_that_sleep_are_multiplied_and_threads_that_copy_are_not() {
        let mut lanes = Lanes::new(
            2,
            &[],
            Some(Auto {
                cores: 2,
                helped: false,
            }),
        );
        look(&mut lanes, 1, 0.9e-3);
        assert_eq!((lanes.staging(), lanes.are_quick()), (20, false));
        look(&mut lanes, 1, 0.0);
        assert_eq!((lanes.staging(), lanes.are_quick()), (2, true));
        let mut helped = Lanes::new(
            2,
            &[],
            Some(Auto {
                cores: 2,
                helped: true,
            }),
        );
        look(&mut helped, 1, 0.0);
        assert_eq!(helped.staging(), 1);
        let mut fixed = Lanes::new(3, &[1], None);
        look(&mut fixed, 1, 0.9e-3);
        assert_eq!((fixed.staging(), fixed.most()), (3, 4));
    }

    #[test]
    fn one_slow_read_is_enough_and_each_takes_longer_to_forget() {
        let mut lanes = Lanes::new(2, &[], None);
        for looks in [1, 8, 64] {
            look(&mut lanes, looks - 1, 0.0);
            assert!(!lanes.are_quick());
            look(&mut lanes, 1, 0.0);
            assert!(lanes.are_quick());
            lanes.learn(30e-3, 30e-3);
            assert!(!lanes.are_quick());
            // What is left of the look that it is in.
            (1..LOOK_EVERY).for_each(|_| lanes.learn(1e-3, 0.0));
        }
    }
}
