//! Names for the things that are counted: small integers that cannot be mixed up.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an index.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// The unit of access, placement and transfer: its index in the catalog.
    SampleId(u32)
}
id! {
    /// One training process.
    Rank(u32)
}
id! {
    /// One machine; its ranks share memory and cores.
    Host(u32)
}
id! {
    /// A tier of a rank; 0 is the staging buffer.
    TierId(u8)
}
id! {
    /// One pass over the dataset, from 0.
    Epoch(u32)
}
id! {
    /// One global batch within an epoch, from 0.
    Step(u32)
}
id! {
    /// Index in an epoch's global order.
    Position(u64)
}
