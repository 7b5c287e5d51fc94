//! What `foresee run` was told, as the library in the program and the copying process read it: tagged fields in the run's
//! file. All of it was checked before it was written; what does not read back makes a process go on without a cache.

/// How many sources and tiers there may be at most: both are walked at each open.
pub const PLACES_MAX: usize = 8;
/// The longest path of a source or a cache folder; copies' paths are built in a buffer of a fixed size.
pub const PATH_BYTES_MAX: usize = 400;
/// Files beyond it are copied in the background. Up to it, a copy in one pass takes no longer than the reads that it saves.
pub const SMALL_BYTES: u64 = 1 << 20;

/// When a copy is trusted without a look at its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validation {
    /// Never.
    #[default]
    Always,
    /// For so long after the last look by any process of the run.
    For {
        /// The time.
        ns: u64,
    },
    /// Once looked at, for the whole run.
    Once,
}

/// A folder whose files are copied, as it was named and as it is when links are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Absolute, without `.`, `..` and doubled slashes, none at its end.
    pub named: Vec<u8>,
    /// The same folder by its real path.
    pub real: Vec<u8>,
}

/// A cache folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierSettings {
    /// Its real path.
    pub path: Vec<u8>,
    /// How many bytes copies may take.
    pub quota_bytes: u64,
    /// How many bytes of its file system stay free.
    pub floor_bytes: u64,
    /// Whether it is in memory.
    pub in_memory: bool,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What is cached.
    pub roots: Vec<Root>,
    /// Where, fastest first.
    pub tiers: Vec<TierSettings>,
    /// When copies are trusted.
    pub validation: Validation,
    /// Whether opens are told to the copying process, which knows their order.
    pub tells_opens: bool,
    /// Whether the kernel may answer a look at a file of the sources from what it remembers, as it does for storages on a
    /// network: then it has to be told to ask, which takes as long as they take to answer.
    pub are_looks_remembered: bool,
}

const ROOT: u8 = 1;
const TIER: u8 = 2;
const VALIDATION: u8 = 3;
const TELLS_OPENS: u8 = 4;
const ARE_LOOKS_REMEMBERED: u8 = 5;
const ONCE_NS: u64 = u64::MAX;

impl Settings {
    /// As they are written down.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for root in &self.roots {
            let named_len = (root.named.len() as u32).to_le_bytes();
            field(&mut bytes, ROOT, &[&named_len, &root.named, &root.real]);
        }
        for tier in &self.tiers {
            let quota = tier.quota_bytes.to_le_bytes();
            let floor = tier.floor_bytes.to_le_bytes();
            let parts: [&[u8]; 4] = [&quota, &floor, &[u8::from(tier.in_memory)], &tier.path];
            field(&mut bytes, TIER, &parts);
        }
        let trusted_ns = match self.validation {
            Validation::Always => 0,
            Validation::For { ns } => ns,
            Validation::Once => ONCE_NS,
        };
        field(&mut bytes, VALIDATION, &[&trusted_ns.to_le_bytes()]);
        field(&mut bytes, TELLS_OPENS, &[&[u8::from(self.tells_opens)]]);
        let are_looks_remembered = [u8::from(self.are_looks_remembered)];
        field(&mut bytes, ARE_LOOKS_REMEMBERED, &[&are_looks_remembered]);
        bytes
    }

    /// What was written down; none where it is damaged or of another version.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let mut settings = Self::default();
        while !bytes.is_empty() {
            let tag = take(&mut bytes, 1)?[0];
            let len = take_u32(&mut bytes)?;
            let mut value = take(&mut bytes, len as usize)?;
            match tag {
                ROOT => settings.roots.push(root(&mut value)?),
                TIER => settings.tiers.push(tier(&mut value)?),
                VALIDATION => settings.validation = validation(take_u64(&mut value)?),
                TELLS_OPENS => settings.tells_opens = take(&mut value, 1)?[0] != 0,
                ARE_LOOKS_REMEMBERED => {
                    settings.are_looks_remembered = take(&mut value, 1)?[0] != 0;
                }
                _ => return None,
            }
        }
        let counts = [settings.roots.len(), settings.tiers.len()];
        counts
            .iter()
            .all(|count| (1..=PLACES_MAX).contains(count))
            .then_some(settings)
    }
}

fn field(bytes: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    bytes.push(tag);
    bytes.extend((len as u32).to_le_bytes());
    for part in parts {
        bytes.extend(*part);
    }
}

fn root(value: &mut &[u8]) -> Option<Root> {
    let named_len = take_u32(value)?;
    Some(Root {
        named: take(value, named_len as usize)?.to_vec(),
        real: value.to_vec(),
    })
}

fn tier(value: &mut &[u8]) -> Option<TierSettings> {
    Some(TierSettings {
        quota_bytes: take_u64(value)?,
        floor_bytes: take_u64(value)?,
        in_memory: take(value, 1)?[0] != 0,
        path: value.to_vec(),
    })
}

fn validation(trusted_ns: u64) -> Validation {
    match trusted_ns {
        0 => Validation::Always,
        ONCE_NS => Validation::Once,
        ns => Validation::For { ns },
    }
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes, 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes, 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            roots: vec![Root {
                named: b"/data".to_vec(),
                real: b"/mnt/x\ny".to_vec(),
            }],
            tiers: vec![
                TierSettings {
                    path: b"/dev/shm/c".to_vec(),
                    quota_bytes: 5,
                    floor_bytes: 6,
                    in_memory: true,
                },
                TierSettings {
                    path: b"/nvme".to_vec(),
                    quota_bytes: u64::MAX,
                    floor_bytes: 0,
                    in_memory: false,
                },
            ],
            validation: Validation::For { ns: 7 },
            tells_opens: true,
            are_looks_remembered: true,
        }
    }

    #[test]
    fn read_back_as_they_were_written_down() {
        for validation in [
            Validation::Always,
            Validation::Once,
            Validation::For { ns: 1 },
        ] {
            let settings = Settings {
                validation,
                ..settings()
            };
            assert_eq!(Settings::from_bytes(&settings.to_bytes()), Some(settings));
        }
    }

    #[test]
    fn what_is_cut_off_does_not_read_back() {
        let bytes = settings().to_bytes();
        let whole = (0..bytes.len()).filter(|len| Settings::from_bytes(&bytes[..*len]).is_some());
        // Whole fields may be left out: the second tier, and the three behind it.
        assert_eq!(whole.count(), 4);
        assert_eq!(Settings::from_bytes(b""), None);
        assert_eq!(Settings::from_bytes(&[9, 0, 0, 0, 0]), None);
    }
}
