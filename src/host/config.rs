//! `[[host.server]]`: an MQTT server of others on which this host is present too.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::quantity::Span;

/// Shortest and longest keep alive that is worth asking for.
const KEEP_ALIVE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(5)..=Duration::from_secs(18 * 3_600);

/// One entry of `[[host.server]]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// `mqtt://host[:1883]` or `mqtts://host[:8883]`.
    pub url: String,
    /// MQTT version.
    pub protocol: Protocol,
    /// MQTT client id; default `sparkgate-` and the host id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// User name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File with the password, one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// A silent connection is dead after one and a half of these.
    pub keep_alive: Span,
    /// Certificates, for `mqtts://`.
    pub tls: Tls,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            url: String::new(),
            protocol: Protocol::default(),
            client_id: None,
            user: None,
            password_file: None,
            keep_alive: Span(Duration::from_secs(30)),
            tls: Tls::default(),
        }
    }
}

/// MQTT version of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Protocol {
    /// 3.1.1, which every server speaks.
    #[default]
    #[serde(rename = "3.1.1")]
    V3,
    /// 5.
    #[serde(rename = "5")]
    V5,
}

/// `[host.server.tls]`
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// Authorities to trust, PEM; default: those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// This client's certificate chain, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Its key, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// Where a server is, from its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
}

/// Why a URL is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no server: write mqtt://host:port or mqtts://host:port")]
pub struct UrlError(String);

impl Server {
    /// Where it is.
    ///
    /// # Errors
    /// [`UrlError`].
    pub(super) fn address(&self) -> Result<Address, UrlError> {
        let wrong = || UrlError(self.url.clone());
        let (tls, rest) = match self.url.split_once("://") {
            Some(("mqtt", rest)) => (false, rest),
            Some(("mqtts", rest)) => (true, rest),
            _ => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.rsplit_once(':') {
            // An IPv6 address without a port has colons of its own.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| wrong())?)
            }
            _ => (rest, if tls { 8883 } else { 1883 }),
        };
        let host = host
            .strip_prefix('[')
            .and_then(|it| it.strip_suffix(']'))
            .unwrap_or(host);
        if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
            return Err(wrong());
        }
        Ok(Address {
            host: host.to_owned(),
            port,
            tls,
        })
    }
}

/// What is wrong with `[[host.server]]`, each with its remedy. Files are read; nothing is connected.
#[must_use]
pub fn check(servers: &[Server]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut known = Vec::new();
    for server in servers {
        let mut say = |text: String| wrong.push(format!("host.server {}: {text}", server.url));
        match server.address() {
            Err(error) => say(error.to_string()),
            Ok(address) if known.contains(&(address.host.clone(), address.port)) => {
                say("listed twice: one connection a server is enough".to_owned());
            }
            Ok(address) => {
                let named = server.tls != Tls::default();
                if named && !address.tls {
                    say("has certificates but no TLS: write mqtts://".to_owned());
                }
                if address.tls
                    && let Err(error) = super::tls::load(&server.tls)
                {
                    say(crate::telemetry::chain(&error));
                }
                known.push((address.host, address.port));
            }
        }
        if server.password_file.is_some() && server.user.is_none() {
            say("password_file without user: MQTT 3.1.1 has no password without a name".to_owned());
        }
        if let Err(error) = password(server) {
            say(format!("password_file: {error}"));
        }
        if !KEEP_ALIVE.contains(&server.keep_alive.0) {
            say(format!(
                "keep_alive {} must lie between 5s and 18h",
                server.keep_alive
            ));
        }
        if server.client_id.as_deref() == Some("") {
            say("client_id is empty: leave it out or give it a name".to_owned());
        }
    }
    if servers.len() > usize::from(u16::MAX - 1) {
        wrong.push("host.server: too many servers".to_owned());
    }
    wrong
}

/// The password, without the line's end.
pub(super) fn password(server: &Server) -> std::io::Result<String> {
    match &server.password_file {
        None => Ok(String::new()),
        Some(path) => Ok(std::fs::read_to_string(path)?
            .trim_end_matches(['\r', '\n'])
            .to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str) -> Server {
        Server {
            url: url.to_owned(),
            ..Server::default()
        }
    }

    #[test]
    fn urls_name_host_port_and_tls() {
        let check = |url: &str, expect: Option<(&str, u16, bool)>| {
            let got = at(url).address().ok();
            let got = got.as_ref().map(|it| (it.host.as_str(), it.port, it.tls));
            assert_eq!(got, expect, "{url}");
        };
        check("mqtt://a", Some(("a", 1883, false)));
        check("mqtts://a/", Some(("a", 8883, true)));
        check("mqtts://a.b:1234", Some(("a.b", 1234, true)));
        check("mqtt://[::1]:7", Some(("::1", 7, false)));
        check("mqtt://[::1]", Some(("::1", 1883, false)));
        for url in [
            "a:1883",
            "ws://a",
            "mqtt://",
            "mqtt://u:p@a:1",
            "mqtt://a:x",
            "mqtt://a/b",
        ] {
            check(url, None);
        }
    }

    #[test]
    fn mistakes_are_told_all_at_once() {
        let mut odd = at("mqtt://a");
        odd.password_file = Some("/no/such/file".into());
        odd.keep_alive = Span(Duration::from_millis(5));
        odd.tls.ca = Some("/no/ca".into());
        let wrong = check(&[odd, at("mqtt://a:1883"), at("nope")]).join("\n");
        for part in [
            "without user",
            "password_file: ",
            "between 5s",
            "write mqtts://",
            "listed twice",
            "`nope`",
        ] {
            assert!(wrong.contains(part), "{part} in {wrong}");
        }
        assert!(check(&[at("mqtt://a"), at("mqtt://b")]).is_empty());
    }
}
