//! A listed dataset in one file, so that it need not be listed again. The file is named by what was listed, and valid
//! while the folders in it are what they were. Whatever is wrong with it costs a listing, never the job. The same bytes are
//! what rank 0 gives to others.
//!
//! Magic, version, checksum and key, then numbers in little endian and blocks behind their length. Its folder is another
//! matter (`catalogs`).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use foresee_config::shown;
use foresee_core::catalog::Catalog;
use tracing::{debug, warn};
use twox_hash::{XxHash3_64, XxHash3_128};

use super::catalogs::Catalogs;
use super::files::Files;
use super::names::Names;
use super::stamps::Stamps;
use super::{Dataset, Measured};
use crate::stamp::{Stamp, Times};

const MAGIC: &[u8; 8] = b"foreseeC";

/// Changes with the format, and with what a listing finds.
const VERSION: u64 = 4;

/// Magic, version, checksum.
const HEADER_BYTES: usize = 24;

/// Tells what was listed from all else that can be.
pub(super) struct Key(XxHash3_128);

impl Key {
    /// Something of this kind.
    pub(super) fn new(kind: &str) -> Self {
        Self(XxHash3_128::new()).with(kind.as_bytes())
    }

    /// With this about it.
    pub(super) fn with(mut self, part: &[u8]) -> Self {
        self.0.write(&(part.len() as u64).to_le_bytes());
        self.0.write(part);
        self
    }

    pub(super) fn value(&self) -> u128 {
        self.0.finish_128()
    }
}

/// Where a listed dataset is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    catalogs: Catalogs,
    name: String,
    key: u128,
}

impl Saved {
    /// The place among `catalogs` of what has this key.
    pub(super) fn new(catalogs: Catalogs, key: &Key) -> Self {
        let key = key.value();
        Self {
            catalogs,
            name: Catalogs::name(key),
            key,
        }
    }

    fn path(&self) -> PathBuf {
        self.catalogs.folder.join(&self.name)
    }

    /// What is saved, if it is whole and still valid, and its bytes.
    pub(super) fn load(&self, threads: usize) -> Option<(Dataset, Vec<u8>)> {
        if let Err(error) = self.catalogs.check() {
            warn!(path = %shown(&self.catalogs.folder), %error, "saved catalogs are not used; listing again");
            return None;
        }
        let bytes = match self.catalogs.read(&self.name) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                warn!(path = %shown(&self.path()), %error, "saved catalog cannot be read; listing again");
                return None;
            }
        };
        let Some((dataset, stamps)) = decode(&bytes, self.key) else {
            warn!(path = %shown(&self.path()), "saved catalog is damaged or of another version; listing again");
            return None;
        };
        if !stamps.are_current(threads) {
            debug!(path = %shown(&self.path()), "folders changed since the catalog was saved; listing again");
            return None;
        }
        Some((dataset, bytes))
    }

    /// What is saved is of no use any more.
    pub(super) fn remove(&self) {
        if let Err(error) = self.catalogs.remove(&self.name) {
            warn!(path = %shown(&self.path()), %error, "saved catalog is void, but cannot be removed; remove it");
        }
    }

    /// Saves an encoded dataset; a folder that cannot be written to is logged.
    pub(super) fn store(&self, bytes: &[u8]) {
        if self.catalogs.check().is_err() {
            // Loading said why.
            return;
        }
        if let Err(error) = self.catalogs.write(&self.name, bytes) {
            warn!(path = %shown(&self.path()), %error, "catalog cannot be saved; it will be listed again");
        }
    }
}

/// A dataset, with the stamps of its folders, as it is saved and sent.
pub(super) fn encode(dataset: &Dataset, stamps: &Stamps, key: u128) -> Vec<u8> {
    let Dataset {
        described,
        files,
        classes,
        ..
    } = dataset;
    let Measured {
        catalog,
        digest,
        times,
    } = dataset.measured();
    let mut out = Writer(vec![0; HEADER_BYTES]);
    out.0.extend(key.to_le_bytes());
    out.0.extend(digest);
    out.block(described.as_bytes());
    out.names(&classes.iter().map(|class| class.as_bytes()).collect());
    out.names(&stamps.paths);
    out.numbers(stamps.stamps.iter().map(|stamp| stamp.to_bytes()));
    out.names(&files.folders);
    out.numbers(files.folder_of.iter().map(|folder| folder.to_le_bytes()));
    out.names(&files.names);
    out.numbers(
        files
            .labels
            .iter()
            .flatten()
            .map(|label| label.to_le_bytes()),
    );
    out.numbers(
        catalog
            .samples()
            .map(|sample| catalog.size(sample).0.to_le_bytes()),
    );
    out.numbers(
        times
            .iter()
            .flat_map(|times| times.iter())
            .map(|times| times.to_bytes()),
    );
    let Writer(mut bytes) = out;
    let checksum = XxHash3_64::oneshot(&bytes[HEADER_BYTES..]);
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// What was encoded, if it is whole and has this key.
pub(super) fn decode(bytes: &[u8], key: u128) -> Option<(Dataset, Stamps)> {
    let mut input = Reader(bytes);
    if input.array::<8>()? != *MAGIC
        || input.number()? != VERSION
        || input.number()? != XxHash3_64::oneshot(input.0)
    {
        return None;
    }
    if u128::from_le_bytes(input.array()?) != key {
        return None;
    }
    let digest = input.array()?;
    let described = input.text()?;
    let classes = input
        .names()?
        .iter()
        .map(|class| OsStr::from_bytes(class).to_owned())
        .collect();
    let paths = input.names()?;
    let stamps = input
        .numbers(|bytes| Stamp::from_bytes(&bytes))?
        .into_iter()
        .collect::<Option<_>>()?;
    let stamps = Stamps { paths, stamps };
    let folders = input.names()?;
    let folder_of = input.numbers(u32::from_le_bytes)?;
    let names = input.names()?;
    let labels = input.numbers(i64::from_le_bytes)?;
    let sizes = input.numbers(u64::from_le_bytes)?;
    let times = input.numbers(Times::from_bytes)?;
    let files = Files {
        folders,
        folder_of,
        names,
        labels: (!labels.is_empty()).then_some(labels),
    };
    let measured = Measured {
        catalog: Arc::new(Catalog::new(sizes)),
        digest,
        times: (!times.is_empty()).then(|| times.into()),
    };
    let dataset = Dataset::new(described, files, classes, measured);
    let is_sound =
        input.0.is_empty() && is_sound(&dataset) && stamps.paths.len() == stamps.stamps.len();
    is_sound.then_some((dataset, stamps))
}

/// Whether all parts have the same number of samples, and every folder that is referred to is there.
fn is_sound(dataset: &Dataset) -> bool {
    let files = &dataset.files;
    let samples = files.names.len();
    let measured = dataset.measured();
    samples > 0
        && samples < u32::MAX as usize
        && files.folder_of.len() == samples
        && measured.catalog.len() as usize == samples
        && measured.times.is_none_or(|times| times.len() == samples)
        && files
            .labels
            .as_ref()
            .is_none_or(|labels| labels.len() == samples)
        && files
            .folder_of
            .iter()
            .all(|&folder| (folder as usize) < files.folders.len())
}

struct Writer(Vec<u8>);

impl Writer {
    fn block(&mut self, block: &[u8]) {
        self.0.extend((block.len() as u64).to_le_bytes());
        self.0.extend(block);
    }

    fn numbers<const N: usize>(&mut self, numbers: impl Iterator<Item = [u8; N]>) {
        let at = self.0.len();
        self.0.extend([0; 8]);
        self.0.extend(numbers.flatten());
        let length = (self.0.len() - at - 8) as u64;
        self.0[at..at + 8].copy_from_slice(&length.to_le_bytes());
    }

    fn names(&mut self, names: &Names) {
        let (bytes, ends) = names.parts();
        self.block(bytes);
        self.numbers(ends.iter().map(|end| end.to_le_bytes()));
    }
}

/// The rest of the bytes; nothing wherever they end too soon.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn block(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (block, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(block)
    }

    fn text(&mut self) -> Option<String> {
        Some(str::from_utf8(self.block()?).ok()?.to_owned())
    }

    fn numbers<T, const N: usize>(&mut self, from: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
        let mut block = self.block()?;
        let mut numbers = Vec::with_capacity(block.len() / N);
        while let Some((number, rest)) = block.split_first_chunk::<N>() {
            numbers.push(from(*number));
            block = rest;
        }
        block.is_empty().then_some(numbers)
    }

    fn names(&mut self) -> Option<Names> {
        let bytes = self.block()?.to_vec();
        Names::from_parts(bytes, self.numbers(u64::from_le_bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::sync::RwLock;

    use super::*;

    fn small() -> (Dataset, Stamps) {
        let files = Files::from_paths(
            &["/a/1", "/b/2", "/a/3"].map(PathBuf::from),
            Some(vec![1, -2, 3]),
        );
        let catalog = Arc::new(Catalog::new(vec![10, 0, u64::MAX / 2]));
        let classes = vec!["one".into(), OsString::from_vec(b"no\xfftext".to_vec())];
        let stamp = Stamp {
            mtime_ns: -1,
            trusted: true,
            ..Stamp::default()
        };
        let other = Stamp {
            size_bytes: 1,
            mtime_ns: 2,
            ctime_ns: 3,
            inode: 4,
            mount: 5,
            trusted: true,
        };
        let stamps = Stamps {
            paths: files.folders.clone(),
            stamps: vec![stamp, other],
        };
        (
            Dataset::new(
                "three".to_owned(),
                files,
                classes,
                Measured {
                    catalog,
                    digest: [3; 16],
                    times: Some((5..8).map(|time_ns| Times::new(time_ns, -7)).collect()),
                },
            ),
            stamps,
        )
    }

    #[test]
    fn gives_back_what_was_saved() {
        let (dataset, stamps) = small();
        assert_eq!(
            decode(&encode(&dataset, &stamps, 4), 4),
            Some((dataset, stamps))
        );
    }

    #[test]
    fn refuses_every_changed_bit_every_missing_end_and_every_other_key() {
        let (dataset, stamps) = small();
        let good = encode(&dataset, &stamps, 4);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert_eq!(decode(&bad, 4), None, "byte {at}");
            }
            assert_eq!(decode(&good[..at], 4), None, "{at} bytes");
        }
        assert_eq!(decode(&[good.as_slice(), b"x"].concat(), 4), None);
        assert_eq!(decode(&good, 5), None);
    }

    #[test]
    fn refuses_parts_that_do_not_fit_together_whatever_the_checksum_says() {
        let (mut dataset, stamps) = small();
        dataset.files.folder_of[1] = 2;
        assert_eq!(decode(&encode(&dataset, &stamps, 4), 4), None);
        let (mut dataset, stamps) = small();
        dataset.files.labels = Some(vec![1]);
        assert_eq!(decode(&encode(&dataset, &stamps, 4), 4), None);
        let (mut dataset, stamps) = small();
        let catalog = Arc::new(Catalog::new(vec![1]));
        dataset.measured = RwLock::new(Measured {
            catalog,
            digest: [3; 16],
            times: None,
        });
        assert_eq!(decode(&encode(&dataset, &stamps, 4), 4), None);
        let (mut dataset, stamps) = small();
        dataset.measured = RwLock::new(Measured {
            times: Some([Times::default()].into()),
            ..dataset.measured()
        });
        assert_eq!(decode(&encode(&dataset, &stamps, 4), 4), None);
    }
}
