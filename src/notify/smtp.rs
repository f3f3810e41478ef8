//! A message as a mail.

use std::time::Duration;

use lettre::address::Envelope;
use lettre::message::{Mailbox, MultiPart, SinglePart, header};
use lettre::transport::smtp::AsyncSmtpTransport;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::{AsyncTransport as _, Tokio1Executor};

use super::config::{ConfigError, Protection, Smtp, read};
use super::core::{Failure, Message};
use super::text;

/// Longest time for one command of a dialogue.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time for a whole dialogue.
const DIALOGUE: Duration = Duration::from_secs(60);

/// Why a try failed.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The dialogue took too long.
    #[error("no mail handed over within {} s", DIALOGUE.as_secs())]
    Slow,
    /// The mail can't be made.
    #[error("{0}")]
    Mail(#[from] lettre::error::Error),
    /// The server can't be reached, or says no.
    #[error("{0}")]
    Smtp(#[from] lettre::transport::smtp::Error),
}

impl SendError {
    /// Whether it may work soon without anybody's doing.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::Smtp(error) if error.status().is_some_and(|code| is_unfit(code.into())) => {
                Failure::Unfit
            }
            Self::Smtp(error) if error.is_permanent() => Failure::Refused,
            Self::Mail(_) => Failure::Unfit,
            Self::Smtp(_) | Self::Slow => Failure::Transient,
        }
    }
}

/// Whether an answer (RFC 5321, 4.2.3) is about the mail and not about those who send or get it: too large, or its
/// content refused.
fn is_unfit(code: u16) -> bool {
    matches!(code, 552 | 554)
}

/// A mail server and receivers, ready to use.
#[derive(Clone)]
pub struct Sender {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    to: Vec<Mailbox>,
}

impl Sender {
    /// Checks the addresses and reads the files.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn new(config: &Smtp) -> Result<Self, ConfigError> {
        let mailbox = |address: &String| {
            address
                .parse::<Mailbox>()
                .map_err(|error| ConfigError::Address {
                    name: config.name.clone(),
                    address: address.clone(),
                    why: error.to_string(),
                })
        };
        let from = mailbox(&config.from)?;
        let to = config
            .to
            .iter()
            .map(mailbox)
            .collect::<Result<Vec<_>, _>>()?;
        if to.is_empty() {
            return Err(ConfigError::Nobody(config.name.clone()));
        }
        let (host, port) = place(config)?;
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)
            .port(port)
            .tls(protection(config, host)?)
            .timeout(Some(PATIENCE));
        match (&config.user, &config.password_file) {
            (None, None) => {}
            (Some(user), Some(file)) => {
                if config.tls == Protection::None && !is_here(host) {
                    return Err(ConfigError::Clear(config.name.clone()));
                }
                let password = read(&config.name, file)?;
                let password = String::from_utf8_lossy(&password).trim().to_owned();
                builder = builder.credentials(Credentials::new(user.clone(), password));
            }
            _ => return Err(ConfigError::Login(config.name.clone())),
        }
        Ok(Self {
            transport: builder.build(),
            from,
            to,
        })
    }

    /// Hands a mail to the server.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(&self, gateway: &str, id: &str, message: &Message) -> Result<(), SendError> {
        let mut mail = lettre::Message::builder()
            .from(self.from.clone())
            .subject(text::subject(gateway, message))
            // The same for a repeated try, so that mail systems can drop one of two.
            .message_id(Some(format!("<{id}@{}>", self.from.email.domain())))
            .raw_header(header::HeaderValue::new(
                header::HeaderName::new_from_ascii_str("Auto-Submitted"),
                "auto-generated".to_owned(),
            ));
        for to in &self.to {
            mail = mail.to(to.clone());
        }
        let object = text::object(gateway, id, message).to_string();
        let parts = MultiPart::mixed()
            .singlepart(SinglePart::plain(text::body(gateway, message)))
            .singlepart(
                lettre::message::Attachment::new("alarms.json".to_owned()).body(
                    object,
                    header::ContentType::parse("application/json")
                        .unwrap_or(header::ContentType::TEXT_PLAIN),
                ),
            );
        let mail = mail.multipart(parts)?;
        tokio::time::timeout(DIALOGUE, self.hand_over(&mail))
            .await
            .map_err(|_| SendError::Slow)?
    }

    /// To all at once; where the server refuses, to each alone, so that one dead address costs nobody else the alarm.
    async fn hand_over(&self, mail: &lettre::Message) -> Result<(), SendError> {
        let raw = mail.formatted();
        let refused = match self.transport.send_raw(mail.envelope(), &raw).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_permanent() && self.to.len() > 1 => error,
            Err(error) => return Err(error.into()),
        };
        let mut any = false;
        for to in &self.to {
            let one = Envelope::new(Some(self.from.email.clone()), vec![to.email.clone()])?;
            match self.transport.send_raw(&one, &raw).await {
                Ok(_) => any = true,
                Err(error) => {
                    tracing::error!(to = %to.email, %error, "an address gets no alarms; correct it in notify.smtp `to`");
                }
            }
        }
        if any { Ok(()) } else { Err(refused.into()) }
    }
}

/// Host and port.
fn place(config: &Smtp) -> Result<(&str, u16), ConfigError> {
    let default = match config.tls {
        Protection::Starttls => 587,
        Protection::Implicit => 465,
        Protection::None => 25,
    };
    let server = config.server.as_str();
    let address: Option<std::net::Ipv6Addr> = server.parse().ok();
    let (host, port) = match server
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((host, port)) => (
            host,
            port.strip_prefix(':')
                .or_else(|| port.is_empty().then_some("")),
        ),
        None if address.is_some() => (server, Some("")),
        None => match server.split_once(':') {
            Some((host, port)) => (host, Some(port).filter(|port| !port.is_empty())),
            None => (server, Some("")),
        },
    };
    let port = match port {
        Some("") => Some(default),
        port => port
            .and_then(|port| port.parse().ok())
            .filter(|port| *port > 0),
    };
    let brackets = server.starts_with('[');
    let fine = !host.is_empty() && (!brackets || host.parse::<std::net::Ipv6Addr>().is_ok());
    match port.filter(|_| fine) {
        Some(port) => Ok((host, port)),
        None => Err(ConfigError::Place {
            name: config.name.clone(),
            server: config.server.clone(),
        }),
    }
}

fn is_here(host: &str) -> bool {
    host == "localhost"
        || host
            .parse()
            .is_ok_and(|at: std::net::IpAddr| at.is_loopback())
}

fn protection(config: &Smtp, host: &str) -> Result<Tls, ConfigError> {
    if config.tls == Protection::None {
        return Ok(Tls::None);
    }
    let mut builder = TlsParameters::builder(host.to_owned());
    let wrong = |path: &std::path::Path, why: String| ConfigError::File {
        name: config.name.clone(),
        path: path.to_path_buf(),
        why,
    };
    if let Some(file) = &config.ca {
        let pem = read(&config.name, file)?;
        let certificate =
            Certificate::from_pem(&pem).map_err(|error| wrong(file, error.to_string()))?;
        builder = builder.add_root_certificate(certificate);
    }
    let parameters = builder
        .build_rustls()
        .map_err(|error| ConfigError::Address {
            name: config.name.clone(),
            address: config.server.clone(),
            why: error.to_string(),
        })?;
    Ok(match config.tls {
        Protection::Implicit => Tls::Wrapper(parameters),
        Protection::Starttls | Protection::None => Tls::Required(parameters),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_with_or_without_a_port() {
        let check = |server: &str, expected: Option<(&str, u16)>| {
            let text =
                format!("name = \"s\"\nserver = \"{server}\"\nfrom = \"a@b.c\"\nto = [\"d@e.f\"]");
            let config: Smtp = toml::from_str(&text).unwrap();
            assert_eq!(place(&config).ok(), expected, "{server}");
        };
        check("mail.example.com", Some(("mail.example.com", 587)));
        check("mail.example.com:2525", Some(("mail.example.com", 2525)));
        check("192.0.2.1:25", Some(("192.0.2.1", 25)));
        check("::1", Some(("::1", 587)));
        check("2001:db8::5", Some(("2001:db8::5", 587)));
        check("[::1]", Some(("::1", 587)));
        check("[::1]:25", Some(("::1", 25)));
        for wrong in [
            "",
            ":25",
            "mail:",
            "mail:smtp",
            "mail:0",
            "mail:70000",
            "[::1",
            "[::1]25",
            "[mail]:25",
            "a:b:25",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn answers_about_the_mail_itself_are_told_apart() {
        for (code, unfit) in [
            (552, true),
            (554, true),
            (550, false),
            (535, false),
            (451, false),
        ] {
            assert_eq!(is_unfit(code), unfit, "{code}");
        }
    }
}
