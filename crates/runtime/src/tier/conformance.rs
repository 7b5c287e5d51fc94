//! What every tier must do, checked from outside. An implementation's tests call [`check`] with a way to make an empty
//! tier of so many bytes for the samples of [`catalog`], and [`check_closing`] if jobs have it; one that is switched off
//! passes [`check_holds_nothing`]. In debug builds the calls that may be made with a job's lock are made so that writing a
//! file would be noticed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use foresee_core::catalog::Catalog;
use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;

use super::{Arrived, Found, Kept, Place, Secured, Shared, Stay, Tier, forbid_writes};
use crate::stamp::Stamp;

/// Size of most samples: a multiple of every usual alignment, so that a tier that rounds up is exact as well.
const SIZE: u64 = 4096;
/// How many samples have that size; they come first.
const EQUAL: u32 = 48;
/// Sizes of the others.
const OTHERS: [u64; 6] = [1, 3, 511, 4097, 10_000, 65_537];

const THREADS: u64 = 4;
/// Enough for every kind of race to happen many times, in well under a second.
const STEPS_PER_THREAD: u64 = 4000;

/// The samples that the checks use.
pub fn catalog() -> Catalog {
    Catalog::new([SIZE; EQUAL as usize].into_iter().chain(OTHERS).collect())
}

/// Checks a tier; `make` gives an empty one of a capacity.
///
/// # Panics
/// If the tier does not do what every tier must.
pub fn check(make: &mut dyn FnMut(Bytes) -> Box<dyn Tier>) {
    returns_what_was_kept(&*make(Bytes(catalog().total().0 * 2)));
    a_miss_is_a_value(&*make(Bytes(SIZE)));
    capacity_is_exact(&*make(Bytes(10 * SIZE + SIZE - 1)));
    evicting_makes_room(&*make(Bytes(16 * SIZE)));
    keeping_again_replaces(&*make(Bytes(4 * SIZE)));
    what_is_shared_is_what_was_kept(&*make(Bytes(4 * SIZE)));
    a_place_is_where_a_sample_stays(&*make(Bytes(2 * SIZE)));
    what_changes_after_it_was_secured_is_not_served(&*make(Bytes(2 * SIZE)));
    only_what_was_kept_as_it_is_now_is_current(&*make(Bytes(2 * SIZE)));
    what_is_held_has_its_place(&*make(Bytes(2 * SIZE)));
    threads_get_whole_samples(&*make(Bytes(u64::from(EQUAL) / 2 * SIZE)));
}

/// Checks that a tier can be let go of.
///
/// # Panics
/// If it does not end as every tier of a job must.
pub fn check_closing(make: &mut dyn FnMut(Bytes) -> Box<dyn Tier>) {
    let tier = make(Bytes(4 * SIZE));
    assert_eq!(keep(&*tier, SampleId(0), 0), Kept::Yes);
    let shared = tier.share(SampleId(0));
    tier.close();
    tier.close();
    assert_eq!(tier.capacity(), Bytes(4 * SIZE), "it is what it was");
    assert_eq!(read(&*tier, SampleId(0)), None, "nothing is found");
    assert!(tier.held().is_empty());
    tier.evict(SampleId(0));
    if let Shared::Block(block) = shared {
        assert_eq!(block.bytes(), bytes(SampleId(0), 0), "others still have it");
    }
}

/// Checks a tier that is switched off.
///
/// # Panics
/// If it has room, or holds anything.
pub fn check_holds_nothing(tier: &dyn Tier) {
    let sample = SampleId(1);
    assert_eq!(tier.capacity(), Bytes(0));
    assert!(tier.is_closed_to(Bytes(1)) && !tier.writes_files() && !tier.outlasts_jobs());
    assert!(!matches!(
        tier.place(Bytes(SIZE), Stay::Lasting),
        Place::Here(_)
    ));
    assert_eq!(keep(tier, sample, 0), Kept::NoRoom);
    assert_eq!(read(tier, sample), None);
    assert!(!matches!(share(tier, sample), Shared::Block(_)));
    evict(tier, sample);
    assert!(tier.settle(sample) && !tier.give_up(sample));
    assert!(tier.held().is_empty());
    tier.close();
}

fn returns_what_was_kept(tier: &dyn Tier) {
    let sizes = catalog();
    for sample in sizes.samples().filter(|sample| sample.0 % 5 != 3) {
        assert_eq!(
            keep(tier, sample, 0),
            Kept::Yes,
            "there is room for sample {sample}"
        );
    }
    for sample in sizes.samples() {
        assert_eq!(
            read(tier, sample),
            (sample.0 % 5 != 3).then_some(0),
            "sample {sample}"
        );
    }
    let kept: Vec<_> = sizes.samples().filter(|sample| sample.0 % 5 != 3).collect();
    assert_eq!(tier.held(), kept, "what is held, in order");
}

fn a_miss_is_a_value(tier: &dyn Tier) {
    assert_eq!(
        read(tier, SampleId(1)),
        None,
        "a sample that was never kept"
    );
    evict(tier, SampleId(1));
    assert_eq!(keep(tier, SampleId(1), 0), Kept::Yes);
    evict(tier, SampleId(1));
    assert_eq!(read(tier, SampleId(1)), None, "a sample that was evicted");
    assert!(tier.held().is_empty());
}

fn capacity_is_exact(tier: &dyn Tier) {
    for sample in (0..10).map(SampleId) {
        assert_eq!(
            keep(tier, sample, 0),
            Kept::Yes,
            "ten samples fit, so sample {sample} does"
        );
    }
    assert_eq!(
        keep(tier, SampleId(10), 0),
        Kept::NoRoom,
        "there is one byte less than eleven samples need"
    );
    assert_eq!(
        read(tier, SampleId(10)),
        None,
        "what found no room is not held"
    );
    assert_eq!(tier.held().len(), 10);
    for sample in (0..10).map(SampleId) {
        assert_eq!(read(tier, sample), Some(0), "what was held before stays");
    }
}

fn evicting_makes_room(tier: &dyn Tier) {
    for sample in (0..16).map(SampleId) {
        assert_eq!(keep(tier, sample, 0), Kept::Yes);
    }
    // Every other one, so that the room is in pieces; then its neighbours, so that it is in one.
    for sample in (0..16).step_by(2).chain((1..16).step_by(2)).map(SampleId) {
        assert_eq!(keep(tier, SampleId(sample.0 + 16), 0), Kept::NoRoom);
        evict(tier, sample);
        assert_eq!(
            keep(tier, SampleId(sample.0 + 16), 0),
            Kept::Yes,
            "sample {sample} made room"
        );
    }
    assert_eq!(tier.held(), (16..32).map(SampleId).collect::<Vec<_>>());
    for sample in (16..32).map(SampleId) {
        assert_eq!(read(tier, sample), Some(0));
    }
}

fn keeping_again_replaces(tier: &dyn Tier) {
    for sample in (0..4).map(SampleId) {
        assert_eq!(keep(tier, sample, 0), Kept::Yes);
    }
    for version in [0, 1, 2] {
        assert_eq!(
            keep(tier, SampleId(2), version),
            Kept::Yes,
            "a held sample needs no more room"
        );
        assert_eq!(
            read(tier, SampleId(2)),
            Some(version),
            "the bytes that were kept last"
        );
    }
    assert_eq!(tier.held().len(), 4);
    assert_eq!(
        [0, 1, 3].map(|sample| read(tier, SampleId(sample))),
        [Some(0); 3]
    );
}

fn what_is_shared_is_what_was_kept(tier: &dyn Tier) {
    let samples = [0, 1, 2, 3].map(SampleId);
    let shares = !matches!(share(tier, samples[0]), Shared::Never);
    for sample in samples {
        assert_eq!(keep(tier, sample, 1), Kept::Yes);
    }
    for sample in samples {
        match share(tier, sample) {
            Shared::Block(block) => assert_eq!(block.bytes(), bytes(sample, 1)),
            Shared::NotHeld => panic!("sample {sample} is held"),
            Shared::Never => assert!(!shares, "a tier shares its samples or does not"),
        }
    }
    evict(tier, samples[0]);
    assert!(
        !matches!(share(tier, samples[0]), Shared::Block(_)),
        "what was evicted is not shared"
    );
}

fn a_place_is_where_a_sample_stays(tier: &dyn Tier) {
    let place = |sample: SampleId| {
        let _at_once = forbid_writes();
        match tier.place(catalog().size(sample), Stay::Lasting) {
            Place::Here(filling) => Some(filling),
            Place::Full => panic!("there is room for sample {sample}"),
            Place::Anywhere => None,
        }
    };
    for sample in [0, 1].map(SampleId) {
        let Some(mut filling) = place(sample) else {
            return;
        };
        filling.bytes_mut().copy_from_slice(&bytes(sample, 0));
        let block = filling.share();
        let arrived = Arrived::Block(&block);
        let kept = tier.keep_secured(sample, arrived, tier.secure(arrived, Stay::Lasting), None);
        assert_eq!(kept.ok(), Some(Kept::Yes));
        let Shared::Block(shared) = share(tier, sample) else {
            panic!("sample {sample} stays where it was read to");
        };
        assert_eq!(shared.bytes().as_ptr(), block.bytes().as_ptr());
        assert_eq!(read(tier, sample), Some(0));
    }
    assert_eq!(
        keep(tier, SampleId(2), 0),
        Kept::NoRoom,
        "what came to its place counts"
    );
}

fn what_changes_after_it_was_secured_is_not_served(tier: &dyn Tier) {
    let sample = SampleId(1);
    let as_read = bytes(sample, 0);
    let changed = bytes(sample, 1);
    let secured = {
        let _no_files = forbid_writes();
        tier.secure(Arrived::Buffer(&as_read), Stay::Lasting)
    };
    // A tier that needs nothing has its own bytes, or none that anybody could change.
    if matches!(secured, Secured::Nothing) {
        return;
    }
    let kept = tier.keep_secured(sample, Arrived::Buffer(&changed), secured, None);
    assert!(kept.is_ok());
    assert!(
        matches!(read(tier, sample), None | Some(0)),
        "it is what came from the source, or a miss"
    );
}

fn only_what_was_kept_as_it_is_now_is_current(tier: &dyn Tier) {
    let stamp = |inode| Stamp {
        size_bytes: SIZE,
        inode,
        trusted: true,
        ..Stamp::default()
    };
    let sample = SampleId(1);
    let kept = tier.keep(sample, &bytes(sample, 0), Some(stamp(1)));
    assert_eq!(kept.ok(), Some(Kept::Yes));
    let _no_files = forbid_writes();
    assert!(tier.is_current(sample, &stamp(1)));
    if tier.outlasts_jobs() {
        assert!(!tier.is_current(sample, &stamp(2)), "it is another file");
        assert!(!tier.is_current(SampleId(0), &stamp(1)), "it is not held");
    }
}

fn what_is_held_has_its_place(tier: &dyn Tier) {
    assert_eq!(tier.capacity(), Bytes(2 * SIZE));
    assert!(tier.held().is_empty() && !tier.is_closed_to(Bytes(SIZE)));
    let sample = SampleId(1);
    assert_eq!(keep(tier, sample, 0), Kept::Yes);
    {
        let _at_once = forbid_writes();
        assert!(tier.settle(sample) && !tier.give_up(sample));
        assert!(tier.settle(SampleId(0)) && !tier.give_up(SampleId(0)));
    }
    assert_eq!(read(tier, sample), Some(0));
}

fn threads_get_whole_samples(tier: &dyn Tier) {
    let read_whole = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let read_whole = &read_whole;
            scope.spawn(move || {
                for step in 0..STEPS_PER_THREAD {
                    act_at_random(tier, mixed(thread << 32 | step), read_whole);
                }
            });
        }
    });
    assert!(read_whole.into_inner() > 0, "some reads find their sample");
    assert!(
        tier.held().len() as u64 <= u64::from(EQUAL) / 2,
        "capacity holds under threads, too"
    );
    for sample in tier.held() {
        assert!(read(tier, sample).is_some(), "what is held can be read");
        evict(tier, sample);
    }
    for sample in (0..EQUAL / 2).map(SampleId) {
        assert_eq!(keep(tier, sample, 0), Kept::Yes, "no room was lost");
    }
}

fn act_at_random(tier: &dyn Tier, random: u64, read_whole: &AtomicU64) {
    let sample = SampleId((random >> 8) as u32 % EQUAL);
    match random % 8 {
        0..=1 => {
            keep(tier, sample, random >> 40 & 3);
        }
        2 => evict(tier, sample),
        _ => {
            read_whole.fetch_add(u64::from(read(tier, sample).is_some()), Ordering::Relaxed);
        }
    }
}

/// With the job's lock, where that is allowed.
fn keep(tier: &dyn Tier, sample: SampleId, version: u64) -> Kept {
    let _at_once = (!tier.writes_files()).then(forbid_writes);
    match tier.keep(sample, &bytes(sample, version), None) {
        Ok(kept) => kept,
        Err(error) => panic!("keep: {error}"),
    }
}

fn evict(tier: &dyn Tier, sample: SampleId) {
    let _at_once = forbid_writes();
    tier.evict(sample);
}

fn share(tier: &dyn Tier, sample: SampleId) -> Shared {
    let _at_once = forbid_writes();
    tier.share(sample)
}

/// Which version of a sample is held; it must be one of those that were kept, as a whole.
fn read(tier: &dyn Tier, sample: SampleId) -> Option<u64> {
    let mut into = vec![0; catalog().size(sample).0 as usize];
    // Who must not wait may be refused, but never gets anything else.
    let at_once = {
        let _at_once = forbid_writes();
        tier.read_at_once(sample, &mut into)
    };
    assert!(at_once.is_ok());
    if matches!(at_once, Ok(true)) {
        assert!(version_of(sample, &into).is_some());
    }
    match tier.read(sample, &mut into) {
        Ok(Found::NotHeld) => None,
        Ok(Found::Yes) => {
            let version = version_of(sample, &into);
            assert!(
                version.is_some(),
                "sample {sample} is read as it was never kept"
            );
            version
        }
        Err(error) => panic!("read: {error}"),
    }
}

fn version_of(sample: SampleId, data: &[u8]) -> Option<u64> {
    (0..4).find(|&version| data == bytes(sample, version))
}

/// The bytes of a version of a sample, unlike those of any other, but for the shortest samples.
fn bytes(sample: SampleId, version: u64) -> Vec<u8> {
    let len = catalog().size(sample).0 as usize;
    let seed = u64::from(sample.0) << 32 | version << 24;
    let words = (0..).flat_map(|word| mixed(seed + word).to_le_bytes());
    words.take(len).collect()
}

/// A number that looks random (`SplitMix64`).
fn mixed(number: u64) -> u64 {
    let mut z = number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::super::TierError;
    use super::*;

    /// The simplest tier there is.
    struct Plain {
        capacity: u64,
        held: Mutex<BTreeMap<SampleId, Vec<u8>>>,
    }

    impl Tier for Plain {
        fn capacity(&self) -> Bytes {
            Bytes(self.capacity)
        }

        fn keep_secured(
            &self,
            sample: SampleId,
            arrived: Arrived<'_>,
            _: Secured,
            _: Option<Stamp>,
        ) -> Result<Kept, TierError> {
            let data = arrived.bytes();
            let mut held = self.held.lock().unwrap();
            let others: usize = held
                .iter()
                .filter(|(other, _)| **other != sample)
                .map(|(_, data)| data.len())
                .sum();
            if (others + data.len()) as u64 > self.capacity {
                return Ok(Kept::NoRoom);
            }
            held.insert(sample, data.to_vec());
            Ok(Kept::Yes)
        }

        fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
            let held = self.held.lock().unwrap();
            let Some(data) = held.get(&sample) else {
                return Ok(Found::NotHeld);
            };
            into.copy_from_slice(data);
            Ok(Found::Yes)
        }

        fn evict(&self, sample: SampleId) {
            self.held.lock().unwrap().remove(&sample);
        }

        fn held(&self) -> Vec<SampleId> {
            self.held.lock().unwrap().keys().copied().collect()
        }
    }

    #[test]
    fn a_map_is_a_tier() {
        check(&mut |capacity| {
            Box::new(Plain {
                capacity: capacity.0,
                held: Mutex::default(),
            })
        });
    }

    /// Forgets that there is a limit.
    struct Boundless(Plain);

    impl Tier for Boundless {
        fn capacity(&self) -> Bytes {
            self.0.capacity()
        }

        fn keep_secured(
            &self,
            sample: SampleId,
            arrived: Arrived<'_>,
            _: Secured,
            _: Option<Stamp>,
        ) -> Result<Kept, TierError> {
            let data = arrived.bytes().to_vec();
            self.0.held.lock().unwrap().insert(sample, data);
            Ok(Kept::Yes)
        }

        fn read(&self, sample: SampleId, into: &mut [u8]) -> Result<Found, TierError> {
            self.0.read(sample, into)
        }

        fn evict(&self, sample: SampleId) {
            self.0.evict(sample);
        }

        fn held(&self) -> Vec<SampleId> {
            self.0.held()
        }
    }

    #[test]
    #[should_panic(expected = "there is one byte less than eleven samples need")]
    fn a_tier_without_a_limit_does_not_pass() {
        check(&mut |_| {
            Box::new(Boundless(Plain {
                capacity: 0,
                held: Mutex::default(),
            }))
        });
    }
}
