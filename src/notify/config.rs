//! `[notify]`: who is told of alarms without the cloud.

use std::path::PathBuf;

use rules::Priority;
use serde::{Deserialize, Serialize};

use super::quiet::Quiet;
use crate::config::quantity::Span;

/// `[notify]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Alarms that come within this time of the first one make one message.
    pub group: Span,
    /// Alarms of at least this priority wait for no others.
    #[serde(with = "priority")]
    pub at_once: Priority,
    /// Longest wait between two tries of a message that failed.
    pub retry_max: Span,
    /// A message that can't be delivered for this long is given up, and counted.
    pub give_up: Span,
    /// Hours in which only alarms of high priority are told; the others wait for their end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet: Option<Quiet>,
    /// Receivers over HTTP.
    pub webhook: Vec<Webhook>,
    /// Receivers by mail.
    pub smtp: Vec<Smtp>,
}

impl Default for Config {
    fn default() -> Self {
        let secs = |s| Span(std::time::Duration::from_secs(s));
        Self {
            group: secs(10),
            at_once: Priority::Critical,
            retry_max: secs(300),
            give_up: secs(86_400),
            quiet: None,
            webhook: Vec::new(),
            smtp: Vec::new(),
        }
    }
}

/// What a webhook posts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// An object with every alarm's body.
    #[default]
    Json,
    /// `{"text": …}`, as chat services take it.
    Chat,
    /// Plain text.
    Text,
}

/// How a connection to a mail server is protected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// The server must offer STARTTLS (RFC 3207).
    #[default]
    Starttls,
    /// TLS from the first byte (RFC 8314).
    Implicit,
    /// None; for a server on this machine.
    None,
}

/// `[[notify.webhook]]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// Name in status and metrics.
    pub name: String,
    /// `http://` or `https://`.
    pub url: String,
    /// What is posted.
    #[serde(default)]
    pub format: Format,
    /// File with a token, sent as `Authorization: Bearer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Authorities to trust in place of the system's, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Alarms below it are not told.
    #[serde(default, with = "priority")]
    pub min_priority: Priority,
    /// Whether it is told that an alarm is over.
    #[serde(default = "yes")]
    pub clears: bool,
}

/// `[[notify.smtp]]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Smtp {
    /// Name in status and metrics.
    pub name: String,
    /// Host, `host:port` or `[ipv6]:port`; without a port 587, 465 or 25 by `tls`.
    pub server: String,
    /// How the connection is protected.
    #[serde(default)]
    pub tls: Protection,
    /// For servers that want a login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File with its password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Certificates to trust beside the system's, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Sender, such as `Plant A <gateway@example.com>`.
    pub from: String,
    /// Receivers.
    pub to: Vec<String>,
    /// Alarms below it are not told.
    #[serde(default, with = "priority")]
    pub min_priority: Priority,
    /// Whether it is told that an alarm is over.
    #[serde(default = "yes")]
    pub clears: bool,
}

/// Priorities by their words.
pub(super) mod priority {
    use rules::Priority;
    use serde::de::{Error as _, Unexpected};
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        priority: &Priority,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(priority.as_str())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Priority, D::Error> {
        let word = String::deserialize(from)?;
        Priority::parse(&word).ok_or_else(|| {
            let known = "diagnostic, low, medium, high or critical";
            D::Error::invalid_value(Unexpected::Str(&word), &known)
        })
    }
}

fn yes() -> bool {
    true
}

/// What is wrong with a section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Two receivers of one name.
    #[error("notify: two receivers are named `{0}`: names tell them apart in status and metrics")]
    Twice(String),
    /// A receiver without a name.
    #[error("notify: a receiver has no name")]
    Nameless,
    /// No URL of a kind that is known.
    #[error("notify.webhook `{name}`: url `{url}`: {why}")]
    Url {
        /// Receiver.
        name: String,
        /// What was written.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// Not an address.
    #[error("notify.smtp `{name}`: `{address}` is no mail address: {why}")]
    Address {
        /// Receiver.
        name: String,
        /// What was written.
        address: String,
        /// What is wrong.
        why: String,
    },
    /// Not a host and a port.
    #[error(
        "notify.smtp `{name}`: server `{server}`: write a host, `host:port`, or `[::1]:port` with a port up to 65535"
    )]
    Place {
        /// Receiver.
        name: String,
        /// What was written.
        server: String,
    },
    /// Nobody gets it.
    #[error("notify.smtp `{0}`: `to` is empty")]
    Nobody(String),
    /// Half of a login.
    #[error("notify.smtp `{0}`: user and password_file belong together")]
    Login(String),
    /// A password would travel in the clear.
    #[error(
        "notify.smtp `{0}`: a login without TLS is only sent to this machine: set tls = \"starttls\" or \"implicit\""
    )]
    Clear(String),
    /// `ca` is of no use, or nobody is trusted.
    #[error("notify.webhook `{name}`: {why}")]
    Trust {
        /// Receiver.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A file that is named can't be read.
    #[error("notify `{name}`: {}: {why}", path.display())]
    File {
        /// Receiver.
        name: String,
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
}

impl Config {
    /// Whether anybody is told.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.webhook.is_empty() && self.smtp.is_empty()
    }

    /// Files with secrets, by reference, for the service manager's credentials.
    pub fn secrets(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let tokens = self
            .webhook
            .iter_mut()
            .filter_map(|w| w.token_file.as_mut());
        let passwords = self
            .smtp
            .iter_mut()
            .filter_map(|s| s.password_file.as_mut());
        tokens.chain(passwords)
    }

    /// Everything that is wrong.
    #[must_use]
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut found = Vec::new();
        let mut names = std::collections::BTreeSet::new();
        let webhooks = self.webhook.iter().map(|w| &w.name);
        for name in webhooks.chain(self.smtp.iter().map(|s| &s.name)) {
            if name.is_empty() {
                found.push(ConfigError::Nameless);
            } else if !names.insert(name) {
                found.push(ConfigError::Twice(name.clone()));
            }
        }
        for webhook in &self.webhook {
            if let Err(error) = super::webhook::Sender::new(webhook) {
                found.push(error);
            }
        }
        for smtp in &self.smtp {
            if let Err(error) = super::smtp::Sender::new(smtp) {
                found.push(error);
            }
        }
        found
    }
}

/// Reads a file that a receiver names.
pub(super) fn read(name: &str, path: &std::path::Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(path).map_err(|error| ConfigError::File {
        name: name.to_owned(),
        path: path.to_path_buf(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_work_is_said_with_the_receiver_s_name() {
        let webhook = |url: &str| format!("[[webhook]]\nname = \"w\"\nurl = \"{url}\"\n");
        let smtp = |more: &str| {
            format!(
                "[[smtp]]\nname = \"s\"\nserver = \"mail.example.com\"\nfrom = \"a@example.com\"\n{more}\n"
            )
        };
        let to = "to = [\"b@example.com\"]\n";
        for (text, expected) in [
            (webhook("https://example.com/x?y=1"), None),
            (webhook("example.com/x"), Some("write http://")),
            (webhook("ftp://example.com"), Some("write http://")),
            (webhook("https://me:secret@example.com"), Some("token_file")),
            (
                webhook("http://a/").repeat(2),
                Some("two receivers are named `w`"),
            ),
            (
                format!("{}token_file = \"/nowhere/token\"", webhook("http://a/")),
                Some("/nowhere/token"),
            ),
            (smtp(to), None),
            (smtp("to = []"), Some("`to` is empty")),
            (
                smtp("to = [\"nobody\"]"),
                Some("`nobody` is no mail address"),
            ),
            (smtp(&format!("{to}user = \"u\"")), Some("belong together")),
            (
                smtp(&format!(
                    "{to}user = \"u\"\npassword_file = \"/dev/null\"\ntls = \"none\""
                )),
                Some("login without TLS"),
            ),
        ] {
            let config: Config = toml::from_str(&text).unwrap();
            let errors: Vec<String> = config.errors().iter().map(ToString::to_string).collect();
            match expected {
                None => assert!(errors.is_empty(), "{text}: {errors:?}"),
                Some(part) => assert!(
                    errors.len() == 1 && errors[0].contains(part),
                    "{text}: {errors:?}"
                ),
            }
        }
    }
}
