//! Opening a tier's folder: the one of a slot, which is made where it is not there, or that of an orphan, for what it holds.

use foresee_config::shown;
use foresee_core::units::Bytes;

use super::error::DiskError;
use super::folder::{self, Folder, Lock};
use super::gate::Gate;
use super::log::{self, Identity};
use super::restore::{self, Known, Restored};
use super::segments::{self, Segments, Shape};
use super::{DiskSpec, DiskTier};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Condvar, Mutex};

impl DiskTier {
    pub(super) fn open_in_segments(spec: &DiskSpec, segment: u64) -> Result<Self, DiskError> {
        if spec.capacity.0 == 0 {
            return Err(DiskError::NoCapacity {
                path: spec.folder.clone(),
            });
        }
        let chosen = spec.folder();
        folder::claim(&chosen)?;
        check_total(spec)?;
        let folder = folder::enter(&chosen, &spec.name)?;
        let lock = folder::lock(&folder)?;
        let identity = Identity {
            dataset: spec.dataset,
            shape: shape(spec, &folder, segment)?,
        };
        Self::open_locked(spec, &folder, lock, identity)
    }

    /// Opens a sub-folder that no rank has, for what it holds of the same dataset, whatever its capacity was; none where
    /// somebody uses it, or where it is of no use.
    pub(super) fn open_orphan(spec: &DiskSpec, name: &str) -> Result<Option<Self>, DiskError> {
        let Some((folder, lock)) = folder::find(&spec.folder(), name)? else {
            return Ok(None);
        };
        let identity = log::identity(&folder)
            .map_err(|cause| DiskError::new(&folder.path, "read its index", cause))?;
        match identity.filter(|identity| identity.dataset == spec.dataset) {
            Some(identity) => Self::open_locked(spec, &folder, lock, identity).map(Some),
            None => Ok(None),
        }
    }

    fn open_locked(
        spec: &DiskSpec,
        folder: &Folder,
        lock: Lock,
        identity: Identity,
    ) -> Result<Self, DiskError> {
        let past = restore::recall(folder, identity)?;
        let segments = Segments::open(folder, identity.shape, spec.floor)?;
        let known = Known {
            sizes: &spec.sizes,
            segments: &segments,
        };
        let Restored {
            index,
            log,
            dropped,
        } = restore::restore(folder, identity, past, &known)?;
        if dropped > 0 {
            tracing::warn!(
                "cache folder {}: {dropped} samples were dropped: not whole, or changed",
                shown(&folder.path)
            );
        }
        Ok(Self {
            label: format!("disk tier ({})", shown(&spec.folder)),
            capacity: Bytes(identity.shape.capacity),
            segments,
            log: Mutex::new(log),
            index: Mutex::new(index),
            left: Condvar::new(),
            growth: Mutex::new(()),
            growing: Gate::default(),
            writing: Gate::default(),
            corrupt: AtomicU64::new(0),
            _lock: lock,
        })
    }
}

/// The shape of a sub-folder's space: what it was, if it is of the same dataset and can be as large as is asked for.
fn shape(spec: &DiskSpec, folder: &Folder, segment: u64) -> Result<Shape, DiskError> {
    let new = Shape::new(spec.capacity_max.0, segment);
    let found = log::identity(folder)
        .map_err(|cause| DiskError::new(&folder.path, "read its index", cause))?;
    let Some(found) = found.filter(|found| found.dataset == spec.dataset) else {
        return Ok(new);
    };
    let grown = found.shape.grown(new.capacity, segment);
    if grown == found.shape {
        return Ok(grown);
    }
    let identity = Identity {
        shape: grown,
        ..found
    };
    // In this order: who is killed in between leaves a file that is longer than it need be.
    let reshaped = segments::lengthen(folder, found.shape, grown)
        .and_then(|()| log::reshape(folder, identity));
    match reshaped {
        Ok(()) => Ok(grown),
        Err(cause) => {
            let path = shown(&folder.path);
            tracing::warn!("cache folder {path}: cannot be made larger: {cause}");
            Ok(found.shape)
        }
    }
}

fn check_total(spec: &DiskSpec) -> Result<(), DiskError> {
    let total = segments::total(&spec.folder)
        .map_err(|cause| DiskError::new(&spec.folder, "measure it", cause))?;
    match total.filter(|total| *total < spec.capacity) {
        Some(available) => {
            let path = spec.folder.clone();
            let capacity = spec.capacity;
            Err(DiskError::LargerThanDisk {
                path,
                capacity,
                available,
            })
        }
        None => Ok(()),
    }
}
