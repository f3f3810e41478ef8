//! Headers of a message: identity, completeness, names, trace, and CloudEvents in binary mode.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::Encoding;
use crate::buffer::record::{Class, Record, RecordId};
use crate::pipeline::{subject, trace};

/// `Content-Type` of an embedding, without its dimension.
const EMBEDDING: &str = "application/vnd.sparkgate.f32le";

/// Names and values, in the order in which they are sent. Values are printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers {
    pairs: Vec<(Cow<'static, str>, String)>,
}

/// A message's place in its stream, known when it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The record.
    pub record: RecordId,
    /// The record before it in the stream.
    pub prev: RecordId,
    /// Which part, from 1.
    pub part: u32,
    /// Of how many.
    pub parts: u32,
}

/// `<gateway>-<epoch>-<record>[.<part>]`.
#[must_use]
pub fn message_id(prefix: &str, record: RecordId, part: u32, parts: u32) -> String {
    let mut out = String::with_capacity(prefix.len() + 16);
    out.push_str(prefix);
    // Writing to a string can't fail.
    let _ = write!(out, "{record}");
    if parts > 1 {
        let _ = write!(out, ".{part}");
    }
    out
}

impl Headers {
    /// The headers of a record that don't depend on its place.
    #[must_use]
    pub fn of(gateway: &str, record: &Record, encoding: Encoding) -> Self {
        let mut headers = Self {
            pairs: Vec::with_capacity(18),
        };
        if let Some(seq) = record.seq {
            headers.push("Sparkgate-Seq", seq.to_string());
        }
        for (name, part) in [
            ("Sparkgate-Group", &record.key.group),
            ("Sparkgate-Node", &record.key.node),
            ("Sparkgate-Device", &record.key.device),
        ] {
            if let Some(part) = part {
                let mut text = String::with_capacity(part.len());
                subject::percent_into(&mut text, part);
                headers.push(name, text);
            }
        }
        if !record.clock_trusted {
            headers.push("Sparkgate-Clock", "untrusted".to_owned());
        }
        if let Some(trace) = &record.traceparent {
            headers.push("traceparent", trace.to_string());
        }
        for (name, text) in &record.extra {
            let mut value = String::with_capacity(text.len());
            subject::percent_into(&mut value, text);
            headers.pairs.push((Cow::Owned(name.to_string()), value));
        }
        headers.cloud_event(gateway, record.class, record.received_ms);
        let content = match (record.class, encoding) {
            (Class::Embedding, _) => {
                let content = format!("{EMBEDDING}; dim={}", record.body.len() / 4);
                headers.push("Content-Type", content.clone());
                content
            }
            (Class::Raw, _) => "application/octet-stream".to_owned(),
            (Class::Data | Class::Birth, Encoding::Protobuf) => {
                "application/x-protobuf; messageType=\"org.eclipse.tahu.protobuf.Payload\""
                    .to_owned()
            }
            _ => "application/json".to_owned(),
        };
        // CloudEvents' NATS binding asks to percent-encode quotes and spaces in ce- headers.
        headers.push("ce-datacontenttype", cloud_event_text(&content));
        if let Some(schema) = record.schema {
            let mut uri = String::from("sparkgate:");
            uri.push_str(&subject::kv_key(gateway, &record.key).replace('.', "/"));
            let _ = write!(uri, "?schema={schema}");
            headers.push("ce-dataschema", uri);
        }
        headers
    }

    /// The headers of a `gap` message that stands in the place of records of which nothing is known but the
    /// time.
    #[must_use]
    pub fn of_gap(gateway: &str, key: &crate::buffer::record::Key, ms: u64) -> Self {
        let mut headers = Self::default();
        for (name, part) in [
            ("Sparkgate-Group", &key.group),
            ("Sparkgate-Node", &key.node),
            ("Sparkgate-Device", &key.device),
        ] {
            if let Some(part) = part {
                let mut text = String::new();
                subject::percent_into(&mut text, part);
                headers.push(name, text);
            }
        }
        headers.cloud_event(gateway, Class::Gap, ms);
        headers.push("ce-datacontenttype", "application/json".to_owned());
        headers
    }

    fn cloud_event(&mut self, gateway: &str, class: Class, received_ms: u64) {
        self.push("ce-specversion", "1.0".to_owned());
        self.push("ce-type", format!("sparkgate.{}.v1", class.as_str()));
        self.push("ce-source", format!("sparkgate:{gateway}"));
        self.push("ce-time", rfc3339(received_ms));
    }

    /// Adds what depends on the place. `id_prefix` is `<gateway>-<epoch>-`; `msg_id`: whether the server may
    /// use the id to recognise duplicates.
    pub fn place(&mut self, id_prefix: &str, place: Place, msg_id: bool) {
        let id = message_id(id_prefix, place.record, place.part, place.parts);
        if msg_id {
            self.push("Nats-Msg-Id", id.clone());
        }
        if self.get("traceparent").is_none() {
            // Nobody gave this record a trace: it is the beginning of its own.
            self.push("traceparent", trace::of_record(id_prefix, place.record));
        }
        self.push("ce-id", id);
        self.push("Sparkgate-Record", place.record.to_string());
        self.push("Sparkgate-Prev", place.prev.to_string());
        if place.parts > 1 {
            self.push("Sparkgate-Part", format!("{}/{}", place.part, place.parts));
        }
    }

    /// Adds a header.
    pub fn push(&mut self, name: &'static str, value: String) {
        self.pairs.push((Cow::Borrowed(name), value));
    }

    /// The headers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Cow<'static, str>, &String)> {
        self.pairs.iter().map(|(name, value)| (name, value))
    }

    /// The headers, given away.
    #[must_use]
    pub fn into_pairs(self) -> Vec<(Cow<'static, str>, String)> {
        self.pairs
    }

    /// A header's value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(it, _)| it == name)
            .map(|(_, value)| value.as_str())
    }

    /// Bytes on the wire.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        let pairs: usize = self
            .pairs
            .iter()
            .map(|(name, value)| name.len() + value.len() + 4)
            .sum();
        "NATS/1.0\r\n\r\n".len() + pairs
    }
}

/// As the CloudEvents binding for NATS writes attribute values: space, `"`, `%` and everything that is not
/// printable ASCII is percent-encoded.
fn cloud_event_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if (b'!'..=b'~').contains(&byte) && byte != b'"' && byte != b'%' {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Milliseconds since 1970 as `2026-11-29T16:25:00.123Z` (civil calendar from days, after Howard Hinnant).
#[must_use]
pub(crate) fn rfc3339(ms: u64) -> String {
    let (days, in_day) = (ms / 86_400_000, ms % 86_400_000);
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (in_day / 3_600_000, in_day / 60_000 % 60);
    let (second, milli) = (in_day / 1000 % 60, in_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}
