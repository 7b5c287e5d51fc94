//! What the program sees of a descriptor of a copy: the file that it opened. Without it `cp` and `install` refuse a file whose
//! device and inode are not those that they saw by its name.

use foresee_cache::look::Look;
use libc::{stat, statx};

use crate::slots::Slot;

const SECOND_NS: i64 = 1_000_000_000;

/// What C's structure says.
fn look_of(found: &stat) -> Look {
    Look {
        size_bytes: found.st_size.cast_unsigned(),
        mode: found.st_mode,
        mtime_ns: found
            .st_mtime
            .saturating_mul(SECOND_NS)
            .saturating_add(found.st_mtime_nsec),
        ..Look::default()
    }
}

/// Puts the source's file in the place of its copy.
#[allow(
    clippy::unnecessary_cast,
    clippy::cast_lossless,
    clippy::cast_possible_wrap,
    reason = "types of fields differ between machines"
)]
pub(crate) fn show(slot: &Slot, into: &mut stat) {
    let Some(look) = slot.shows(&look_of(into)) else {
        return;
    };
    into.st_dev = look.device;
    into.st_ino = look.inode;
    into.st_mode = look.mode;
    into.st_nlink = look.links as _;
    into.st_uid = look.user;
    into.st_gid = look.group;
    into.st_rdev = look.special;
    into.st_blksize = look.block_bytes as _;
    into.st_blocks = look.blocks as _;
    into.st_atime = look.atime_ns.div_euclid(SECOND_NS);
    into.st_atime_nsec = look.atime_ns.rem_euclid(SECOND_NS);
    into.st_ctime = look.ctime_ns.div_euclid(SECOND_NS);
    into.st_ctime_nsec = look.ctime_ns.rem_euclid(SECOND_NS);
}

/// The same for the newer structure. When the file was made and by which mount it is seen is not known: that is not said.
pub(crate) fn show_extended(slot: &Slot, into: &mut statx) {
    let now = Look {
        size_bytes: into.stx_size,
        mode: into.stx_mode.into(),
        mtime_ns: into
            .stx_mtime
            .tv_sec
            .saturating_mul(SECOND_NS)
            .saturating_add(into.stx_mtime.tv_nsec.into()),
        ..Look::default()
    };
    let Some(look) = slot.shows(&now) else { return };
    into.stx_dev_major = libc::major(look.device);
    into.stx_dev_minor = libc::minor(look.device);
    into.stx_ino = look.inode;
    into.stx_mode = look.mode as u16;
    into.stx_nlink = look.links;
    into.stx_uid = look.user;
    into.stx_gid = look.group;
    into.stx_blksize = look.block_bytes as u32;
    into.stx_blocks = look.blocks;
    into.stx_atime.tv_sec = look.atime_ns.div_euclid(SECOND_NS);
    into.stx_atime.tv_nsec = look.atime_ns.rem_euclid(SECOND_NS) as u32;
    into.stx_ctime.tv_sec = look.ctime_ns.div_euclid(SECOND_NS);
    into.stx_ctime.tv_nsec = look.ctime_ns.rem_euclid(SECOND_NS) as u32;
    into.stx_mask &= !libc::STATX_BTIME & !STATX_MNT_ID;
    into.stx_btime.tv_sec = 0;
    into.stx_btime.tv_nsec = 0;
}

/// Of Linux 5.8; not in all headers.
const STATX_MNT_ID: u32 = 0x1000;
