//! Bytes that go from rank to rank: behind them stands a checksum, so that what was cut off or changed on its way is told
//! apart before it is believed. What they mean is the affair of who writes and reads them.

use sha2::{Digest as _, Sha256};

const CHECKSUM_BYTES: usize = 8;

/// The bytes with their checksum.
pub(crate) fn seal(mut content: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&content);
    content.extend(sum);
    content
}

/// Why sealed bytes cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// There are fewer of them than a checksum has.
    Short,
    /// They are not as they were sealed.
    Damaged,
}

/// The bytes without their checksum.
pub(crate) fn open(sealed: &[u8]) -> Result<&[u8], Broken> {
    let (content, sum) = sealed
        .split_last_chunk::<CHECKSUM_BYTES>()
        .ok_or(Broken::Short)?;
    if checksum(content) == *sum {
        Ok(content)
    } else {
        Err(Broken::Damaged)
    }
}

/// The next bytes of what is still to be read.
pub(crate) fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let whole: [u8; 32] = Sha256::digest(bytes).into();
    let mut first = [0; CHECKSUM_BYTES];
    first.copy_from_slice(&whole[..CHECKSUM_BYTES]);
    first
}
