//! Reads a gateway's streams back and checks what every consumer may check: that they are complete.

use std::time::Duration;

use async_nats::jetstream::{self, consumer::pull::OrderedConfig};
use futures_util::StreamExt as _;

use super::stream;
use crate::buffer::record::LANES;

/// Silence after which the reading is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was found in both streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Audit {
    /// Records, parts of one counted once.
    pub records: u64,
    /// Links (`Sparkgate-Prev`) whose record is not there.
    pub missing: u64,
    /// Records that are there twice.
    pub duplicates: u64,
    /// Records behind a later one.
    pub disordered: u64,
}

/// Why the streams could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// No connection.
    #[error("{url}: {source}")]
    Connect {
        /// The server.
        url: String,
        /// Why.
        source: async_nats::ConnectError,
    },
    /// The server's words about a stream.
    #[error("stream {stream}: {reason}")]
    Stream {
        /// The stream.
        stream: String,
        /// What is wrong.
        reason: String,
    },
}

/// Follows the links of one stream.
#[derive(Debug, Default)]
struct Chain {
    last: u64,
    part: u32,
    parts: u32,
    audit: Audit,
}

impl Chain {
    fn take(&mut self, record: u64, prev: u64, part: u32, parts: u32) {
        if record == self.last && part == self.part + 1 && parts == self.parts {
            self.part = part;
            return;
        }
        if record == self.last {
            self.audit.duplicates += 1;
            return;
        }
        if record < self.last {
            self.audit.disordered += 1;
            self.audit.duplicates += u64::from(prev < self.last);
            return;
        }
        self.audit.missing += u64::from(prev != self.last && self.audit.records > 0);
        self.audit.missing += u64::from(self.part != self.parts);
        self.audit.records += 1;
        (self.last, self.part, self.parts) = (record, part, parts);
    }
}

/// Reads both streams of `gateway` from their first message to the last that is there now.
///
/// # Errors
/// [`AuditError`]: no connection, or a stream can't be read to its end.
pub async fn streams(url: &str, gateway: &str) -> Result<Audit, AuditError> {
    let client = async_nats::connect(url)
        .await
        .map_err(|source| AuditError::Connect {
            url: url.to_owned(),
            source,
        })?;
    let context = jetstream::new(client);
    let mut total = Audit::default();
    for lane in LANES {
        let name = stream::name(gateway, lane);
        let found = read(&context, &name)
            .await
            .map_err(|reason| AuditError::Stream {
                stream: name,
                reason,
            })?;
        total.records += found.records;
        total.missing += found.missing;
        total.duplicates += found.duplicates;
        total.disordered += found.disordered;
    }
    Ok(total)
}

async fn read(context: &jetstream::Context, name: &str) -> Result<Audit, String> {
    let stream = context
        .get_stream(name)
        .await
        .map_err(|error| error.to_string())?;
    let state = &stream.cached_info().state;
    let (count, last) = (state.messages, state.last_sequence);
    if count == 0 {
        return Ok(Audit::default());
    }
    let consumer = stream
        .create_consumer(OrderedConfig::default())
        .await
        .map_err(|error| error.to_string())?;
    let mut messages = consumer
        .messages()
        .await
        .map_err(|error| error.to_string())?;
    let mut chain = Chain::default();
    loop {
        let message = match tokio::time::timeout(PATIENCE, messages.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(error))) => return Err(error.to_string()),
            Ok(None) => return Err("the reading ended early".to_owned()),
            Err(_) => return Err("the server sends nothing more".to_owned()),
        };
        let header = |name: &str| {
            message
                .headers
                .as_ref()?
                .get(name)
                .map(|value| value.as_str())
        };
        let number = |name: &str| header(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let (part, parts) = header("Sparkgate-Part")
            .and_then(|text| text.split_once('/'))
            .and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)))
            .unwrap_or((1, 1));
        chain.take(
            number("Sparkgate-Record"),
            number("Sparkgate-Prev"),
            part,
            parts,
        );
        let seq = message
            .info()
            .map_err(|error| error.to_string())?
            .stream_sequence;
        if seq >= last {
            return Ok(chain.audit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: &[(u64, u64, u32, u32)], audit: Audit) {
        let mut chain = Chain::default();
        for (record, prev, part, parts) in messages {
            chain.take(*record, *prev, *part, *parts);
        }
        assert_eq!(chain.audit, audit, "{messages:?}");
    }

    #[test]
    fn breaks_are_told_apart() {
        let whole = |records| Audit {
            records,
            ..Audit::default()
        };
        check(&[(1, 0, 1, 1), (4, 1, 1, 1), (5, 4, 1, 1)], whole(3));
        check(&[(1, 0, 1, 2), (1, 0, 2, 2), (2, 1, 1, 1)], whole(2));
        check(&[(9, 8, 1, 1), (10, 9, 1, 1)], whole(2));
        let missing = Audit {
            missing: 1,
            ..whole(2)
        };
        check(&[(1, 0, 1, 1), (5, 4, 1, 1)], missing);
        check(&[(1, 0, 1, 2), (5, 1, 1, 1)], missing);
        let twice = Audit {
            duplicates: 1,
            ..whole(2)
        };
        check(&[(1, 0, 1, 1), (2, 1, 1, 1), (2, 1, 1, 1)], twice);
        let back = Audit {
            disordered: 1,
            duplicates: 1,
            ..whole(3)
        };
        check(
            &[(1, 0, 1, 1), (2, 1, 1, 1), (3, 2, 1, 1), (2, 1, 1, 1)],
            back,
        );
    }
}
