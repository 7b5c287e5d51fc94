//! The index on disk: a header, then one record a change, each with its own checksum. It is only ever appended to, or
//! replaced as a whole by a rename. Nothing is synced: what a crash tore off is found by its checksum and cut off, and data
//! that did not reach the disk is found when it is read. So a crash costs samples, never wrong ones.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;

use foresee_config::shown;
use foresee_core::ids::SampleId;
use twox_hash::XxHash3_64;

use super::entry::Entry;
use super::folder::{Folder, INDEX, NEW_INDEX};
use super::segments::Shape;
use crate::extents::Extent;
use crate::stamp::{STAMP_BYTES, Stamp};
use crate::tier::check_may_write;

/// Length of a record.
pub(super) const RECORD_BYTES: u64 = 40 + STAMP_BYTES as u64;
/// Where its stamp begins and ends.
const STAMP_AT: std::ops::Range<usize> = 32..32 + STAMP_BYTES;
/// Length of the header.
pub(super) const HEADER_BYTES: u64 = 56;
/// So many samples are encoded at a time: 90 KB of records, for which nobody waits long.
pub(super) const BATCH: usize = 1024;
/// A small log is not worth a rewrite.
const SLACK_BYTES: u64 = 64 << 10;

const MAGIC: [u8; 8] = *b"foreseeD";
const VERSION: u64 = 2;

/// What an index must agree with to be of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Digest of the dataset.
    pub(super) dataset: [u8; 16],
    /// Shape of the space that offsets are in.
    pub(super) shape: Shape,
}

/// What an earlier process left.
#[derive(Debug)]
pub(super) enum Past {
    /// No index.
    Nothing,
    /// An index that is of no use, and why.
    Useless(&'static str),
    /// What was held.
    Held(Recalled),
}

/// What an index says.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    /// What was held at its end.
    pub(super) entries: HashMap<SampleId, (Entry, Option<Stamp>)>,
    /// Where its last whole record ends.
    pub(super) len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A range of a sample of which more follows at once.
    Part = 1,
    /// The last range of a sample, which is held from here on.
    Admit = 2,
    /// A sample is no longer held.
    Evict = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    kind: Kind,
    sample: SampleId,
    extent: Extent,
    sum: u64,
    /// What the sample was in the source, where that could be told.
    stamp: Option<Stamp>,
}

/// An index that is open for changes.
#[derive(Debug)]
pub(super) struct Log {
    folder: Folder,
    identity: Identity,
    file: File,
    len: u64,
    /// It is not rewritten before it is longer than this.
    rewrite_above: u64,
}

impl Log {
    /// Writes a new index of what is held, given as records, in place of the old one.
    pub(super) fn create(
        folder: &Folder,
        identity: Identity,
        records: impl Iterator<Item = Vec<u8>>,
    ) -> io::Result<Self> {
        check_may_write();
        let mut options = OpenOptions::new();
        let file = folder.open(
            NEW_INDEX,
            options.read(true).write(true).create(true).truncate(true),
        )?;
        let mut writer = BufWriter::with_capacity(1 << 16, file);
        writer.write_all(&header(identity))?;
        let mut len = HEADER_BYTES;
        for bytes in records {
            writer.write_all(&bytes)?;
            len += bytes.len() as u64;
        }
        let file = writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        fs::rename(folder.path.join(NEW_INDEX), folder.path.join(INDEX))?;
        Ok(Self {
            folder: folder.clone(),
            identity,
            file,
            len,
            rewrite_above: SLACK_BYTES,
        })
    }

    /// Goes on with the old index, whose first `len` bytes are good.
    pub(super) fn resume(folder: &Folder, identity: Identity, len: u64) -> io::Result<Self> {
        let file = folder.open(INDEX, OpenOptions::new().read(true).write(true))?;
        file.set_len(len)?;
        Ok(Self {
            folder: folder.clone(),
            identity,
            file,
            len,
            rewrite_above: SLACK_BYTES,
        })
    }

    /// Notes that samples are no longer held, and then that one is, which replaces what was held of it before.
    pub(super) fn write(
        &mut self,
        evicted: &[SampleId],
        admitted: Option<(SampleId, &Entry, Option<Stamp>)>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        for batch in evicted.chunks(BATCH) {
            for &sample in batch {
                encode_eviction(sample, &mut bytes);
            }
            // The last few go with the admission.
            if batch.len() == BATCH {
                self.append(&bytes)?;
                bytes.clear();
            }
        }
        if let Some((sample, entry, stamp)) = admitted {
            encode_admission(sample, entry, stamp, &mut bytes);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.append(&bytes)
    }

    /// Whether most of it is history, where `records` would say what is held.
    pub(super) fn is_long(&self, records: u64) -> bool {
        self.len
            > self
                .rewrite_above
                .max(2 * compact_len(records) + SLACK_BYTES)
    }

    /// Replaces it by a new one of what is held, given as records; whether it could. Where not, it goes on, and tries again
    /// when twice as long.
    pub(super) fn rewrite(&mut self, records: impl Iterator<Item = Vec<u8>>) -> bool {
        match Self::create(&self.folder, self.identity, records) {
            Ok(new) => {
                *self = new;
                true
            }
            Err(cause) => {
                let path = shown(&self.folder.path);
                tracing::warn!(
                    "cache folder {path}: cannot rewrite the index: {cause}; it grows on"
                );
                self.rewrite_above = self.len * 2;
                false
            }
        }
    }

    /// A part that was written before a failure is written over by the next.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        check_may_write();
        self.file.write_all_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(())
    }
}

/// How long an index of so many records is without history.
pub(super) const fn compact_len(records: u64) -> u64 {
    HEADER_BYTES + records * RECORD_BYTES
}

/// What the index of an earlier process is of; none where there is none, or none that is of use.
pub(super) fn identity(folder: &Folder) -> io::Result<Option<Identity>> {
    let mut file = match folder.open(INDEX, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(cause),
    };
    let mut found = [0; HEADER_BYTES as usize];
    if !read_whole(&mut file, &mut found)? {
        return Ok(None);
    }
    let mut dataset = [0; 16];
    dataset.copy_from_slice(&found[16..32]);
    let shape = Shape {
        capacity: word(&found, 32),
        segment: word(&found, 40),
    };
    let identity = Identity { dataset, shape };
    let is_shape = shape.segment > 0 && shape.segment <= shape.capacity;
    Ok(Some(identity).filter(|identity| is_shape && found == header(*identity)))
}

/// The space that an index is about has another shape from here on, in which what it says is as true.
pub(super) fn reshape(folder: &Folder, identity: Identity) -> io::Result<()> {
    check_may_write();
    let file = folder.open(INDEX, OpenOptions::new().write(true))?;
    file.write_all_at(&header(identity), 0)
}

/// Reads the index of an earlier process.
pub(super) fn read(folder: &Folder, identity: Identity) -> io::Result<Past> {
    let file = match folder.open(INDEX, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Past::Nothing),
        Err(cause) => return Err(cause),
    };
    let records_max = file.metadata()?.len() / RECORD_BYTES;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut found = [0; HEADER_BYTES as usize];
    if !read_whole(&mut reader, &mut found)? {
        return Ok(Past::Useless("its index is damaged"));
    }
    match objection(&found, identity) {
        Some(why) => Ok(Past::Useless(why)),
        None => replay(&mut reader, records_max as usize).map(Past::Held),
    }
}

/// Follows the changes to the end, or to the first record that is not whole.
fn replay(reader: &mut impl Read, records_max: usize) -> io::Result<Recalled> {
    let mut held = Recalled {
        entries: HashMap::with_capacity(records_max),
        len: HEADER_BYTES,
    };
    let mut parts: Vec<Extent> = Vec::new();
    let mut bytes = [0; RECORD_BYTES as usize];
    let mut at = HEADER_BYTES;
    let mut whose = SampleId(0);
    while read_whole(reader, &mut bytes)? {
        let Some(record) =
            decode(&bytes).filter(|record| parts.is_empty() || record.sample == whose)
        else {
            break;
        };
        at += RECORD_BYTES;
        whose = record.sample;
        match record.kind {
            Kind::Part => parts.push(record.extent),
            Kind::Admit => {
                parts.push(record.extent);
                let entry = Entry::new(std::mem::take(&mut parts), record.sum);
                held.entries.insert(record.sample, (entry, record.stamp));
            }
            Kind::Evict => {
                held.entries.remove(&record.sample);
            }
        }
        if parts.is_empty() {
            held.len = at;
        }
    }
    Ok(held)
}

/// Fills the buffer; false where the file ends before.
fn read_whole(reader: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(into) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(cause) => Err(cause),
    }
}

fn header(identity: Identity) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..32].copy_from_slice(&identity.dataset);
    bytes[32..40].copy_from_slice(&identity.shape.capacity.to_le_bytes());
    bytes[40..48].copy_from_slice(&identity.shape.segment.to_le_bytes());
    let sum = XxHash3_64::oneshot(&bytes[..48]);
    bytes[48..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Why an index with this header is of no use.
fn objection(found: &[u8; HEADER_BYTES as usize], identity: Identity) -> Option<&'static str> {
    let wanted = header(identity);
    let differs = |range: std::ops::Range<usize>| found[range.clone()] != wanted[range];
    let objections = [
        (differs(0..8), "its index is damaged"),
        (differs(8..16), "it is of another version of foresee"),
        (
            word(found, 48) != XxHash3_64::oneshot(&found[..48]),
            "its index is damaged",
        ),
        (differs(16..32), "it is of another dataset"),
        (differs(32..48), "its capacity was another"),
    ];
    objections
        .into_iter()
        .find_map(|(objects, why)| objects.then_some(why))
}

fn encode_eviction(sample: SampleId, bytes: &mut Vec<u8>) {
    bytes.extend(encode(Record {
        kind: Kind::Evict,
        sample,
        extent: Extent { offset: 0, len: 0 },
        sum: 0,
        stamp: None,
    }));
}

/// The records of a sample that is held.
pub(super) fn encode_admission(
    sample: SampleId,
    entry: &Entry,
    stamp: Option<Stamp>,
    bytes: &mut Vec<u8>,
) {
    let last = entry.parts().len() - 1;
    for (at, &extent) in entry.parts().iter().enumerate() {
        let kind = if at == last { Kind::Admit } else { Kind::Part };
        bytes.extend(encode(Record {
            kind,
            sample,
            extent,
            sum: entry.sum,
            stamp,
        }));
    }
}

fn encode(record: Record) -> [u8; RECORD_BYTES as usize] {
    let mut bytes = [0; RECORD_BYTES as usize];
    bytes[..4].copy_from_slice(&(record.kind as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&record.sample.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&record.extent.offset.to_le_bytes());
    bytes[16..24].copy_from_slice(&record.extent.len.to_le_bytes());
    bytes[24..32].copy_from_slice(&record.sum.to_le_bytes());
    bytes[STAMP_AT].copy_from_slice(&record.stamp.map_or([0; STAMP_BYTES], Stamp::to_bytes));
    let sum = XxHash3_64::oneshot(&bytes[..STAMP_AT.end]);
    bytes[STAMP_AT.end..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; RECORD_BYTES as usize]) -> Option<Record> {
    if word(bytes, STAMP_AT.end) != XxHash3_64::oneshot(&bytes[..STAMP_AT.end]) {
        return None;
    }
    let first = word(bytes, 0);
    let kind = match first as u32 {
        1 => Kind::Part,
        2 => Kind::Admit,
        3 => Kind::Evict,
        _ => return None,
    };
    let extent = Extent {
        offset: word(bytes, 8),
        len: word(bytes, 16),
    };
    let stamp = bytes[STAMP_AT].first_chunk().and_then(Stamp::from_bytes);
    Some(Record {
        kind,
        sample: SampleId((first >> 32) as u32),
        extent,
        sum: word(bytes, 24),
        stamp,
    })
}

/// The eight bytes at an offset as a number.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .rev()
        .fold(0, |word, &byte| word << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for kind in [Kind::Part, Kind::Admit, Kind::Evict] {
            let extent = Extent {
                offset: 1 << 40,
                len: 7,
            };
            for stamp in [
                None,
                Some(Stamp {
                    inode: 5,
                    ..Stamp::default()
                }),
            ] {
                let record = Record {
                    kind,
                    sample: SampleId(u32::MAX),
                    extent,
                    sum: u64::MAX - 1,
                    stamp,
                };
                assert_eq!(decode(&encode(record)), Some(record));
            }
        }
    }

    #[test]
    fn a_record_with_any_flipped_bit_is_none() {
        let extent = Extent { offset: 3, len: 7 };
        let bytes = encode(Record {
            kind: Kind::Admit,
            sample: SampleId(9),
            extent,
            sum: 5,
            stamp: Some(Stamp::default()),
        });
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn parts_without_their_end_are_not_held_and_cut_off() {
        let part = |kind, offset| {
            encode(Record {
                kind,
                sample: SampleId(1),
                extent: Extent { offset, len: 2 },
                sum: 0,
                stamp: None,
            })
        };
        let records = [
            part(Kind::Admit, 0),
            part(Kind::Part, 2),
            part(Kind::Part, 4),
        ]
        .concat();
        let held = replay(&mut &records[..], 3).unwrap();
        assert_eq!(held.len, HEADER_BYTES + RECORD_BYTES);
        assert_eq!(
            held.entries[&SampleId(1)].0.parts(),
            [Extent { offset: 0, len: 2 }]
        );
    }
}
