//! Bytes of the broker's state on disk: retained messages and persistent sessions.
//!
//! A frame is `53 47`, length (u32), CRC-32C of the body (u32), body; numbers are little-endian. A body is a tag and
//! its fields; texts and bytes have a u32 length before them. Damage costs the frames it touches: reading goes on at
//! the next place where a frame's check holds.

use bytes::Bytes;

use super::Qos;
use super::codec::{Options, RetainHandling};
use super::outbound::Progress;

const MAGIC: [u8; 2] = [0x53, 0x47];
const HEADER: usize = 10;

/// A message as saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedMessage {
    pub(crate) topic: String,
    pub(crate) payload: Bytes,
    pub(crate) qos: Qos,
    pub(crate) retain: bool,
    pub(crate) forward: Bytes,
    /// Unix milliseconds; 0: never.
    pub(crate) expires_ms: u64,
}

/// A message of a session's queue as saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedItem {
    pub(crate) message: SavedMessage,
    pub(crate) qos: Qos,
    pub(crate) retain: bool,
    pub(crate) ids: Vec<u32>,
}

/// A session as saved, without its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedSession {
    pub(crate) client: String,
    pub(crate) user: Option<String>,
    pub(crate) expiry: u32,
    /// Filter, options, subscription id.
    pub(crate) subscriptions: Vec<(String, Options, Option<u32>)>,
    /// QoS 2 publishes whose PUBREL has not come.
    pub(crate) received: Vec<u16>,
}

/// One change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// A topic's retained message.
    Retained(SavedMessage),
    /// A topic has none any more.
    Unretained(String),
    /// A session, replacing what was known of it but its messages.
    Session(SavedSession),
    /// A session has ended.
    Gone(String),
    /// One more message of a session, and its place in the order of them all.
    Queued(String, u64, SavedItem),
    /// How far a session's messages have come: those that are neither under way nor at or behind the head are done.
    Progress(String, Progress),
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn u8(&mut self, n: u8) {
        self.0.push(n);
    }
    fn u16(&mut self, n: u16) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    fn u32(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    fn count(&mut self, n: usize) {
        self.u32(u32::try_from(n).unwrap_or(u32::MAX));
    }
    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }
    fn message(&mut self, m: &SavedMessage) {
        self.bytes(m.topic.as_bytes());
        self.bytes(&m.payload);
        self.u8(m.qos as u8 | u8::from(m.retain) << 2);
        self.bytes(&m.forward);
        self.u64(m.expires_ms);
    }
    fn item(&mut self, i: &SavedItem) {
        self.message(&i.message);
        self.u8(i.qos as u8 | u8::from(i.retain) << 2);
        self.count(i.ids.len());
        for id in &i.ids {
            self.u32(*id);
        }
    }
}

/// Appends a record's frame.
pub(crate) fn encode(record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; HEADER - MAGIC.len()]);
    let mut w = Writer(out);
    match record {
        Record::Retained(m) => {
            w.u8(1);
            w.message(m);
        }
        Record::Unretained(topic) => {
            w.u8(2);
            w.bytes(topic.as_bytes());
        }
        Record::Session(s) => {
            w.u8(3);
            w.bytes(s.client.as_bytes());
            w.u8(u8::from(s.user.is_some()));
            w.bytes(s.user.as_deref().unwrap_or_default().as_bytes());
            w.u32(s.expiry);
            w.count(s.subscriptions.len());
            for (filter, o, id) in &s.subscriptions {
                w.bytes(filter.as_bytes());
                let handling = o.retain_handling as u8;
                w.u8(o.qos as u8
                    | u8::from(o.no_local) << 2
                    | u8::from(o.retain_as_published) << 3
                    | handling << 4);
                w.u32(id.unwrap_or(0));
            }
            w.count(s.received.len());
            for pid in &s.received {
                w.u16(*pid);
            }
        }
        Record::Gone(client) => {
            w.u8(4);
            w.bytes(client.as_bytes());
        }
        Record::Queued(client, order, item) => {
            w.u8(7);
            w.bytes(client.as_bytes());
            w.u64(*order);
            w.item(item);
        }
        Record::Progress(client, progress) => {
            w.u8(8);
            w.bytes(client.as_bytes());
            w.u64(progress.head);
            w.count(progress.inflight.len());
            for (pid, dup, order) in &progress.inflight {
                w.u16(*pid);
                w.u8(u8::from(*dup) | u8::from(order.is_some()) << 1);
                w.u64(order.unwrap_or(0));
            }
        }
    }
    let body = out.get(start + HEADER..).unwrap_or_default();
    let (length, crc) = (
        u32::try_from(body.len()).unwrap_or(u32::MAX),
        crc32c::crc32c(body),
    );
    if let Some(header) = out.get_mut(start + MAGIC.len()..start + HEADER) {
        let (a, b) = header.split_at_mut(4);
        a.copy_from_slice(&length.to_le_bytes());
        b.copy_from_slice(&crc.to_le_bytes());
    }
}

struct Cursor(Bytes);

impl Cursor {
    fn take(&mut self, n: usize) -> Option<Bytes> {
        (n <= self.0.len()).then(|| self.0.split_to(n))
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.as_ref().try_into().ok()
    }
    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    /// A number of things of at least one byte each: more than there are bytes left is not believed.
    fn count(&mut self) -> Option<usize> {
        let n = usize::try_from(self.u32()?).ok()?;
        (n <= self.0.len()).then_some(n)
    }
    fn bytes(&mut self) -> Option<Bytes> {
        let n = self.count()?;
        // Own memory: a small message must not pin the whole file.
        self.take(n).map(|b| Bytes::copy_from_slice(&b))
    }
    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
    fn message(&mut self) -> Option<SavedMessage> {
        let (topic, payload) = (self.text()?, self.bytes()?);
        let flags = self.u8()?;
        let (forward, expires_ms) = (self.bytes()?, self.u64()?);
        Some(SavedMessage {
            topic,
            payload,
            qos: qos(flags),
            retain: flags & 4 != 0,
            forward,
            expires_ms,
        })
    }
    fn item(&mut self) -> Option<SavedItem> {
        let message = self.message()?;
        let flags = self.u8()?;
        let n = self.count()?;
        let ids = (0..n).map(|_| self.u32()).collect::<Option<_>>()?;
        Some(SavedItem {
            message,
            qos: qos(flags),
            retain: flags & 4 != 0,
            ids,
        })
    }
    fn record(&mut self) -> Option<Record> {
        Some(match self.u8()? {
            1 => Record::Retained(self.message()?),
            2 => Record::Unretained(self.text()?),
            3 => {
                let client = self.text()?;
                let (named, user) = (self.u8()?, self.text()?);
                let expiry = self.u32()?;
                let n = self.count()?;
                let subscriptions = (0..n).map(|_| self.subscription()).collect::<Option<_>>()?;
                let n = self.count()?;
                let received = (0..n).map(|_| self.u16()).collect::<Option<_>>()?;
                let user = (named == 1).then_some(user);
                Record::Session(SavedSession {
                    client,
                    user,
                    expiry,
                    subscriptions,
                    received,
                })
            }
            4 => Record::Gone(self.text()?),
            7 => Record::Queued(self.text()?, self.u64()?, self.item()?),
            8 => {
                let (client, head) = (self.text()?, self.u64()?);
                let n = self.count()?;
                let inflight = (0..n).map(|_| self.inflight()).collect::<Option<_>>()?;
                Record::Progress(client, Progress { head, inflight })
            }
            _ => return None,
        })
    }
    fn subscription(&mut self) -> Option<(String, Options, Option<u32>)> {
        let (filter, bits, id) = (self.text()?, self.u8()?, self.u32()?);
        let options = Options {
            qos: qos(bits),
            no_local: bits & 4 != 0,
            retain_as_published: bits & 8 != 0,
            retain_handling: match bits >> 4 {
                1 => RetainHandling::IfNew,
                2 => RetainHandling::Never,
                _ => RetainHandling::Always,
            },
        };
        Some((filter, options, (id != 0).then_some(id)))
    }
    fn inflight(&mut self) -> Option<(u16, bool, Option<u64>)> {
        let (pid, flags, order) = (self.u16()?, self.u8()?, self.u64()?);
        Some((pid, flags & 1 != 0, (flags & 2 != 0).then_some(order)))
    }
}

fn qos(bits: u8) -> Qos {
    match bits & 3 {
        0 => Qos::AtMostOnce,
        1 => Qos::AtLeastOnce,
        _ => Qos::ExactlyOnce,
    }
}

/// Reads all frames of a file; the second value is the number of bytes that belonged to none.
pub(crate) fn decode_all(file: &Bytes) -> (Vec<Record>, usize) {
    let (mut records, mut at, mut lost) = (Vec::new(), 0, 0);
    while at < file.len() {
        match frame_at(file, at) {
            Some((record, end)) => {
                records.push(record);
                at = end;
            }
            None => {
                lost += 1;
                at += 1;
            }
        }
    }
    (records, lost)
}

fn frame_at(file: &Bytes, at: usize) -> Option<(Record, usize)> {
    let header: &[u8; HEADER] = file.get(at..at.checked_add(HEADER)?)?.try_into().ok()?;
    let [m0, m1, l0, l1, l2, l3, c0, c1, c2, c3] = *header;
    if [m0, m1] != MAGIC {
        return None;
    }
    let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).ok()?;
    let (start, end) = (at + HEADER, at.checked_add(HEADER)?.checked_add(length)?);
    let body = file.get(start..end)?;
    if crc32c::crc32c(body) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return None;
    }
    Some((Cursor(file.slice(start..end)).record()?, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Record> {
        let message = |n: u8| SavedMessage {
            topic: format!("t/{n}"),
            payload: Bytes::from(vec![n; 20]),
            qos: Qos::AtLeastOnce,
            retain: true,
            forward: Bytes::from_static(b"\x01\x01"),
            expires_ms: 7,
        };
        let item = |n| SavedItem {
            message: message(n),
            qos: Qos::ExactlyOnce,
            retain: false,
            ids: vec![1, 300],
        };
        let options = Options {
            qos: Qos::ExactlyOnce,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::Never,
        };
        vec![
            Record::Retained(message(1)),
            Record::Unretained("t/1".to_owned()),
            Record::Session(SavedSession {
                client: "c".to_owned(),
                user: Some("u".to_owned()),
                expiry: 9,
                subscriptions: vec![
                    ("a/#".to_owned(), options, Some(4)),
                    ("b".to_owned(), options, None),
                ],
                received: vec![1, 2],
            }),
            Record::Queued("c".to_owned(), 1 << 40, item(2)),
            Record::Progress(
                "c".to_owned(),
                Progress {
                    head: 9,
                    inflight: vec![(1, true, Some(7)), (2, false, None)],
                },
            ),
            Record::Gone("c".to_owned()),
        ]
    }

    #[test]
    fn frames_round_trip() {
        let mut file = Vec::new();
        samples().iter().for_each(|r| encode(r, &mut file));
        assert_eq!(decode_all(&file.into()), (samples(), 0));
    }

    #[test]
    fn a_torn_tail_costs_the_last_record_at_every_length() {
        let mut file = Vec::new();
        let all = samples();
        let (last, rest) = all.split_last().unwrap();
        rest.iter().for_each(|r| encode(r, &mut file));
        let whole = file.len();
        encode(last, &mut file);
        for cut in whole..file.len() {
            let (records, lost) = decode_all(&Bytes::copy_from_slice(&file[..cut]));
            assert_eq!((records.as_slice(), lost), (rest, cut - whole));
        }
    }

    #[test]
    fn a_flipped_bit_costs_one_record() {
        let mut file = Vec::new();
        samples().iter().for_each(|r| encode(r, &mut file));
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x10;
            let (records, lost) = decode_all(&damaged.into());
            assert_eq!(records.len(), samples().len() - 1, "byte {at}");
            assert!(lost > 0);
        }
    }
}
