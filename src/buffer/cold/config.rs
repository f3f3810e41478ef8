//! `[buffer] cold`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::quantity::{ByteSize, Span};

/// Which sealed segments go to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Archive {
    /// All of them: a complete history.
    #[default]
    All,
    /// Those that the bridge has not delivered when the warm quota runs out.
    Overflow,
}

/// Where the cold tier is, and how much of it there may be.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `s3://bucket/prefix` or `file:///folder`.
    pub url: String,
    /// Which segments go there.
    #[serde(default)]
    pub archive: Archive,
    /// Address of an S3 server other than Amazon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region of the bucket.
    #[serde(default = "region")]
    pub region: String,
    /// The bucket is part of the path, not of the host name.
    #[serde(default)]
    pub path_style: bool,
    /// File with `aws_access_key_id`, `aws_secret_access_key` and, where there is one, `aws_session_token`; without
    /// it, the credentials of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// Where the instance's credentials are asked for, where it is not Amazon's own address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_endpoint: Option<String>,
    /// PEM file of the authorities to trust instead of the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Most bytes uploaded in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_per_second: Option<ByteSize>,
    /// Most bytes of objects; the oldest go. For ever unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<ByteSize>,
    /// Objects whose newest record is older than this go. For ever unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Span>,
}

fn region() -> String {
    "us-east-1".to_owned()
}

/// A store's kind and place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Bucket and prefix.
    S3 { bucket: String, prefix: String },
    /// Folder.
    File(PathBuf),
}

impl Config {
    /// Reads `url`.
    pub(crate) fn place(&self) -> Result<Place, &'static str> {
        if let Some(rest) = self.url.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err("names no bucket: s3://bucket/prefix");
            }
            return Ok(Place::S3 {
                bucket: bucket.to_owned(),
                prefix: prefix.trim_matches('/').to_owned(),
            });
        }
        match self.url.strip_prefix("file://") {
            Some(path) if path.starts_with('/') => Ok(Place::File(PathBuf::from(path))),
            Some(_) => Err("names no absolute folder: file:///folder"),
            None => Err("is neither s3://bucket/prefix nor file:///folder"),
        }
    }
}
