//! The object store behind blocking calls.

use std::collections::VecDeque;
use std::io;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, RetryConfig,
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use tokio::runtime::{Handle, Runtime};

use super::config::{Config, Place};
use super::index::Entry;
use super::{Fetch, Parts, http, table};
use crate::digest::sha256;

/// Bytes of a piece of a large object.
const PIECE: usize = 8 << 20;

/// Why the store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address can't be read.
    #[error("buffer.cold.url `{url}` {reason}")]
    Url {
        /// As configured.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file of the configuration can't be read or lacks something.
    #[error("{what} {}", path.display())]
    File {
        /// What was wanted of it.
        what: &'static str,
        /// Which file.
        path: std::path::PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// `ca` is of no use, or nobody is trusted.
    #[error("buffer.cold")]
    Trust(#[from] crate::tls::PemError),
    /// The store refuses, or can't be reached.
    #[error("object store")]
    Store(#[from] object_store::Error),
    /// Its runtime can't be started.
    #[error("runtime of the object store")]
    Runtime(#[source] io::Error),
    /// An object is there under the name and holds something else.
    #[error("the object {0} exists and holds something else")]
    Conflict(String),
    /// A table can't be written or read.
    #[error("table")]
    Table(#[from] parquet::errors::ParquetError),
    /// What was read back is not what was stored.
    #[error("the object {0} is not what was stored")]
    Damaged(String),
    /// The local segment can't be read.
    #[error("local segment")]
    Segment(#[source] io::Error),
}

/// Whether an object was made, or was there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    Made,
    Exists,
}

/// A connection to the store.
pub(crate) struct Store {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    /// Behind a network: large objects go up in pieces.
    remote: bool,
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn file_error<'a>(what: &'static str, path: &'a FilePath) -> impl Fn(io::Error) -> StoreError + 'a {
    move |source| StoreError::File {
        what,
        path: path.to_owned(),
        source,
    }
}

/// `aws_…` keys of a credentials file, in any section.
fn credential(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

fn s3(config: &Config, bucket: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(&config.region)
        .with_virtual_hosted_style_request(!config.path_style)
        .with_checksum_algorithm(Checksum::SHA256)
        .with_http_connector(http::Connector {
            roots: Arc::new(crate::tls::trusted(config.ca.as_deref())?),
            bytes_per_second: config.upload_per_second.map(|rate| rate.0),
        })
        .with_retry(RetryConfig {
            backoff: BackoffConfig::default(),
            // The archiver has a back-off of its own; this one rides out a hiccup.
            max_retries: 3,
            retry_timeout: Duration::from_secs(30),
        });
    if let Some(endpoint) = &config.endpoint {
        builder = builder
            .with_allow_http(endpoint.starts_with("http://"))
            .with_endpoint(endpoint);
    }
    if let Some(endpoint) = &config.metadata_endpoint {
        builder = builder.with_metadata_endpoint(endpoint);
    }
    if let Some(path) = &config.credentials_file {
        let bad = file_error("no aws_access_key_id and aws_secret_access_key in", path);
        let text = std::fs::read_to_string(path).map_err(&bad)?;
        let needed =
            |key| credential(&text, key).ok_or_else(|| bad(io::ErrorKind::InvalidData.into()));
        builder = builder
            .with_access_key_id(needed("aws_access_key_id")?)
            .with_secret_access_key(needed("aws_secret_access_key")?);
        if let Some(token) = credential(&text, "aws_session_token") {
            builder = builder.with_token(token);
        }
    }
    Ok(Arc::new(builder.build()?))
}

impl Store {
    /// Reads the configuration; nothing is asked of the store yet. With `handle`, requests run on that runtime.
    pub(crate) fn new(config: &Config, handle: Option<Handle>) -> Result<Self, StoreError> {
        let place = config.place().map_err(|reason| StoreError::Url {
            url: config.url.clone(),
            reason,
        })?;
        let (runtime, handle) = match handle {
            Some(handle) => (None, handle),
            None => {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_all()
                    .build()
                    .map_err(StoreError::Runtime)?;
                let handle = runtime.handle().clone();
                (Some(runtime), handle)
            }
        };
        let remote = matches!(place, Place::S3 { .. });
        let (store, prefix): (Arc<dyn ObjectStore>, _) = match place {
            Place::S3 { bucket, prefix } => (s3(config, &bucket)?, prefix),
            Place::File(folder) => {
                std::fs::create_dir_all(&folder)
                    .map_err(file_error("cannot make the folder", &folder))?;
                let store = LocalFileSystem::new_with_prefix(&folder)?.with_fsync(true);
                (Arc::new(store), String::new())
            }
        };
        Ok(Self {
            store,
            prefix,
            remote,
            handle,
            runtime,
        })
    }

    fn path(&self, key: &str) -> Path {
        if self.prefix.is_empty() {
            Path::from(key)
        } else {
            Path::from(format!("{}/{key}", self.prefix))
        }
    }

    /// Makes `key`, unless it is there.
    pub(crate) fn put(&self, key: &str, bytes: Bytes) -> Result<Put, StoreError> {
        let path = self.path(key);
        let done = if self.remote && bytes.len() > PIECE {
            self.handle.block_on(self.put_pieces(&path, bytes))
        } else {
            let options = PutOptions::from(PutMode::Create);
            let put = self.store.put_opts(&path, PutPayload::from(bytes), options);
            self.handle.block_on(put).map(|_| Put::Made)
        };
        match done {
            Ok(put) => Ok(put),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. },
            ) => Ok(Put::Exists),
            Err(error) => Err(error.into()),
        }
    }

    /// The same for what is large: a hiccup of the link costs one piece. The object comes to be with the last request,
    /// which says "only if there is none yet" as any other.
    async fn put_pieces(&self, path: &Path, mut bytes: Bytes) -> Result<Put, object_store::Error> {
        // Known before it is all sent once more.
        match self.store.head(path).await {
            Ok(_) => return Ok(Put::Exists),
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut upload = self.store.put_multipart(path).await?;
        let mut sent = Ok(());
        while !bytes.is_empty() && sent.is_ok() {
            let piece = bytes.split_to(PIECE.min(bytes.len()));
            sent = upload.put_part(PutPayload::from(piece)).await;
        }
        let done = match sent {
            Ok(()) => upload.complete().await.map(|_| Put::Made),
            Err(error) => Err(error),
        };
        if done.is_err() {
            // Best effort: what is left of it is the server's to expire.
            let _ = upload.abort().await;
        }
        done
    }

    pub(crate) fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let path = self.path(key);
        let read = async { self.store.get(&path).await?.bytes().await };
        Ok(self.handle.block_on(read)?)
    }

    /// Removes `key`; one that is not there is gone.
    pub(crate) fn delete(&self, key: &str) -> Result<(), StoreError> {
        match self.handle.block_on(self.store.delete(&self.path(key))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Every manifest of the journal with this epoch.
    pub(crate) fn manifests(&self, gateway: &str, epoch: &str) -> Result<Vec<Entry>, StoreError> {
        let under = self.path(&format!("{gateway}/{epoch}"));
        let listed = self.handle.block_on(
            self.store
                .list(Some(&under))
                .map_ok(|object| object.location)
                .try_collect::<Vec<_>>(),
        )?;
        let mut entries = Vec::new();
        for path in listed
            .iter()
            .filter(|path| path.as_ref().ends_with(".json"))
        {
            let read = async { self.store.get(path).await?.bytes().await };
            let bytes = self.handle.block_on(read)?;
            match serde_json::from_slice(&bytes) {
                Ok(entry) => entries.push(entry),
                Err(error) => tracing::warn!(%error, manifest = %path, "a manifest cannot be read"),
            }
        }
        Ok(entries)
    }
}

impl Fetch for Store {
    fn fetch(&self, entry: &Entry) -> io::Result<Parts> {
        let bytes = self.get(&entry.object).map_err(io::Error::other)?;
        if sha256(&bytes) != entry.sha256 {
            return Err(io::Error::other(StoreError::Damaged(entry.object.clone())));
        }
        parts(bytes)
    }
}

/// The records of an object, a row group at a time.
pub(crate) fn parts(bytes: Bytes) -> io::Result<Parts> {
    let reader = SerializedFileReader::new(bytes).map_err(io::Error::other)?;
    let mut group = 0;
    Ok(Box::new(std::iter::from_fn(move || {
        if group >= reader.num_row_groups() {
            return None;
        }
        let read = reader
            .get_row_group(group)
            .and_then(|group| table::read_group(group.as_ref()));
        group += 1;
        let read: Result<VecDeque<_>, _> = read;
        Some(read.map_err(io::Error::other))
    })))
}
