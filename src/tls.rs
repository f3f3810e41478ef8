//! Certificates from PEM files, and whom connections to the outside trust.

use std::path::{Path, PathBuf};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};

/// Why a PEM file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It can't be read, or what it holds can't be taken.
    #[error("{}: no usable {what}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What went wrong.
        source: pem::Error,
    },
    /// It holds none.
    #[error("{}: no {what} in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// A certificate that is no authority.
    #[error("{}: not a certificate to trust", path.display())]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: tokio_rustls::rustls::Error,
    },
    /// No certificate to trust.
    #[error(
        "this system has no trusted root certificate: install ca-certificates, or name a PEM file as `ca`"
    )]
    NoRoots,
}

/// What could not be read as `what`, with the file's name.
pub(crate) fn unusable(path: &Path, what: &'static str) -> impl Fn(pem::Error) -> PemError {
    move |source| PemError::Unusable {
        path: path.to_owned(),
        what,
        source,
    }
}

/// Every certificate of a PEM file; at least one.
///
/// # Errors
/// [`PemError::Unusable`], [`PemError::Empty`].
pub fn certificates(
    path: &Path,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(unusable(path, what))?;
    if all.is_empty() {
        return Err(PemError::Empty {
            path: path.to_owned(),
            what,
        });
    }
    Ok(all)
}

/// The authorities in `ca`, and those alone; without it, the system's.
///
/// # Errors
/// [`PemError`]; nobody to trust is one, since every handshake would fail.
pub fn trusted(ca: Option<&Path>) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            for authority in certificates(path, "authority")? {
                roots.add(authority).map_err(|source| PemError::Untrusted {
                    path: path.to_owned(),
                    source,
                })?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            for error in &found.errors {
                tracing::warn!(%error, "a root certificate of this system can't be read");
            }
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(PemError::NoRoots);
            }
        }
    }
    Ok(roots)
}
