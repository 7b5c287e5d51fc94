//! A rank's loader threads. Which lane each serves next is [`Lanes`]' to say; here is how many are of use where nobody said, by
//! what reads are like, and which reads the trainer does itself. A read that sleeps leaves its core idle, so more threads are
//! of use, and there is latency to hide; one that copies from the page cache does not. A driver measures some of its reads
//! ([`Crew::measures_next`]) and tells how long they took and slept.

use crate::engine::Lane;
use crate::engine::lanes::Lanes;
use crate::policy::Threads;

/// More threads than this never helped a storage that was tried: cold files are fastest with 16.
const AUTO_MAX: u32 = 32;

/// Of so many reads one is measured, after the first ones: two calls of the system, 0.4 us each. While reads are quick fewer
/// are, and the one after a read that took long.
const MEASURE_EVERY: u32 = 4;
const MEASURE_EVERY_QUICK: u32 = 16;
const MEASURE_FIRST: u32 = LOOK_EVERY;

/// Measured reads between two looks at what they are like.
const LOOK_EVERY: u32 = 32;

/// A thread that is awake for such a part of its time reads from memory.
const AWAKE_WHEN_QUICK: f64 = 0.9;

/// A read that slept so long was slow.
const SLOW_S: f64 = 0.002;

/// The most looks that are asked for before reads are believed to be quick.
const DOUBT_MAX: u32 = 1 << 16;

/// The loader threads of a rank, and what they do.
#[derive(Clone, Debug)]
pub struct Crew {
    /// What each thread does, and what is to be done next. Reads end by [`Crew::end`].
    pub lanes: Lanes,
    /// Cores that are this rank's.
    cores: u32,
    choice: Choice,
    /// Reads that the trainer is doing itself.
    own: u32,
    reads: Reads,
    /// Reads that are yet measured one and all, and those before the next that is.
    measure_first: u32,
    unmeasured: u32,
    /// Looks in a row at which reads were quick, and how many it takes to believe it.
    quick_looks: u32,
    doubt: u32,
}

/// Who chooses how many threads the staging buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Somebody has said.
    Fixed,
    /// We do, by what reads are like.
    Auto {
        /// Whether the trainer reads as well, when it would wait and reads are quick.
        helped: bool,
    },
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

impl Crew {
    /// So many threads by lane, the staging buffer's first and to begin with where that is ours to choose.
    pub fn new(
        whose: Threads,
        threads: impl IntoIterator<Item = u32>,
        cores: u32,
        choice: Choice,
    ) -> Self {
        Self {
            lanes: Lanes::new(whose, threads),
            cores,
            choice,
            own: 0,
            reads: Reads::default(),
            measure_first: MEASURE_FIRST,
            unmeasured: 0,
            quick_looks: 0,
            doubt: 1,
        }
    }

    /// How many threads the job can use at present.
    pub fn most(&self) -> u32 {
        self.lanes.all_threads()
    }

    /// How many threads each lane has at present, the staging buffer's first.
    pub fn by_lane(&self) -> Vec<u32> {
        self.lanes.threads().collect()
    }

    /// Whether a thread that has nothing to do could be of use, were there something to read.
    pub fn has_use_for_another(&self) -> bool {
        self.lanes.has_thread_for_any()
    }

    /// The trainer begins to read itself.
    pub fn begin_own(&mut self) {
        self.own += 1;
    }

    /// A read is over: of a thread that served this lane, or of the trainer.
    pub fn end(&mut self, lane: Option<Lane>) {
        match lane {
            Some(lane) => self.lanes.end(lane),
            None => self.own -= 1,
        }
    }

    /// Whether a read is under way.
    pub fn is_busy(&self) -> bool {
        self.own > 0 || self.lanes.is_busy()
    }

    /// Whether the read that begins now is to be measured.
    pub fn measures_next(&mut self) -> bool {
        if self.unmeasured > 0 {
            self.unmeasured -= 1;
            return false;
        }
        if self.measure_first > 0 {
            self.measure_first -= 1;
            return true;
        }
        let every = if self.are_quick() {
            MEASURE_EVERY_QUICK
        } else {
            MEASURE_EVERY
        };
        self.unmeasured = every - 1;
        true
    }

    /// A read that was not measured took so long. If that is too long for a quick one it may have slept, or lost its core:
    /// the next one tells.
    pub fn note_unmeasured(&mut self, took_s: f64) {
        if took_s > SLOW_S && self.are_quick() {
            self.unmeasured = 0;
        }
    }

    /// A read took so long, and slept for a part of it.
    pub fn learn(&mut self, took_s: f64, slept_s: f64) {
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
        if let Choice::Auto { helped } = self.choice {
            let suggested = self.suggested(awake, helped);
            self.lanes.resize(Lane::Staging, suggested);
        }
        self.limit_staging();
    }

    /// As many threads as keep all cores busy when each is awake for such a part of its time.
    fn suggested(&self, awake: f64, helped: bool) -> u32 {
        if helped && self.are_quick() {
            return self.cores.saturating_sub(1).max(1);
        }
        ((f64::from(self.cores) / awake).round() as u32).clamp(self.cores.max(2), AUTO_MAX)
    }

    /// Threads that copy take cores from each other, and from the trainer: while reads are quick, those that have nothing to
    /// bring in help to stage only as far as there are cores.
    fn limit_staging(&mut self) {
        let staging = self.lanes.threads().next().unwrap_or(0);
        let of_use = match self.choice {
            Choice::Fixed => staging.max(self.cores),
            Choice::Auto { .. } => staging,
        };
        let most = self.are_quick().then_some(of_use);
        self.lanes.limit_staging(most);
    }

    /// One read was slow or failed: that is enough, or the trainer might hang in the next one. Each time it takes longer to
    /// believe again that reads are quick.
    pub fn doubt_quickness(&mut self) {
        self.quick_looks = 0;
        self.doubt = (self.doubt * 8).min(DOUBT_MAX);
        self.limit_staging();
    }

    /// Whether reads come from memory: threads copy and hardly ever sleep. There is then nothing to gain from reading
    /// further ahead, or from more threads.
    pub fn are_quick(&self) -> bool {
        self.quick_looks >= self.doubt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TierId;

    const AUTO: Choice = Choice::Auto { helped: false };
    const MEMORY: Lane = Lane::Tier(TierId(1));

    /// So many looks at reads of a millisecond that slept for so long.
    fn look(crew: &mut Crew, looks: u32, slept_s: f64) {
        (0..looks * LOOK_EVERY).for_each(|_| crew.learn(1e-3, slept_s));
    }

    /// How many threads can stage at a time.
    fn stagers(crew: &mut Crew) -> u32 {
        let lanes = &mut crew.lanes;
        let mut begun = 0;
        while lanes.has_thread(Lane::Staging) {
            lanes.begin(Lane::Staging);
            begun += 1;
        }
        (0..begun).for_each(|_| lanes.end(Lane::Staging));
        begun
    }

    #[test]
    fn threads_that_sleep_are_multiplied_and_threads_that_copy_are_not() {
        let mut crew = Crew::new(Threads::OfRank, [2], 2, AUTO);
        look(&mut crew, 1, 0.9e-3);
        assert!(!crew.are_quick());
        assert_eq!(crew.by_lane(), [20]);
        look(&mut crew, 1, 0.0);
        assert!(crew.are_quick());
        assert_eq!(crew.by_lane(), [2]);
        let mut helped = Crew::new(Threads::OfRank, [2], 2, Choice::Auto { helped: true });
        look(&mut helped, 1, 0.0);
        assert_eq!(helped.by_lane(), [1]);
        let mut fixed = Crew::new(Threads::OfRank, [3, 1], 2, Choice::Fixed);
        look(&mut fixed, 1, 0.9e-3);
        assert_eq!(fixed.by_lane(), [3, 1]);
        assert_eq!(fixed.most(), 4);
    }

    #[test]
    fn all_threads_stage_where_reads_sleep_and_as_many_as_have_a_core_where_they_copy() {
        let mut fixed = Crew::new(Threads::OfRank, [1, 3], 2, Choice::Fixed);
        assert_eq!(stagers(&mut fixed), 4);
        look(&mut fixed, 1, 0.0);
        assert_eq!(stagers(&mut fixed), 2);
        fixed.learn(30e-3, 30e-3);
        assert_eq!(stagers(&mut fixed), 4, "one slow read is enough");
        let helped = Choice::Auto { helped: true };
        let mut chosen = Crew::new(Threads::OfRank, [2, 3], 2, helped);
        look(&mut chosen, 1, 0.0);
        assert_eq!(stagers(&mut chosen), 1, "a core is left to the trainer");
        assert!(chosen.lanes.has_thread(MEMORY));
    }

    #[test]
    fn a_lane_keeps_its_quota_in_the_papers_reading() {
        let mut crew = Crew::new(Threads::OfLanes, [1, 3], 8, Choice::Fixed);
        crew.lanes.finish(MEMORY);
        assert_eq!(stagers(&mut crew), 1);
        look(&mut crew, 1, 0.0);
        assert_eq!(stagers(&mut crew), 1);
    }

    #[test]
    fn quick_reads_are_measured_less_until_one_takes_long() {
        let mut crew = Crew::new(Threads::OfRank, [2], 2, Choice::Fixed);
        let measured = |crew: &mut Crew, reads: u32| {
            let reads = 0..reads;
            reads.filter(|_| crew.measures_next()).count() as u32
        };
        assert_eq!(measured(&mut crew, MEASURE_FIRST), MEASURE_FIRST);
        assert_eq!(measured(&mut crew, 10 * MEASURE_EVERY), 10);
        look(&mut crew, 1, 0.0);
        assert!(crew.are_quick());
        assert_eq!(measured(&mut crew, 10 * MEASURE_EVERY_QUICK), 10);
        assert!(crew.measures_next() && !crew.measures_next());
        crew.note_unmeasured(SLOW_S / 2.0);
        assert!(!crew.measures_next());
        crew.note_unmeasured(SLOW_S * 2.0);
        assert!(crew.measures_next());
    }

    #[test]
    fn one_slow_read_is_enough_and_each_takes_longer_to_forget() {
        let mut crew = Crew::new(Threads::OfRank, [2], 2, Choice::Fixed);
        for looks in [1, 8, 64] {
            look(&mut crew, looks - 1, 0.0);
            assert!(!crew.are_quick());
            look(&mut crew, 1, 0.0);
            assert!(crew.are_quick());
            crew.learn(30e-3, 30e-3);
            assert!(!crew.are_quick());
            // What is left of the look that it is in.
            (1..LOOK_EVERY).for_each(|_| crew.learn(1e-3, 0.0));
        }
    }
}
