//! Which database holds the state.

use std::path::Path;

use crate::state::store::Database;
use crate::state::{Options, StateError};

/// A database behind the store. Both pass the same suite of tests; a store that lies in the other one is taken over
/// at the next start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// sled 0.34.
    Sled,
    /// redb, in builds with cargo feature `redb`.
    #[cfg(feature = "redb")]
    Redb,
}

/// What this build uses: the cargo feature is the switch.
#[cfg(feature = "redb")]
const USED: Backend = Backend::Redb;
#[cfg(not(feature = "redb"))]
const USED: Backend = Backend::Sled;

impl Default for Backend {
    fn default() -> Self {
        USED
    }
}

impl Backend {
    /// Those of this build.
    pub const ALL: &'static [Self] = &[
        Self::Sled,
        #[cfg(feature = "redb")]
        Self::Redb,
    ];

    /// Name of the file in a database's folder.
    pub const FILE: &'static str = "db";

    /// Folders of all databases there are, whatever this build can read.
    pub(crate) const FOLDERS: [&'static str; 2] = ["sled", "redb"];

    /// Name of its folder.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Sled => "sled",
            #[cfg(feature = "redb")]
            Self::Redb => "redb",
        }
    }

    /// Inverse of [`folder`](Self::folder); `None`: not in this build.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|backend| backend.folder() == folder)
    }

    /// Opens the database in `dir`, or makes one.
    pub(crate) fn start(
        self,
        dir: &Path,
        options: &Options,
    ) -> Result<Box<dyn Database>, StateError> {
        Ok(match self {
            Self::Sled => Box::new(super::sled::Sled::start(dir, options)?),
            #[cfg(feature = "redb")]
            Self::Redb => Box::new(super::redb::Redb::start(dir, options)?),
        })
    }
}
