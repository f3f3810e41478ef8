//! TLS towards other brokers: rustls, with the system's roots or the authorities named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rumqttc::tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use rumqttc::tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rumqttc::tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::config::Tls;

/// Why TLS can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file can't be read, or holds nothing usable.
    #[error("{}: no usable {what}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What went wrong.
        source: pem::Error,
    },
    /// No certificate to trust.
    #[error("no trusted root certificate on this system: name a PEM file in tls.ca")]
    NoRoots,
    /// Certificate without key, or key without certificate.
    #[error("tls.cert and tls.key belong together: name both")]
    Half,
    /// A certificate, or the pair, is not usable.
    #[error("certificates")]
    Rustls(#[from] rustls::Error),
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |source| TlsError::Pem {
        path: path.to_owned(),
        what,
        source,
    };
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(wrong)
}

/// Loads what `[host.server.tls]` names.
///
/// # Errors
/// [`TlsError`].
pub(super) fn load(config: &Tls) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    match &config.ca {
        Some(path) => {
            for authority in certificates(path, "authority")? {
                roots.add(authority)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(TlsError::NoRoots);
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
    let config = match (&config.cert, &config.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, "certificate")?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Pem {
                path: key.clone(),
                what: "private key",
                source,
            })?;
            builder.with_client_auth_cert(chain, secret)?
        }
        _ => return Err(TlsError::Half),
    };
    Ok(Arc::new(config))
}
