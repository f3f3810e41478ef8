//! Payloads made to exhaust memory or the stack are refused within bounds.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use prost::Message as _;
use sparkplug::compress::{COMPRESSED, InflateError};
use sparkplug::payload::{DecodeError, Limits, MetricError, decode};
use sparkplug::proto::{Payload, payload};
use sparkplug::{Metric, Value, WireError};

/// A length-delimited field around `body`.
fn wrap(field: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    let mut len = body.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(body);
    out
}

#[test]
fn templates_and_property_sets_ten_thousand_levels_deep() {
    let mut template = Vec::new();
    let mut properties = Vec::new();
    for _ in 0..10_000 {
        // member { name, datatype Template, template_value }, in a template
        let mut member = vec![0x0a, 1, b'm', 0x20, 19, 0x92, 0x01];
        member.extend_from_slice(&wrap(1, &template)[1..]);
        template = wrap(2, &member);
        // value { type PropertySet, propertyset_value }, in a set
        let mut value = vec![0x08, 20];
        value.extend(wrap(9, &properties));
        properties = [vec![0x0a, 1, b'k'], wrap(2, &value)].concat();
    }
    let mut metric = vec![0x0a, 1, b't', 0x20, 19, 0x92, 0x01];
    metric.extend_from_slice(&wrap(1, &template)[1..]);
    let bytes = [
        wrap(2, &metric),
        wrap(
            2,
            &[vec![0x0a, 1, b'p', 0x20, 1, 0x50, 1], wrap(9, &properties)].concat(),
        ),
    ]
    .concat();
    let payload = decode(&bytes, &Limits::default()).unwrap();
    assert_eq!(
        payload.rejected,
        [(0, MetricError::Depth), (1, MetricError::Depth)]
    );
}

#[test]
fn a_million_metrics() {
    let bytes = [0x12, 0x00].repeat(1_000_000);
    assert_eq!(
        decode(&bytes, &Limits::default()),
        Err(DecodeError::TooManyMetrics { limit: 65_536 })
    );
}

#[test]
fn a_million_cells_and_columns() {
    let rows = [0x22, 0x00].repeat(1_000_000);
    let mut metric = vec![0x0a, 1, b'd', 0x20, 16, 0x8a, 0x01];
    metric.extend_from_slice(&wrap(1, &rows)[1..]);
    let payload = decode(&wrap(2, &metric), &Limits::default()).unwrap();
    assert_eq!(payload.rejected, [(0, MetricError::Elements)]);
}

fn compressed(algorithm: Option<&str>, body: Vec<u8>) -> Vec<u8> {
    let metrics = algorithm
        .map(|name| payload::Metric {
            name: Some("algorithm".into()),
            datatype: Some(12),
            value: Some(payload::metric::Value::StringValue(name.into())),
            ..Default::default()
        })
        .into_iter()
        .collect();
    Payload {
        seq: Some(9),
        uuid: Some(COMPRESSED.into()),
        body: Some(body),
        metrics,
        ..Default::default()
    }
    .encode_to_vec()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_payloads_are_ordered_by_the_outer_seq() {
    let metric = Metric::new("Temp", sparkplug::DataType::Double, Value::Double(4.0)).at(7);
    let inner =
        sparkplug::payload::encode(Some(7), None, &[metric], sparkplug::payload::Form::Full);
    for bytes in [
        compressed(Some("GZIP"), gzip(&inner)),
        compressed(Some("DEFLATE"), zlib(&inner)),
        compressed(None, zlib(&inner)),
    ] {
        let payload = decode(&bytes, &Limits::default()).unwrap();
        assert!(payload.compressed);
        assert_eq!((payload.seq, payload.timestamp), (Some(9), Some(7)));
        assert_eq!(payload.metrics[0].value, Value::Double(4.0));
    }
}

#[test]
fn compressed_payloads_that_are_not_right() {
    let small = Limits {
        max_inflated: 1 << 20,
        ..Limits::default()
    };
    let bomb = vec![0u8; 64 << 20];
    let nested = compressed(None, zlib(b""));
    for (bytes, error) in [
        (
            compressed(Some("GZIP"), gzip(&bomb)),
            InflateError::TooLarge { limit: 1 << 20 },
        ),
        (
            compressed(None, zlib(&bomb)),
            InflateError::TooLarge { limit: 1 << 20 },
        ),
        (compressed(Some("LZ4"), gzip(b"")), InflateError::Algorithm),
        (
            compressed(Some("GZIP"), zlib(b"abc")),
            InflateError::Damaged,
        ),
        (compressed(None, vec![1, 2, 3]), InflateError::Damaged),
        (compressed(None, zlib(&nested)), InflateError::Twice),
    ] {
        assert_eq!(decode(&bytes, &small), Err(DecodeError::Inflate(error)));
    }
    let no_body = Payload {
        uuid: Some(COMPRESSED.into()),
        ..Default::default()
    };
    assert_eq!(
        decode(&no_body.encode_to_vec(), &small),
        Err(DecodeError::Inflate(InflateError::NoBody))
    );
    // A body without the mark is somebody's own business.
    let own = Payload {
        body: Some(vec![1, 2, 3]),
        ..Default::default()
    };
    assert!(decode(&own.encode_to_vec(), &small).is_ok());
}

#[test]
fn a_payload_cut_at_every_byte_is_an_error_or_shorter_never_more() {
    let metric = Metric::new("Temp", sparkplug::DataType::Double, Value::Double(4.0)).at(7);
    let bytes =
        sparkplug::payload::encode(Some(7), Some(3), &[metric], sparkplug::payload::Form::Full);
    for at in 0..bytes.len() {
        match decode(&bytes[..at], &Limits::default()) {
            Ok(payload) => assert!(payload.metrics.len() <= 1),
            Err(DecodeError::Wire { source, .. }) => assert_eq!(source, WireError::Truncated),
            Err(other) => panic!("{other}"),
        }
    }
}
