//! The file of a run: what it was told, what it counts, and, while the order of opens is known, what was opened. It is in the
//! first cache folder, and its path is all that the environment of the program has.

use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, pread};
use rustix::path::Arg;
use rustix::time::{ClockId, clock_gettime};

use crate::counters::{STRIPE_WORDS, STRIPES, Stripe, Sums};
use crate::key::Key;
use crate::look::{LOOK_WORDS, Look};
use crate::settings::{Settings, Validation};
use crate::shared::{self, Shared, WORD_BYTES};

/// The environment variable with the path of the file.
pub const VARIABLE: &str = "FORESEE_RUN";

const MAGIC: &[u8; 16] = b"foresee run 0001";
/// Settings take up to here: eight sources and eight tiers with their longest paths.
const HEAD_BYTES: u64 = 16 << 10;
const COUNTER_WORDS: usize = STRIPES * STRIPE_WORDS;
/// Behind the counters: the first read, and where the opens are.
const FIRST_READ: usize = COUNTER_WORDS;
const OPENED: usize = COUNTER_WORDS + 1;
const STATE_WORDS: usize = COUNTER_WORDS + 512;
/// Opens that were told and not yet heard of. More than the copying process misses in the milliseconds between its looks.
const OPENS: usize = 1 << 14;
/// Files that are trusted for a while, each at the place that its path comes to.
const TRUSTED: usize = 1 << 16;
const TRUSTED_WORDS: usize = 16;

/// A run, as its processes see it.
#[derive(Debug)]
pub struct Run {
    settings: Settings,
    state: Shared,
    opens: Option<Shared>,
    trusted: Option<Shared>,
}

impl Run {
    /// Makes the file of a new run.
    pub fn make(path: impl Arg + Copy, settings: &Settings) -> io::Result<()> {
        let said = settings.to_bytes();
        let mut head = MAGIC.to_vec();
        head.extend((said.len() as u64).to_le_bytes());
        head.extend(monotonic_ns().to_le_bytes());
        head.extend(&said);
        if head.len() as u64 > HEAD_BYTES {
            return Err(Errno::TOOBIG.into());
        }
        shared::make(path, &head, Places::of(settings).end_bytes)
    }

    /// Maps the file of a run.
    pub fn open(path: impl Arg) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(CWD, path, flags, Mode::empty())?;
        let mut head = vec![0; HEAD_BYTES as usize];
        let len = pread(&file, &mut head, 0)?;
        let settings = head_settings(&head[..len]).ok_or(Errno::INVAL)?;
        let places = Places::of(&settings);
        let state = Shared::map(&file, HEAD_BYTES, STATE_WORDS)?;
        let optional =
            |from: Option<u64>, words| from.map(|from| Shared::map(&file, from, words)).transpose();
        let opens = optional(places.opens, OPENS)?;
        let trusted = optional(places.trusted, TRUSTED * TRUSTED_WORDS)?;
        Ok(Self {
            settings,
            state,
            opens,
            trusted,
        })
    }

    /// What the run was told.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where a process counts.
    pub fn stripe(&self, process: u32) -> Stripe<'_> {
        Stripe::of(self.state.words(), process)
    }

    /// What was counted so far.
    pub fn sums(&self) -> Sums {
        Sums::of(&self.state.words()[..COUNTER_WORDS])
    }

    /// A byte of the source or of a copy was read; the first time is written down.
    pub fn note_read(&self) {
        let first = &self.state.words()[FIRST_READ];
        if first.load(Relaxed) == 0 {
            let _ = first.compare_exchange(0, monotonic_ns(), Relaxed, Relaxed);
        }
    }

    /// When the first byte was read, on the machine's own clock.
    pub fn first_read_ns(&self) -> Option<u64> {
        Some(self.state.words()[FIRST_READ].load(Relaxed)).filter(|ns| *ns > 0)
    }

    /// Tells the copying process that a file was opened.
    pub fn tell_open(&self, opened: u64) {
        let Some(opens) = &self.opens else { return };
        let at = self.state.words()[OPENED].fetch_add(1, AcqRel);
        opens.words()[at as usize % OPENS].store(opened, Release);
    }

    /// What was opened since a place among the opens, in order, as far as it is still known and told in full; and the next
    /// place. An open that is being told is heard of the next time: it is zero until then.
    pub fn hear_opens(&self, from: u64, mut heard: impl FnMut(u64)) -> u64 {
        let Some(opens) = &self.opens else {
            return from;
        };
        let end = self.state.words()[OPENED].load(Acquire);
        let mut at = from.max(end.saturating_sub(OPENS as u64));
        while at < end {
            let opened = opens.words()[at as usize % OPENS].swap(0, AcqRel);
            if opened == 0 {
                break;
            }
            heard(opened);
            at += 1;
        }
        at
    }

    /// What a file was, if it was looked at so lately that it is trusted. Paths are by their key.
    pub fn trusted(&self, path: Key) -> Option<Look> {
        let for_ns = match self.settings.validation {
            Validation::Always => return None,
            Validation::For { ns } => ns,
            Validation::Once => u64::MAX,
        };
        let words = self.trusted_words(path)?;
        let version = words[0].load(Acquire);
        let is_meant = version % 2 == 0 && words[1].load(Relaxed) == path.low_bits();
        let looked_ns = words[2].load(Relaxed);
        let mut look = [0; LOOK_WORDS];
        for (word, from) in look.iter_mut().zip(&words[3..]) {
            *word = from.load(Relaxed);
        }
        std::sync::atomic::fence(Acquire);
        let is_whole = version == words[0].load(Relaxed);
        let is_fresh = looked_ns > 0 && monotonic_ns().saturating_sub(looked_ns) < for_ns;
        (is_meant && is_whole && is_fresh).then(|| Look::from_words(look))
    }

    /// Writes down what a file was when it was looked at, or that it is not to be trusted.
    pub fn trust(&self, path: Key, look: Option<&Look>) {
        let Some(words) = self.trusted_words(path) else {
            return;
        };
        let version = words[0].load(Relaxed);
        // Odd while it is written. Who comes at the same time does without; one that was killed leaves a place unused.
        let is_ours = version % 2 == 0
            && words[0]
                .compare_exchange(version, version + 1, AcqRel, Relaxed)
                .is_ok();
        if !is_ours {
            return;
        }
        words[1].store(path.low_bits(), Relaxed);
        words[2].store(look.map_or(0, |_| monotonic_ns()), Relaxed);
        for (word, value) in words[3..]
            .iter()
            .zip(look.copied().unwrap_or_default().to_words())
        {
            word.store(value, Relaxed);
        }
        words[0].store(version + 2, Release);
    }

    fn trusted_words(&self, path: Key) -> Option<&[std::sync::atomic::AtomicU64]> {
        let from = (path.low_bits() as usize % TRUSTED) * TRUSTED_WORDS;
        Some(&self.trusted.as_ref()?.words()[from..from + TRUSTED_WORDS])
    }
}

/// What is where in the file.
struct Places {
    opens: Option<u64>,
    trusted: Option<u64>,
    end_bytes: u64,
}

impl Places {
    fn of(settings: &Settings) -> Self {
        let mut end_bytes = HEAD_BYTES + STATE_WORDS as u64 * WORD_BYTES;
        let mut place = |is_wanted: bool, words: usize| {
            let from = end_bytes;
            is_wanted.then(|| {
                end_bytes += words as u64 * WORD_BYTES;
                from
            })
        };
        let opens = place(settings.tells_opens, OPENS);
        let is_trusting = settings.validation != Validation::Always;
        let trusted = place(is_trusting, TRUSTED * TRUSTED_WORDS);
        Self {
            opens,
            trusted,
            end_bytes,
        }
    }
}

fn head_settings(head: &[u8]) -> Option<Settings> {
    let said = head.strip_prefix(MAGIC)?;
    let (len, said) = said.split_first_chunk()?;
    let (_began, said) = said.split_first_chunk::<8>()?;
    Settings::from_bytes(said.get(..u64::from_le_bytes(*len) as usize)?)
}

/// Now, on the machine's own clock, which all its processes see alike.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Count;
    use crate::key::path_key;
    use crate::settings::{Root, TierSettings};

    fn made(validation: Validation) -> (tempfile::TempDir, Run) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let settings = Settings {
            roots: vec![Root {
                named: b"/a".to_vec(),
                real: b"/b".to_vec(),
            }],
            tiers: vec![TierSettings {
                path: b"/c".to_vec(),
                quota_bytes: 1,
                floor_bytes: 2,
                in_memory: false,
            }],
            validation,
            tells_opens: true,
            are_looks_remembered: false,
        };
        Run::make(&path, &settings).unwrap();
        assert!(Run::make(&path, &settings).is_err());
        let run = Run::open(&path).unwrap();
        assert_eq!(*run.settings(), settings);
        (folder, run)
    }

    #[test]
    fn processes_count_together() {
        let (folder, run) = made(Validation::Always);
        let other = Run::open(folder.path().join("run")).unwrap();
        run.stripe(1).count(Count::Looks);
        other.stripe(2).count(Count::Looks);
        assert_eq!(run.sums().count(Count::Looks), 2);
        assert_eq!(run.first_read_ns(), None);
        other.note_read();
        let first = run.first_read_ns();
        run.note_read();
        assert!(first.is_some() && run.first_read_ns() == first);
    }

    #[test]
    fn opens_are_heard_in_order_and_the_oldest_are_forgotten() {
        let (_folder, run) = made(Validation::Always);
        let heard = |from: u64| {
            let mut all = Vec::new();
            let next = run.hear_opens(from, |opened| all.push(opened));
            (next, all)
        };
        run.tell_open(5);
        run.tell_open(6);
        assert_eq!(heard(0), (2, vec![5, 6]));
        assert_eq!(heard(2), (2, vec![]));
        for opened in 1..=OPENS as u64 + 3 {
            run.tell_open(opened);
        }
        let (next, all) = heard(2);
        assert_eq!((next, all.len()), (OPENS as u64 + 5, OPENS));
        assert_eq!((all[0], all[OPENS - 1]), (4, OPENS as u64 + 3));
    }

    #[test]
    fn what_was_looked_at_is_trusted_until_its_time_is_over_or_it_is_written_to() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let look = Look::of(&rustix::fs::stat(file.path()).unwrap());
        let path = path_key(b"/x");
        let (_folder, run) = made(Validation::Once);
        assert_eq!(run.trusted(path), None);
        run.trust(path, Some(&look));
        assert_eq!(run.trusted(path), Some(look));
        assert_eq!(run.trusted(path_key(b"/y")), None);
        run.trust(path, None);
        assert_eq!(run.trusted(path), None);
        let (_folder, run) = made(Validation::For { ns: 1 });
        run.trust(path, Some(&look));
        assert_eq!(run.trusted(path), None);
        let (_folder, run) = made(Validation::Always);
        run.trust(path, Some(&look));
        assert_eq!(run.trusted(path), None);
    }
}
