//! TLS to a broker: rustls with ring, and the roots that the system trusts.

use std::sync::Arc;

use rumqttc::{TlsConfiguration, Transport};
use rustls::{ClientConfig, RootCertStore};

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate to trust.
    #[error("no trusted root certificate; name a PEM file in SSL_CERT_FILE")]
    NoRoots,
    /// rustls refuses its own defaults.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
}

/// A transport that checks the broker's certificate against the system's roots, or those of `SSL_CERT_FILE`.
///
/// # Errors
/// [`TlsError`].
pub fn transport() -> Result<Transport, TlsError> {
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(TlsError::NoRoots);
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
    Ok(Transport::Tls(TlsConfiguration::Rustls(Arc::new(config))))
}
