//! Who a client is: users with argon2id hashes, certificates, or nobody in particular.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use argon2::Argon2;
use argon2::password_hash::rand_core::OsRng;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use bytes::Bytes;
use tokio::sync::Semaphore;

use super::acl::{Acl, AclError, Rights};
use super::codec::{Connect, reason};
use super::config::{Anonymous, Config};
use super::connection::Origin;

/// Hashes computed at once: each takes 19 MiB, and a flood of wrong passwords must not take the machine.
static HASHING: Semaphore = Semaphore::const_new(2);

/// Compared with where the user is unknown, so that the answer takes as long.
static NOBODY: LazyLock<Option<String>> = LazyLock::new(|| hash(b"nobody").ok());

/// Why users or rights can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line of the users file is not `user:hash`.
    #[error("{}:{line}: not `user:hash`; make lines with `sparkgate passwd`", path.display())]
    User {
        /// The file.
        path: PathBuf,
        /// 1-based.
        line: usize,
    },
    /// The ACL file is not usable.
    #[error("{}", path.display())]
    Acl {
        /// The file.
        path: PathBuf,
        /// Why.
        source: AclError,
    },
}

/// Why a user can't be put into a users file.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// A name that the file can't hold.
    #[error("a user name has no `:`, no line break, no `#` at its start, and is not empty")]
    Name,
    /// The hash can't be computed.
    #[error("can't hash the password: {0}")]
    Hash(argon2::password_hash::Error),
    /// The file can't be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

fn hash(password: &[u8]) -> Result<String, UserError> {
    let salt = SaltString::generate(&mut OsRng);
    let hash = Argon2::default()
        .hash_password(password, &salt)
        .map_err(UserError::Hash)?;
    Ok(hash.to_string())
}

/// Sets a user's password in a users file (argon2id, PHC string): a new line, or the old one replaced. Comments and
/// other lines stay; a file that does not exist is made, readable for its owner alone.
///
/// # Errors
/// [`UserError`]; the file is as it was then.
pub fn set_password(file: &Path, user: &str, password: &str) -> Result<(), UserError> {
    let wrong = |source| UserError::File {
        path: file.to_owned(),
        source,
    };
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(wrong(error)),
    };
    let text = with_password(&text, user, password.as_bytes())?;
    crate::data_folder::replace(file, text.as_bytes())
        .map(drop)
        .map_err(wrong)
}

fn with_password(text: &str, user: &str, password: &[u8]) -> Result<String, UserError> {
    if user.is_empty() || user.starts_with('#') || user.contains([':', '\n', '\r']) {
        return Err(UserError::Name);
    }
    let line = format!("{user}:{}", hash(password)?);
    let mut lines: Vec<&str> = text.lines().collect();
    let mut found = false;
    for old in &mut lines {
        if old.split_once(':').is_some_and(|(name, _)| name == user) {
            *old = &line;
            found = true;
        }
    }
    if !found {
        lines.push(&line);
    }
    Ok(lines.join("\n") + "\n")
}

/// What a client says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    user: Option<Box<str>>,
    password: Option<Bytes>,
    certificate: Option<Arc<str>>,
    address: IpAddr,
}

impl Credentials {
    pub(crate) fn of(request: &Connect, origin: &Origin) -> Self {
        Self {
            user: request.user.clone(),
            password: request.password.clone(),
            certificate: origin.certificate.clone(),
            address: origin.address.ip(),
        }
    }

    /// A name and a password of which nothing else is known; never taken for a client of this machine.
    #[cfg(feature = "rumqttd")]
    pub(crate) fn login(user: &str, password: Bytes) -> Self {
        Self {
            user: Some(user.into()),
            password: Some(password),
            certificate: None,
            address: std::net::Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

/// A client that may connect.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) user: Option<Arc<str>>,
}

/// Users and rights as last loaded.
#[derive(Debug)]
pub(crate) struct Access {
    anonymous: Anonymous,
    users: HashMap<Box<str>, String>,
    acl: Acl,
}

fn read(path: &Path) -> Result<String, AccessError> {
    fs::read_to_string(path).map_err(|source| AccessError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Names and argon2 hashes of a users file: `user:hash` lines, with empty ones and comments (`#`) between.
///
/// # Errors
/// It can't be read, or a line is something else.
pub fn users(path: &Path) -> Result<HashMap<Box<str>, String>, AccessError> {
    let mut users = HashMap::new();
    for (i, line) in read(path)?.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let entry = line
            .split_once(':')
            .filter(|(_, hash)| PasswordHash::new(hash.trim()).is_ok());
        let Some((name, hash)) = entry else {
            return Err(AccessError::User {
                path: path.to_owned(),
                line: i + 1,
            });
        };
        users.insert(name.into(), hash.trim().to_owned());
    }
    Ok(users)
}

/// Whether this is the secret of an argon2 hash. Takes 19 MiB and some 20 ms: not for a thread that others wait for.
#[must_use]
pub fn verify(hash: &str, secret: &[u8]) -> bool {
    PasswordHash::new(hash)
        .is_ok_and(|hash| Argon2::default().verify_password(secret, &hash).is_ok())
}

impl Access {
    /// Reads the files that the configuration names.
    pub(crate) fn load(config: &Config) -> Result<Self, AccessError> {
        let users = match &config.users_file {
            Some(path) => users(path)?,
            None => HashMap::new(),
        };
        let senders = config.command_senders.clone();
        let acl = match &config.acl_file {
            None => Acl::defaults(senders),
            Some(path) => Acl::parse(&read(path)?, senders).map_err(|source| AccessError::Acl {
                path: path.clone(),
                source,
            })?,
        };
        Ok(Self {
            anonymous: config.anonymous,
            users,
            acl,
        })
    }

    /// Rights of a client as they are now.
    pub(crate) fn rights(&self, user: Option<&str>, client: &str) -> Arc<Rights> {
        self.acl.rights(user, client)
    }
}

/// Finds out who a client is; `Err` is the reason code of the CONNACK. A certificate that the listener checked
/// stands above a user name.
pub(crate) async fn authenticate(
    access: Arc<Access>,
    credentials: Credentials,
) -> Result<Identity, u8> {
    if let Some(name) = &credentials.certificate {
        return Ok(Identity {
            user: Some(Arc::clone(name)),
        });
    }
    let Some(user) = credentials.user.filter(|_| !access.users.is_empty()) else {
        let open = match access.anonymous {
            Anonymous::Always => true,
            Anonymous::Never => false,
            Anonymous::Loopback => credentials.address.to_canonical().is_loopback(),
        };
        return if open {
            Ok(Identity { user: None })
        } else {
            Err(reason::NOT_AUTHORIZED)
        };
    };
    let known = access.users.get(&user).cloned();
    let password = credentials.password.unwrap_or_default();
    let Ok(_permit) = HASHING.acquire().await else {
        return Err(reason::SERVER_UNAVAILABLE);
    };
    let right = tokio::task::spawn_blocking(move || {
        let against = known.as_ref().or(NOBODY.as_ref())?;
        let right = verify(against, &password);
        known.filter(|_| right).map(|_| ())
    })
    .await;
    match right {
        Ok(Some(())) => Ok(Identity {
            user: Some(user.into()),
        }),
        _ => Err(reason::BAD_USER_OR_PASSWORD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(user: Option<&str>, password: &str, address: &str) -> Credentials {
        Credentials {
            user: user.map(Into::into),
            password: Some(Bytes::copy_from_slice(password.as_bytes())),
            certificate: None,
            address: address.parse().unwrap(),
        }
    }

    #[tokio::test]
    async fn users_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        fs::write(&path, "# people\nold:x\n").unwrap();
        set_password(&path, "old", "first").unwrap();
        set_password(&path, "new", "second").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# people\nold:$argon2id$") && text.lines().count() == 3);
        let config = Config {
            users_file: Some(path),
            anonymous: Anonymous::Loopback,
            ..Config::default()
        };
        let access = Arc::new(Access::load(&config).unwrap());
        for (user, password, address, expected) in [
            (Some("old"), "first", "10.0.0.1", Ok(Some("old"))),
            (
                Some("old"),
                "second",
                "127.0.0.1",
                Err(reason::BAD_USER_OR_PASSWORD),
            ),
            (
                Some("who"),
                "nobody",
                "127.0.0.1",
                Err(reason::BAD_USER_OR_PASSWORD),
            ),
            (None, "", "127.0.0.1", Ok(None)),
            (None, "", "::ffff:127.0.0.1", Ok(None)),
            (None, "", "10.0.0.1", Err(reason::NOT_AUTHORIZED)),
        ] {
            let got = authenticate(Arc::clone(&access), credentials(user, password, address)).await;
            let got = got.map(|i| i.user.map(|u| u.to_string()));
            assert_eq!(
                got,
                expected.map(|u| u.map(str::to_owned)),
                "{user:?} from {address}"
            );
        }
    }

    #[test]
    fn names_and_lines_that_can_not_be_are_refused() {
        for bad in ["", "a:b", "#a", "a\nb"] {
            assert!(
                matches!(with_password("", bad, b"x"), Err(UserError::Name)),
                "{bad}"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        fs::write(&path, "\na:plain\n").unwrap();
        let config = Config {
            users_file: Some(path),
            ..Config::default()
        };
        let message = Access::load(&config).unwrap_err().to_string();
        assert!(
            message.ends_with("users:2: not `user:hash`; make lines with `sparkgate passwd`"),
            "{message}"
        );
    }
}
