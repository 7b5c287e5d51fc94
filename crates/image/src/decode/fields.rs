//! Numbers in a file's header, in its byte order. What lies behind the end of the file is `None`.

/// A file, and how its numbers are written.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    is_big_endian: bool,
}

impl<'a> Fields<'a> {
    pub(super) const fn new(bytes: &'a [u8], is_big_endian: bool) -> Self {
        Self {
            bytes,
            is_big_endian,
        }
    }

    pub(super) const fn is_big_endian(&self) -> bool {
        self.is_big_endian
    }

    /// So many bytes from a place on.
    pub(super) fn slice(&self, at: u64, len: u64) -> Option<&'a [u8]> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(usize::try_from(len).ok()?)?;
        self.bytes.get(at..end)
    }

    /// The number of so many bytes at a place, eight at most.
    pub(super) fn number(&self, at: u64, len: u64) -> Option<u64> {
        let bytes = self.slice(at, len)?;
        let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        let number = if self.is_big_endian {
            bytes.iter().fold(0, join)
        } else {
            bytes.iter().rev().fold(0, join)
        };
        Some(number)
    }

    pub(super) fn u16(&self, at: u64) -> Option<u16> {
        self.number(at, 2).map(|number| number as u16)
    }

    pub(super) fn u32(&self, at: u64) -> Option<u32> {
        self.number(at, 4).map(|number| number as u32)
    }
}
