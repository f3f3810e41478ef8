//! Compressed payloads: `uuid = "SPBV1.0_COMPRESSED"`, the inner payload in `body`.
//!
//! Not in the text of 3.0, but widely sent. `algorithm` is GZIP or DEFLATE, the default; DEFLATE means the zlib
//! wrapping that Java's `Deflater()` writes. The outer `seq` orders the message.

use std::io::Read;

use flate2::read::{GzDecoder, ZlibDecoder};

use crate::payload::Limits;
use crate::payload::raw::{Arm, RawPayload};

/// Marks a payload whose body is a compressed payload.
pub const COMPRESSED: &str = "SPBV1.0_COMPRESSED";

/// Why a compressed payload cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    /// There is no body.
    #[error("no body")]
    NoBody,
    /// The algorithm is neither GZIP nor DEFLATE.
    #[error("the algorithm is neither GZIP nor DEFLATE")]
    Algorithm,
    /// The body is damaged.
    #[error("the body is damaged")]
    Damaged,
    /// The body inflates to more than [`Limits::max_inflated`].
    #[error("inflates to more than {limit} bytes")]
    TooLarge {
        /// The limit, bytes.
        limit: usize,
    },
    /// The inner payload is compressed again.
    #[error("compressed twice")]
    Twice,
}

/// The inner payload's bytes; `None` when the payload is not compressed.
pub(crate) fn inflate(
    payload: &RawPayload<'_>,
    limits: &Limits,
) -> Result<Option<Vec<u8>>, InflateError> {
    if payload.uuid != Some(COMPRESSED) {
        return Ok(None);
    }
    let body = payload.body.ok_or(InflateError::NoBody)?;
    let algorithm = payload
        .metrics()
        .flatten()
        .find(|it| it.name == Some("algorithm"));
    let inner = match algorithm.map(|it| it.arm) {
        Some(Arm::Text(name)) if name.eq_ignore_ascii_case("GZIP") => {
            bounded(GzDecoder::new(body), limits)?
        }
        None => bounded(ZlibDecoder::new(body), limits)?,
        Some(Arm::Text(name)) if name.eq_ignore_ascii_case("DEFLATE") => {
            bounded(ZlibDecoder::new(body), limits)?
        }
        Some(_) => return Err(InflateError::Algorithm),
    };
    let twice = RawPayload::parse(&inner, limits).is_ok_and(|it| it.uuid == Some(COMPRESSED));
    if twice {
        return Err(InflateError::Twice);
    }
    Ok(Some(inner))
}

fn bounded(decoder: impl Read, limits: &Limits) -> Result<Vec<u8>, InflateError> {
    let limit = limits.max_inflated;
    let mut inner = Vec::new();
    // One byte more than allowed tells too large from just fitting.
    decoder
        .take(limit as u64 + 1)
        .read_to_end(&mut inner)
        .map_err(|_| InflateError::Damaged)?;
    if inner.len() > limit {
        Err(InflateError::TooLarge { limit })
    } else {
        Ok(inner)
    }
}
