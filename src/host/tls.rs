//! TLS towards other brokers: rustls, with the system's roots or the authorities named.

use std::sync::Arc;

use rumqttc::tokio_rustls::rustls::pki_types::PrivateKeyDer;
use rumqttc::tokio_rustls::rustls::pki_types::pem::PemObject;
use rumqttc::tokio_rustls::rustls::{self, ClientConfig};

use super::config::Tls;
use crate::tls::{PemError, certificates, trusted, unusable};

/// Why TLS can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file is of no use, or nobody is trusted.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// Certificate without key, or key without certificate.
    #[error("tls.cert and tls.key belong together: name both")]
    Half,
    /// A certificate, or the pair, is not usable.
    #[error("certificates")]
    Rustls(#[from] rustls::Error),
}

/// Loads what `[host.server.tls]` names.
///
/// # Errors
/// [`TlsError`].
pub(super) fn load(config: &Tls) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = trusted(config.ca.as_deref())?;
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
    let config = match (&config.cert, &config.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, "certificate")?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(unusable(key, "private key"))?;
            builder.with_client_auth_cert(chain, secret)?
        }
        _ => return Err(TlsError::Half),
    };
    Ok(Arc::new(config))
}
