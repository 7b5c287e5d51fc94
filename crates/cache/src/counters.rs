//! What a run did, summed over all of its processes: words in the run's file. Each process adds to one of a few stripes, so that
//! processes seldom wait for each other's cache line, and those that are killed lose nothing.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::copying::Skip;
use crate::settings::PLACES_MAX;

/// Words of a stripe.
pub const STRIPE_WORDS: usize = 128;
/// Stripes of a run.
pub const STRIPES: usize = 16;

/// Where bytes of a file came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The source.
    Source,
    /// A tier, by its number.
    Tier(usize),
}

/// What is counted by where it was served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Files that were opened for reading.
    Opens,
    /// Reads, where the program calls them.
    Reads,
    /// Bytes that they gave.
    Bytes,
    /// Mappings of files.
    Maps,
    /// Bytes that were mapped.
    MappedBytes,
    /// Copies that were made there; of the source: files that were read for it.
    Copies,
    /// Bytes of these.
    CopiedBytes,
}

/// What is counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Looks at files of the source that say whether copies are right.
    Looks,
    /// Opens that waited for another process's copy.
    Awaited,
    /// Descriptors that were open and moved to a copy.
    Moved,
    /// Files that the copying process was asked to copy.
    Asked,
    /// Copies that were removed, since the program was about to change their files.
    Removed,
    /// Processes that the library was at work in.
    Processes,
    /// Files that were brought before they were opened.
    Ahead,
    /// Opens that were not in the given order.
    OffOrder,
}

const BY: usize = 7;
const PLACES: usize = PLACES_MAX + 1;
const COUNTS_FROM: usize = BY * PLACES;
const COUNTS: usize = 8;
const SKIPS_FROM: usize = COUNTS_FROM + COUNTS;
const SKIPS: usize = 8;

/// All reasons, with their words.
pub const REASONS: [(Skip, &str); SKIPS] = [
    (Skip::Quota, "no room in the quota"),
    (Skip::Floor, "no room above the free-space floor"),
    (Skip::Busy, "too many dirty pages"),
    (Skip::Young, "changed a moment ago"),
    (Skip::Changed, "changed while copied"),
    (Skip::Attributes, "has extended attributes"),
    (Skip::Claimed, "another process took too long"),
    (Skip::Failed, "failed"),
];

const _: () = assert!(SKIPS_FROM + SKIPS <= STRIPE_WORDS);

fn by(what: By, origin: Origin) -> usize {
    let place = match origin {
        Origin::Source => 0,
        Origin::Tier(tier) => 1 + tier.min(PLACES_MAX - 1),
    };
    what as usize * PLACES + place
}

fn skip_index(why: Skip) -> usize {
    let index = REASONS.iter().position(|(reason, _)| *reason == why);
    SKIPS_FROM + index.unwrap_or(SKIPS - 1)
}

/// One stripe, to add to.
#[derive(Clone, Copy, Debug)]
pub struct Stripe<'a>(&'a [AtomicU64]);

impl<'a> Stripe<'a> {
    /// That of a process.
    pub fn of(words: &'a [AtomicU64], process: u32) -> Self {
        let from = (process as usize % STRIPES) * STRIPE_WORDS;
        Self(&words[from..from + STRIPE_WORDS])
    }

    /// Adds to what is counted by origin.
    pub fn add(&self, what: By, origin: Origin, number: u64) {
        self.0[by(what, origin)].fetch_add(number, Relaxed);
    }

    /// Counts one.
    pub fn count(&self, what: Count) {
        self.0[COUNTS_FROM + what as usize].fetch_add(1, Relaxed);
    }

    /// Counts a copy that was made.
    pub fn copied(&self, tier: usize, size_bytes: u64) {
        self.add(By::Copies, Origin::Tier(tier), 1);
        self.add(By::CopiedBytes, Origin::Tier(tier), size_bytes);
    }

    /// Counts a file that is not copied.
    pub fn skip(&self, why: Skip) {
        self.0[skip_index(why)].fetch_add(1, Relaxed);
    }
}

/// What all stripes come to.
#[derive(Clone, Debug)]
pub struct Sums(Vec<u64>);

impl Sums {
    /// Of all stripes.
    pub fn of(words: &[AtomicU64]) -> Self {
        let mut sums = vec![0; STRIPE_WORDS];
        for stripe in words.chunks_exact(STRIPE_WORDS).take(STRIPES) {
            for (sum, word) in sums.iter_mut().zip(stripe) {
                *sum += word.load(Relaxed);
            }
        }
        Self(sums)
    }

    /// What is counted by origin.
    pub fn by(&self, what: By, origin: Origin) -> u64 {
        self.0[by(what, origin)]
    }

    /// What is counted once.
    pub fn count(&self, what: Count) -> u64 {
        self.0[COUNTS_FROM + what as usize]
    }

    /// Files that were not copied for that reason.
    pub fn skips(&self, why: Skip) -> u64 {
        self.0[skip_index(why)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_come_to_sums_and_nothing_is_counted_twice() {
        let words: Vec<AtomicU64> = (0..STRIPES * STRIPE_WORDS)
            .map(|_| AtomicU64::new(0))
            .collect();
        for process in 0..100 {
            let stripe = Stripe::of(&words, process);
            stripe.add(By::CopiedBytes, Origin::Tier(PLACES_MAX - 1), 5);
            stripe.count(Count::Looks);
            stripe.count(Count::OffOrder);
            stripe.skip(Skip::Quota);
        }
        let sums = Sums::of(&words);
        let counted = [
            sums.by(By::CopiedBytes, Origin::Tier(PLACES_MAX - 1)),
            sums.count(Count::Looks),
            sums.count(Count::OffOrder),
            sums.skips(Skip::Quota),
        ];
        assert_eq!(counted, [500, 100, 100, 100]);
        assert_eq!(sums.0.iter().sum::<u64>(), 800);
    }
}
