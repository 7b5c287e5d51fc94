//! Many short byte strings in one block of memory: eight bytes each besides their own. What is added stays.

/// A list of byte strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    bytes: Vec<u8>,
    /// Where each one ends; it begins where the one before it ends.
    ends: Vec<u64>,
}

impl Names {
    /// The strings that lie one after another in `bytes` and end at `ends`; nothing if these do not fit together.
    pub(super) fn from_parts(bytes: Vec<u8>, ends: Vec<u64>) -> Option<Self> {
        let fits = ends.is_sorted() && ends.last().copied().unwrap_or(0) == bytes.len() as u64;
        fits.then_some(Self { bytes, ends })
    }

    /// All bytes, and where each string ends in them.
    pub(super) fn parts(&self) -> (&[u8], &[u64]) {
        (&self.bytes, &self.ends)
    }

    pub(super) fn push(&mut self, name: &[u8]) {
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len() as u64);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[index] as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Gives back memory that was taken for more.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u64>()
    }
}

impl<'a> FromIterator<&'a [u8]> for Names {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(names: I) -> Self {
        let mut all = Self::default();
        names.into_iter().for_each(|name| all.push(name));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_was_added_also_if_empty() {
        let added: [&[u8]; 4] = [b"a.jpg", b"", b"\xff", b"b"];
        let names: Names = added.into_iter().collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), added);
    }

    #[test]
    fn refuses_parts_that_do_not_fit_together() {
        assert!(Names::from_parts(b"ab".to_vec(), vec![1, 2]).is_some());
        assert!(Names::from_parts(b"ab".to_vec(), vec![2, 1]).is_none());
        assert!(Names::from_parts(b"ab".to_vec(), vec![1]).is_none());
        assert!(Names::from_parts(b"ab".to_vec(), vec![1, 3]).is_none());
    }
}
