//! Who a client is, and what it may do.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;

use super::acl::Rights;
use super::codec::{Connect, reason};
use super::config::{Anonymous, Config};
use super::connection::Origin;

/// What a client says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    client: Box<str>,
    user: Option<Box<str>>,
    password: Option<Bytes>,
    certificate: Option<Arc<str>>,
    address: IpAddr,
}

impl Credentials {
    pub(crate) fn of(request: &Connect, origin: &Origin) -> Self {
        Self {
            client: request.client.clone(),
            user: request.user.clone(),
            password: request.password.clone(),
            certificate: origin.certificate.clone(),
            address: origin.address.ip(),
        }
    }
}

/// A client that may connect.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) user: Option<Arc<str>>,
    pub(crate) rights: Arc<Rights>,
}

/// Users and rights as last loaded.
#[derive(Debug)]
pub(crate) struct Access {
    anonymous: Anonymous,
}

impl Access {
    pub(crate) fn load(config: &Config) -> Self {
        Self { anonymous: config.anonymous }
    }
}

/// Finds out who a client is; `Err` is the reason code of the CONNACK.
pub(crate) async fn authenticate(access: Arc<Access>, credentials: Credentials) -> Result<Identity, u8> {
    let open = match access.anonymous {
        Anonymous::Always => true,
        Anonymous::Never => false,
        Anonymous::Loopback => credentials.address.to_canonical().is_loopback(),
    };
    let _ = (&credentials.client, &credentials.user, &credentials.password, &credentials.certificate);
    if open { Ok(Identity { user: None, rights: Rights::all() }) } else { Err(reason::NOT_AUTHORIZED) }
}
