//! `seq`: one counter a node over all its births, data and device deaths, 0 to 255 and round again.

use std::fmt;

/// A sequence number of an edge node.
// tck-id-payloads-sequence-num-incrementing
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(u8);

impl Seq {
    /// Wraps a number.
    #[must_use]
    pub const fn new(value: u8) -> Self {
        Self(value)
    }

    /// Reads the field of a payload: 0 to 255, anything else is no `seq`.
    #[must_use]
    pub fn from_wire(value: u64) -> Option<Self> {
        u8::try_from(value).ok().map(Self)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The one after: 255 is followed by 0.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// The one before.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }

    /// Steps from `self` forward to `other`, 0 to 255.
    #[must_use]
    pub const fn ahead(self, other: Self) -> u8 {
        other.0.wrapping_sub(self.0)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
