//! How far a file system reaches: on one that several hosts share, a lock may be seen by the processes of one host only (a
//! mount may even say so), and nobody tells. There, hosts are kept apart by names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::statfs;
use twox_hash::XxHash3_64;

/// Kinds of file systems that several hosts may share, by the numbers that statfs gives them (statfs(2), linux/magic.h).
/// Those in user space can be anything.
const SHARED: [i64; 17] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x6573_5546, // FUSE: MooseFS, SSHFS, virtiofs ...
    0x00c3_6400, // Ceph
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x5346_414f, // AFS
    0x6b41_4653, // kAFS
    0x0102_1997, // 9P
    0x1983_0326, // BeeGFS
    0xaad7_aaea, // PanFS
    0x7461_636f, // OCFS2
    0x0116_1970, // GFS2
    0x2003_0528, // OrangeFS
    0x7375_7245, // Coda
];

/// What tells this host from others in names of a folder that several may share; none where a folder is this host's alone.
/// The folder need not be there yet.
pub(super) fn host_in_names(folder: &Path) -> Option<String> {
    let found = folder.ancestors().find_map(|path| {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        statfs(path).ok()
    })?;
    is_shared(found.f_type).then(host)
}

/// Where a folder is: a number that processes of this host have in common which mean the same one, and no others. None where
/// it is not there.
pub(super) fn place(folder: &Path) -> Option<u64> {
    let found = fs::metadata(folder).ok()?;
    let mut bytes = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    bytes.extend(found.dev().to_le_bytes());
    bytes.extend(found.ino().to_le_bytes());
    Some(XxHash3_64::oneshot(&bytes))
}

#[allow(
    clippy::unnecessary_cast,
    clippy::cast_lossless,
    reason = "types of fields differ between machines"
)]
fn is_shared(kind: impl TryInto<i64>) -> bool {
    // Some machines have 32 bits for it, with a sign.
    let kind = kind.try_into().unwrap_or(0) & 0xffff_ffff;
    SHARED.contains(&kind)
}

/// This host, in characters that are harmless in names.
fn host() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    let harmless = |symbol: char| {
        let is_harmless = symbol.is_ascii_alphanumeric() || "-._".contains(symbol);
        if is_harmless { symbol } else { '_' }
    };
    name.chars().map(harmless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_yet_is_on_the_file_system_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("a").join("b");
        assert_eq!(host_in_names(&absent), host_in_names(folder.path()));
        // Of the kernel, so of this host.
        assert_eq!(host_in_names(Path::new("/proc")), None);
    }

    #[test]
    fn network_file_systems_are_known_by_their_number() {
        assert!(is_shared(0x6969_i64) && is_shared(0xff53_4d42_u32));
        assert!(is_shared(0xff53_4d42_u32.cast_signed()));
        assert!(!is_shared(0xef53_i64) && !is_shared(0x0102_1994_i64));
    }

    #[test]
    fn a_host_has_a_name_without_what_separates_names() {
        let host = host();
        assert!(!host.is_empty() && !host.contains(['@', '/']));
    }
}
