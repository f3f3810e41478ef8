//! JSON, by hand.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sparkplug::array::Array;
use sparkplug::dataset::DataSet;
use sparkplug::metric::Metric;
use sparkplug::payload::ResolvedPayload;
use sparkplug::property::{PropertySet, QUALITY};
use sparkplug::template::Template;
use sparkplug::value::Value;

use crate::buffer::record::{Class, Record};

/// Integers up to here are exact in every JSON reader.
const EXACT: u64 = 1 << 53;

/// `{"timestamp":…,"received_at":…,"seq":…,"metrics":[`, for births with `bdseq` and `schema`.
pub(super) fn head(out: &mut Vec<u8>, record: &Record, payload: &ResolvedPayload) {
    out.push(b'{');
    if let Some(timestamp) = payload.timestamp {
        out.extend_from_slice(b"\"timestamp\":");
        unsigned(out, timestamp);
        out.push(b',');
    }
    out.extend_from_slice(b"\"received_at\":");
    unsigned(out, record.received_ms);
    if let Some(seq) = record.seq {
        out.extend_from_slice(b",\"seq\":");
        unsigned(out, u64::from(seq));
    }
    if record.class == Class::Birth {
        if let Some(bdseq) = record.bdseq {
            out.extend_from_slice(b",\"bdseq\":");
            unsigned(out, bdseq);
        }
        if let Some(schema) = record.schema {
            out.extend_from_slice(b",\"schema\":");
            unsigned(out, u64::from(schema));
        }
    }
    out.extend_from_slice(b",\"metrics\":[");
}

/// One metric as an object.
pub(super) fn metric(out: &mut Vec<u8>, metric: &Metric) {
    out.extend_from_slice(b"{\"name\":");
    string(out, &metric.name);
    out.extend_from_slice(b",\"type\":\"");
    out.extend_from_slice(metric.datatype.as_str().as_bytes());
    out.extend_from_slice(b"\",\"value\":");
    value(out, &metric.value);
    if let Some(timestamp) = metric.timestamp {
        out.extend_from_slice(b",\"timestamp\":");
        unsigned(out, timestamp);
    }
    if let Some(quality) = metric.quality {
        out.extend_from_slice(b",\"quality\":");
        signed(out, i64::from(quality));
    }
    if metric.historical {
        out.extend_from_slice(b",\"historical\":true");
    }
    if let Some(set) = &metric.properties
        && set.entries.iter().any(|entry| &*entry.key != QUALITY)
    {
        // Quality has its own field.
        out.extend_from_slice(b",\"properties\":");
        properties(out, set, true);
    }
    out.push(b'}');
}

/// A metric as a JSON object, as in `data` bodies.
#[must_use]
pub fn metric_json(it: &Metric) -> Vec<u8> {
    let mut out = Vec::with_capacity(96);
    metric(&mut out, it);
    out
}

/// A value as JSON text.
#[must_use]
pub fn value_json(it: &Value) -> String {
    let mut out = Vec::new();
    value(&mut out, it);
    // Only text is written.
    String::from_utf8_lossy(&out).into_owned()
}

pub(super) fn value(out: &mut Vec<u8>, it: &Value) {
    match it {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Int(v) => signed(out, *v),
        Value::UInt(v) | Value::DateTime(v) => unsigned(out, *v),
        Value::Float(v) => float(out, *v),
        Value::Double(v) => double(out, *v),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::String(v) => string(out, v),
        Value::Bytes(v) => base64(out, v),
        Value::DataSet(v) => dataset(out, v),
        Value::Template(v) => template(out, v),
        Value::Array(v) => array(out, v),
        Value::PropertySet(v) => properties(out, v, false),
        Value::PropertySetList(v) => list(out, v.iter(), |out, set| properties(out, set, false)),
    }
}

fn list<T>(
    out: &mut Vec<u8>,
    items: impl Iterator<Item = T>,
    mut each: impl FnMut(&mut Vec<u8>, T),
) {
    out.push(b'[');
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        each(out, item);
    }
    out.push(b']');
}

fn properties(out: &mut Vec<u8>, set: &PropertySet, skip_quality: bool) {
    out.push(b'{');
    let mut first = true;
    for entry in &set.entries {
        if skip_quality && &*entry.key == QUALITY {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        string(out, &entry.key);
        out.push(b':');
        value(out, &entry.value);
    }
    out.push(b'}');
}

fn dataset(out: &mut Vec<u8>, set: &DataSet) {
    out.extend_from_slice(b"{\"columns\":");
    list(out, set.columns.iter(), |out, name| string(out, name));
    out.extend_from_slice(b",\"types\":");
    list(out, set.types.iter(), |out, it| string(out, it.as_str()));
    out.extend_from_slice(b",\"rows\":");
    list(out, set.rows.iter(), |out, row| {
        list(out, row.iter(), value)
    });
    out.push(b'}');
}

fn template(out: &mut Vec<u8>, it: &Template) {
    out.push(b'{');
    if let Some(name) = &it.template_ref {
        out.extend_from_slice(b"\"ref\":");
        string(out, name);
        out.push(b',');
    }
    if let Some(version) = &it.version {
        out.extend_from_slice(b"\"version\":");
        string(out, version);
        out.push(b',');
    }
    if !it.parameters.is_empty() {
        out.extend_from_slice(b"\"parameters\":{");
        for (index, parameter) in it.parameters.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            string(out, &parameter.name);
            out.push(b':');
            value(out, &parameter.value);
        }
        out.extend_from_slice(b"},");
    }
    out.extend_from_slice(b"\"metrics\":");
    list(out, it.metrics.iter(), metric);
    out.push(b'}');
}

fn array(out: &mut Vec<u8>, it: &Array) {
    match it {
        Array::Int8(v) => list(out, v.iter(), |out, v| signed(out, i64::from(*v))),
        Array::Int16(v) => list(out, v.iter(), |out, v| signed(out, i64::from(*v))),
        Array::Int32(v) => list(out, v.iter(), |out, v| signed(out, i64::from(*v))),
        Array::Int64(v) => list(out, v.iter(), |out, v| signed(out, *v)),
        Array::UInt8(v) => list(out, v.iter(), |out, v| unsigned(out, u64::from(*v))),
        Array::UInt16(v) => list(out, v.iter(), |out, v| unsigned(out, u64::from(*v))),
        Array::UInt32(v) => list(out, v.iter(), |out, v| unsigned(out, u64::from(*v))),
        Array::UInt64(v) | Array::DateTime(v) => list(out, v.iter(), |out, v| unsigned(out, *v)),
        Array::Float(v) => list(out, v.iter(), |out, v| float(out, *v)),
        Array::Double(v) => list(out, v.iter(), |out, v| double(out, *v)),
        Array::Boolean(v) => list(out, v.iter(), |out, v| value(out, &Value::Bool(*v))),
        Array::String(v) => list(out, v.iter(), |out, v| string(out, v)),
    }
}

pub(super) fn gap(
    out: &mut Vec<u8>,
    from: u64,
    to: u64,
    count: u64,
    ms: Option<(u64, u64)>,
    cause: &str,
) {
    for (name, number) in [
        (&b"{\"from\":"[..], from),
        (b",\"to\":", to),
        (b",\"count\":", count),
    ] {
        out.extend_from_slice(name);
        unsigned(out, number);
    }
    if let Some((first, last)) = ms {
        out.extend_from_slice(b",\"first_ms\":");
        unsigned(out, first);
        out.extend_from_slice(b",\"last_ms\":");
        unsigned(out, last);
    }
    out.extend_from_slice(b",\"cause\":");
    string(out, cause);
    out.push(b'}');
}

fn digits(out: &mut Vec<u8>, mut v: u64) {
    let mut text = [0u8; 20];
    let mut used = 0;
    for slot in text.iter_mut().rev() {
        *slot = b'0' + (v % 10) as u8;
        used += 1;
        v /= 10;
        if v == 0 {
            break;
        }
    }
    out.extend_from_slice(text.get(text.len() - used..).unwrap_or_default());
}

pub(super) fn unsigned(out: &mut Vec<u8>, v: u64) {
    if v > EXACT {
        out.push(b'"');
        digits(out, v);
        out.push(b'"');
    } else {
        digits(out, v);
    }
}

fn signed(out: &mut Vec<u8>, v: i64) {
    let quoted = v.unsigned_abs() > EXACT;
    if quoted {
        out.push(b'"');
    }
    if v < 0 {
        out.push(b'-');
    }
    digits(out, v.unsigned_abs());
    if quoted {
        out.push(b'"');
    }
}

/// Shortest text that reads back as the same float: 1.1f32 is 1.1.
fn float(out: &mut Vec<u8>, v: f32) {
    if v.is_finite() {
        // Writing to a vector can't fail.
        let _ = std::io::Write::write_fmt(out, format_args!("{v:?}"));
    } else {
        not_finite(out, f64::from(v));
    }
}

fn double(out: &mut Vec<u8>, v: f64) {
    if v.is_finite() {
        let _ = std::io::Write::write_fmt(out, format_args!("{v:?}"));
    } else {
        not_finite(out, v);
    }
}

fn not_finite(out: &mut Vec<u8>, v: f64) {
    out.extend_from_slice(if v.is_nan() {
        b"\"NaN\""
    } else if v > 0.0 {
        b"\"Infinity\""
    } else {
        b"\"-Infinity\""
    });
}

fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    let mut chunk = [0u8; 1024];
    // 768 bytes are 1,024 characters without padding in between.
    for piece in bytes.chunks(768) {
        if let Ok(used) = STANDARD.encode_slice(piece, &mut chunk) {
            out.extend_from_slice(chunk.get(..used).unwrap_or_default());
        }
    }
    out.push(b'"');
}

pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut clean = 0;
    for (at, byte) in bytes.iter().copied().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(bytes.get(clean..at).unwrap_or_default());
        clean = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                let _ = std::io::Write::write_fmt(out, format_args!("\\u{byte:04x}"));
            }
        }
    }
    out.extend_from_slice(bytes.get(clean..).unwrap_or_default());
    out.push(b'"');
}
