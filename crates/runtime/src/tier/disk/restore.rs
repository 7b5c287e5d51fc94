//! What an earlier process left in a tier's folder: read, compared with what is known now, and made ready to go on.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use foresee_config::shown;
use foresee_core::catalog::Catalog;

use super::entry::Entry;
use super::error::DiskError;
use super::folder::{self, Folder};
use super::index::{Holding, Index};
use super::log::{self, Identity, Log, Past};
use super::segments::Segments;
use crate::extents::Extents;

/// What entries of an earlier process must agree with.
pub(super) struct Known<'a> {
    pub(super) sizes: &'a Catalog,
    pub(super) segments: &'a Segments,
}

/// What is there of the same dataset; anything else makes way.
pub(super) fn recall(
    folder: &Folder,
    identity: Identity,
) -> Result<Option<log::Recalled>, DiskError> {
    let past = log::read(folder, identity)
        .map_err(|cause| DiskError::new(&folder.path, "read its index", cause))?;
    match past {
        Past::Held(held) => return Ok(Some(held)),
        Past::Useless(why) => {
            tracing::warn!("cache folder {}: {why}: it is emptied", shown(&folder.path));
        }
        Past::Nothing => {}
    }
    folder::clear(&folder.path).map_err(|cause| DiskError::new(&folder.path, "empty it", cause))?;
    Ok(None)
}

/// What is still good.
pub(super) struct Restored {
    pub(super) index: Index,
    pub(super) log: Log,
    /// How many samples are not.
    pub(super) dropped: usize,
}

/// Brings back what is still good.
pub(super) fn restore(
    folder: &Folder,
    identity: Identity,
    past: Option<log::Recalled>,
    known: &Known<'_>,
) -> Result<Restored, DiskError> {
    let mut extents = Extents::new(identity.shape.capacity);
    extents.take(identity.shape.capacity);
    for range in known.segments.allocated() {
        extents.give_back(range.offset, range.len);
    }
    let old_len = past.as_ref().map(|past| past.len);
    let mut past: Vec<_> = past.into_iter().flat_map(|past| past.entries).collect();
    let count = past.len();
    // In the order of offsets, what is free stays in few ranges, and a claim is fast.
    past.sort_unstable_by_key(|(sample, (entry, _))| (entry.parts()[0].offset, *sample));
    let mut entries = HashMap::with_capacity(count);
    for (sample, (entry, stamp)) in past {
        let is_known = sample.0 < known.sizes.len() && known.sizes.size(sample).0 == entry.len();
        if is_known && claim(&mut extents, &entry) {
            entries.insert(
                sample,
                Holding {
                    entry: Arc::new(entry),
                    stamp,
                },
            );
        }
    }
    let dropped = count - entries.len();
    let index = Index::new(entries, extents);
    let log = reopen_log(folder, identity, old_len, &index);
    let log = log.map_err(|cause| DiskError::new(&folder.path, "write its index", cause))?;
    Ok(Restored {
        index,
        log,
        dropped,
    })
}

/// A log of nothing but what is held. On a full disk, which has no room for a second one, the old one is as good.
fn reopen_log(
    folder: &Folder,
    identity: Identity,
    old_len: Option<u64>,
    index: &Index,
) -> io::Result<Log> {
    if let Some(len) = old_len
        && len == log::compact_len(index.records())
    {
        return Log::resume(folder, identity, len);
    }
    let samples = index.samples();
    let records = samples.chunks(log::BATCH).map(|batch| index.encoded(batch));
    Log::create(folder, identity, records)
        .or_else(|cause| old_len.map_or(Err(cause), |len| Log::resume(folder, identity, len)))
}

/// Takes all ranges of an entry, or none.
fn claim(extents: &mut Extents, entry: &Entry) -> bool {
    let parts = entry.parts();
    let claimed = parts
        .iter()
        .take_while(|part| extents.claim(part.offset, part.len))
        .count();
    if claimed < parts.len() {
        for part in &parts[..claimed] {
            extents.give_back(part.offset, part.len);
        }
    }
    claimed == parts.len()
}
