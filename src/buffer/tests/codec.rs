//! Records and frames as bytes.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use crate::buffer::codec::{DecodeError, Encoder, decode};
use crate::buffer::frame::{
    FRAME_HEADER, FrameHeader, Header, IndexEntry, Summary, TRAILER, Trailer, decode_index,
    encode_footer, finish_frame, frame_seed,
};
use crate::buffer::record::{Cause, Class, Key, Lane, NewRecord, Origin, Record};

fn encode(records: &[Record]) -> Bytes {
    let mut out = Vec::new();
    let mut encoder = Encoder::default();
    for record in records {
        encoder.put(&mut out, record);
    }
    Bytes::from(out)
}

fn name() -> impl Strategy<Value = Option<Arc<str>>> {
    proptest::option::of(".{0,12}".prop_map(Arc::from))
}

prop_compose! {
    fn any_data()(
        class in 1u8..=11,
        derived: bool,
        engine_ms: u64,
        received_ms: u64,
        clock_trusted: bool,
        key in (name(), name(), name()),
        seq: Option<u8>,
        bdseq: Option<u64>,
        schema: Option<u32>,
        cause in proptest::option::of((any::<u64>(), any::<u64>(), any::<u32>())),
        traceparent in proptest::option::of("[0-9a-f-]{55}".prop_map(Box::from)),
        body in proptest::collection::vec(any::<u8>(), 0..80),
        extra in proptest::collection::vec((".{0,5}".prop_map(Box::from), ".{0,5}".prop_map(Box::from)), 0..3),
    ) -> NewRecord {
        NewRecord {
            class: Class::from_u8(class).expect("in range"),
            origin: if derived { Origin::Derived } else { Origin::Received },
            engine_ms,
            received_ms,
            clock_trusted,
            key: Key { group: key.0, node: key.1, device: key.2 },
            seq,
            bdseq,
            schema,
            cause: cause.map(|(record, rule, index)| Cause { record, rule, index }),
            traceparent,
            body: Bytes::from(body),
            extra,
        }
    }
}

fn any_records() -> impl Strategy<Value = Vec<Record>> {
    let steps = proptest::collection::vec((1u64..1000, 1u64..1000, any_data()), 1..20);
    steps.prop_map(|steps| {
        let mut id = 5000;
        let record = |(step, back, data): (u64, u64, NewRecord)| {
            id += step;
            Record {
                id,
                prev: id - back,
                data,
            }
        };
        steps.into_iter().map(record).collect()
    })
}

proptest! {
    #[test]
    fn records_come_back_as_they_were(records in any_records()) {
        let payload = encode(&records);
        let back = decode(&payload, records[0].id, records.len() as u32).expect("own bytes");
        let back: Vec<Record> = back.iter().map(|record| record.as_ref().clone()).collect();
        prop_assert_eq!(back, records);
    }

    #[test]
    fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..300), count in 0u32..1000) {
        let _ = decode(&Bytes::from(bytes), 1, count);
    }

    #[test]
    fn cut_payloads_fail(records in any_records(), cut in 1usize..40) {
        let payload = encode(&records);
        let cut = payload.len().saturating_sub(cut);
        let result = decode(&payload.slice(..cut), records[0].id, records.len() as u32);
        prop_assert!(result.is_err());
    }

    #[test]
    fn a_flipped_bit_breaks_a_frame(at in 0usize..120, bit in 0u8..8) {
        let seed = frame_seed(&[7; 16], Lane::Data, 3);
        let mut frame = vec![0; FRAME_HEADER];
        frame.extend_from_slice(&[0x5a; 80]);
        finish_frame(&mut frame, seed, 2, (10, 11), 4);
        let good = FrameHeader::decode(&frame).expect("own bytes");
        prop_assert!(good.fits(seed, &frame));
        frame[at] ^= 1 << bit;
        let fits = FrameHeader::decode(&frame).is_some_and(|header| header.fits(seed, &frame));
        prop_assert!(!fits);
    }
}

#[test]
fn bytes_behind_the_last_record_are_an_error() {
    let record = Record {
        id: 1,
        prev: 0,
        data: super::data(1),
    };
    let mut payload = encode(std::slice::from_ref(&record)).to_vec();
    payload.push(0);
    assert_eq!(
        decode(&Bytes::from(payload), 1, 1),
        Err(DecodeError::Trailing(1))
    );
}

#[test]
fn a_key_is_written_once_a_frame() {
    let records: Vec<Record> = (1..=100)
        .map(|id| Record {
            id,
            prev: id - 1,
            data: super::data(id),
        })
        .collect();
    let bodies: usize = records.iter().map(|record| record.data.body.len()).sum();
    let overhead = encode(&records).len() - bodies;
    assert!(overhead < 100 * 10, "{overhead} bytes around 100 bodies");
}

#[test]
fn a_frame_of_another_segment_does_not_fit() {
    let mut frame = vec![0; FRAME_HEADER + 10];
    finish_frame(
        &mut frame,
        frame_seed(&[7; 16], Lane::Data, 3),
        1,
        (1, 1),
        0,
    );
    let header = FrameHeader::decode(&frame).expect("own bytes");
    for (epoch, lane, no) in [
        ([8; 16], Lane::Data, 3),
        ([7; 16], Lane::Alarms, 3),
        ([7; 16], Lane::Data, 4),
    ] {
        assert!(!header.fits(frame_seed(&epoch, lane, no), &frame));
    }
}

#[test]
fn header_and_trailer_come_back() {
    let header = Header {
        lane: Lane::Alarms,
        no: 9,
        epoch: [3; 16],
        received: 5,
        derived: 6,
        prev: 70,
    };
    assert_eq!(Header::decode(&header.encode()), Some(header));
    let summary = Summary {
        received: 1,
        derived: 2,
        ord_end: 14,
        first_id: 71,
        last_id: 90,
        min_ms: 10,
        max_ms: 20,
        engine_ms: 30,
        data_end: 400,
        ..Summary::empty(header)
    };
    let index = [IndexEntry {
        offset: 128,
        first_id: 71,
        ord: 11,
        min_ms: 10,
        max_ms: 20,
        keys: 5,
    }];
    let footer = encode_footer(&summary, &index);
    let file_len = 400 + footer.len() as u64;
    let trailer = Trailer::decode(&footer[footer.len() - TRAILER..], file_len).expect("own bytes");
    assert_eq!(trailer.summary, summary);
    let bytes = &footer[..footer.len() - TRAILER];
    assert_eq!(
        decode_index(bytes, trailer.index_crc).as_deref(),
        Some(index.as_slice())
    );
    assert!(Trailer::decode(&footer[footer.len() - TRAILER..], file_len + 1).is_none());
}
