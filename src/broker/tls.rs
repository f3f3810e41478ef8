//! TLS for the listeners: certificate, key, client authorities and revocations, exchangeable while running.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateRevocationListDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

use super::config::Tls;
use super::validity::{Validity, certificate_end, crl_end};
use crate::tls::{PemError, certificates, unusable};

/// Why TLS can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file is of no use.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// Certificate and key are not a pair, or the certificate is not usable.
    #[error("certificate and key")]
    Pair(#[source] rustls::Error),
    /// The client authorities are not usable.
    #[error("client authorities")]
    Clients(#[from] VerifierBuilderError),
}

/// Everything that `[mqtt.tls]` names.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) validity: Vec<Validity>,
}

/// Loads everything that `[mqtt.tls]` names. A pair that does not fit is an error, so that a reload keeps the old.
pub(crate) fn load(config: &Tls) -> Result<Loaded, TlsError> {
    let mut validity = Vec::new();
    let mut ends = |what, path: &Path, times: &mut dyn Iterator<Item = Option<i64>>| {
        validity.extend(times.flatten().min().map(|ends| Validity {
            what,
            file: path.to_owned(),
            ends,
        }));
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates(&config.cert, "certificate")?;
    ends(
        "server",
        &config.cert,
        &mut chain.iter().map(|der| certificate_end(der)),
    );
    let key =
        PrivateKeyDer::from_pem_file(&config.key).map_err(unusable(&config.key, "private key"))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Pair)?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            let authorities = certificates(path, "client authority")?;
            ends(
                "client_ca",
                path,
                &mut authorities.iter().map(|der| certificate_end(der)),
            );
            for authority in authorities {
                roots.add(authority).map_err(TlsError::Pair)?;
            }
            let mut verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if let Some(path) = &config.crl {
                let lists = CertificateRevocationListDer::pem_file_iter(path)
                    .map_err(unusable(path, "CRL"))?;
                let lists: Vec<_> = lists
                    .collect::<Result<_, _>>()
                    .map_err(unusable(path, "CRL"))?;
                ends("crl", path, &mut lists.iter().map(|der| crl_end(der)));
                verifier = verifier.with_crls(lists);
            }
            builder.with_client_cert_verifier(verifier.build()?)
        }
    };
    // `with_single_cert` compares the key with the certificate.
    let config = builder
        .with_single_cert(chain, key)
        .map_err(TlsError::Pair)?;
    Ok(Loaded {
        config: Arc::new(config),
        validity,
    })
}

/// One DER element: tag, content, and what follows it.
pub(crate) fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let n = usize::from(first & 0x7f);
        let (bytes, after) = rest.split_at_checked(n).filter(|_| n <= 4)?;
        length = bytes.iter().fold(0, |sum, b| sum << 8 | usize::from(*b));
        rest = after;
    }
    let (content, after) = rest.split_at_checked(length)?;
    Some((tag, content, after))
}

pub(crate) const SEQUENCE: u8 = 0x30;

/// The fields of a certificate's body (RFC 5280 section 4.1) from a place on; the optional version is not counted.
pub(crate) fn fields(certificate: &[u8], skip: usize) -> Option<&[u8]> {
    const VERSION: u8 = 0xa0;
    let (_, outer, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut rest, _) = element(outer)?;
    if let Some((VERSION, _, after)) = element(rest) {
        rest = after;
    }
    for _ in 0..skip {
        rest = element(rest)?.2;
    }
    Some(rest)
}

/// The last common name of a certificate's subject (RFC 5280 section 4.1.2.6): the user.
pub(crate) fn common_name(certificate: &[u8]) -> Option<Arc<str>> {
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    // Serial number, algorithm, issuer, validity.
    let (_, mut names, _) = element(fields(certificate, 4)?)?;
    let mut found = None;
    while let Some((_, set, after)) = element(names) {
        names = after;
        let Some((_, pair, _)) = element(set) else {
            continue;
        };
        if let Some((_, oid, value)) = element(pair)
            && oid == COMMON_NAME
            && let Some((_, text, _)) = element(value)
        {
            found = std::str::from_utf8(text)
                .ok()
                .filter(|t| !t.is_empty())
                .map(Arc::from);
        }
    }
    found
}
