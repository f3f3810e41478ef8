//! One trace from the device to the cloud: W3C Trace Context, level 1, as text in the `traceparent` header.
//!
//! A device may give a message a `traceparent` (an MQTT v5 user property); its record keeps it. Every other
//! received record begins a trace of its own, which is a function of gateway, epoch and record id: it costs no
//! byte in the journal, and is the same whenever the record is sent again. What follows from a record (alarms,
//! commands, inferences) goes on in its trace with a span of its own, a function of its cause, so that a replay
//! makes the same.

use std::collections::{HashMap, VecDeque};

use super::convert::stable_hash;
use crate::buffer::record::{Cause, RecordId};

/// Records whose trace is not their own, remembered for what may still follow from them.
const MOST: usize = 16_384;
/// `00-<32 hex>-<16 hex>-01`.
const LENGTH: usize = 55;

/// Whether `text` is a `traceparent` that may be passed on: version 00, lower-case hex, ids that are not zero.
#[must_use]
pub fn is_valid(text: &str) -> bool {
    let hex = |part: &str, length: usize| {
        part.len() == length
            && part
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let zero = |part: &str| part.bytes().all(|byte| byte == b'0');
    let mut parts = text.split('-');
    let mut part = || parts.next().unwrap_or_default();
    let (version, trace, span, flags) = (part(), part(), part(), part());
    text.len() == LENGTH
        && version == "00"
        && hex(trace, 32)
        && !zero(trace)
        && hex(span, 16)
        && !zero(span)
        && hex(flags, 2)
}

/// The trace that a received record begins. `prefix` is `<gateway>-<epoch>-`. Different records of one prefix
/// have different traces.
#[must_use]
pub fn of_record(prefix: &str, record: RecordId) -> String {
    let (trace, span) = root(stable_hash(prefix), record);
    text(trace, span)
}

fn root(seed: u64, record: RecordId) -> (u128, u64) {
    let high = mix(seed ^ record);
    let low = mix(seed.rotate_left(32).wrapping_add(record));
    (
        u128::from(high) << 64 | u128::from(low),
        mix(seed.wrapping_sub(record)),
    )
}

/// The finaliser of SplitMix64: a bijection, so that different inputs stay different.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Zero is no id by the norm.
fn text(trace: u128, span: u64) -> String {
    format!("00-{:032x}-{:016x}-01", trace.max(1), span.max(1))
}

/// Which trace a record belongs to, for what follows from it.
#[derive(Debug)]
pub struct Traces {
    seed: u64,
    others: HashMap<RecordId, Box<str>>,
    order: VecDeque<RecordId>,
}

impl Traces {
    /// For records whose message ids begin with `prefix`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self {
            seed: stable_hash(prefix),
            others: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// A record was journalled with this `traceparent`. The oldest is forgotten beyond a bound: what still
    /// follows from it then begins a trace anew.
    pub fn note(&mut self, record: RecordId, traceparent: &str) {
        if self.others.insert(record, traceparent.into()).is_none() {
            self.order.push_back(record);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.others.remove(&oldest);
        }
    }

    /// The `traceparent` of something that follows from `cause`: the trace of that record, a span of its own.
    #[must_use]
    pub fn follow(&self, cause: Cause) -> Option<Box<str>> {
        if cause.record == 0 {
            return None;
        }
        let span = mix(mix(self.seed ^ cause.rule)
            .wrapping_add(cause.record)
            .rotate_left(17)
            ^ u64::from(cause.index));
        let known = self.others.get(&cause.record).and_then(|text| {
            let (trace, flags) = (text.get(..36)?, text.get(52..)?);
            Some(format!("{trace}{:016x}{flags}", span.max(1)))
        });
        let follows = known.unwrap_or_else(|| text(root(self.seed, cause.record).0, span));
        Some(follows.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn cause(record: RecordId, rule: u64) -> Cause {
        Cause {
            record,
            rule,
            index: 0,
        }
    }

    fn trace(text: &str) -> &str {
        &text[3..35]
    }

    #[test]
    fn what_a_device_gives_is_judged() {
        assert!(is_valid(GIVEN));
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\n",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333é-0",
        ] {
            assert!(!is_valid(bad), "{bad}");
        }
    }

    #[test]
    fn records_begin_traces_that_differ_and_stay_the_same() {
        let mut seen = std::collections::HashSet::new();
        for record in 0..10_000 {
            let text = of_record("site-a-e1-", record);
            assert!(is_valid(&text), "{text}");
            assert_eq!(text, of_record("site-a-e1-", record));
            assert!(seen.insert(trace(&text).to_owned()));
        }
        assert!(seen.insert(trace(&of_record("site-b-e1-", 1)).to_owned()));
    }

    #[test]
    fn what_follows_stays_in_the_trace() {
        let mut traces = Traces::new("site-a-e1-");
        let alarm = traces.follow(cause(7, 1)).unwrap();
        let command = traces.follow(cause(7, 2)).unwrap();
        assert!(is_valid(&alarm));
        assert_eq!(trace(&alarm), trace(&of_record("site-a-e1-", 7)));
        assert_eq!(trace(&alarm), trace(&command));
        assert_ne!(alarm, command, "a span each");
        // An inference of record 7 becomes record 9; an alarm of that is in the trace of 7.
        traces.note(9, &alarm);
        assert_eq!(trace(&traces.follow(cause(9, 3)).unwrap()), trace(&alarm));
        traces.note(8, GIVEN);
        let given = traces.follow(cause(8, 1)).unwrap();
        assert_eq!(trace(&given), trace(GIVEN));
        assert!(given.ends_with("-00"), "the device's flags: {given}");
        assert_eq!(traces.follow(cause(0, 1)), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut traces = Traces::new("x");
        for record in 1..=MOST as u64 + 10 {
            traces.note(record, GIVEN);
            traces.note(record, GIVEN);
        }
        assert_eq!((traces.others.len(), traces.order.len()), (MOST, MOST));
        assert!(!traces.others.contains_key(&10));
    }
}
