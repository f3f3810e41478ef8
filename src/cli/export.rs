//! `sparkgate buffer export`: stored records as JSON lines, as a Parquet table, or as Sparkplug messages.

use std::io::{self, IsTerminal, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::ValueEnum;
use serde_json::{Value as Json, json};
use sparkplug::datatype::DataType;
use sparkplug::metric::Metric;
use sparkplug::payload::{Form, decode_resolved, encode};
use sparkplug::topic::{DeviceId, DeviceVerb, NodeId, NodeVerb};
use sparkplug::value::Value;

use super::offline::{Place, progress};
use crate::buffer::record::{Class, Record};
use crate::buffer::{Selection, tools};
use crate::pipeline::encode::{Encoder, Encoding};

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Format {
    /// One JSON line a record, with the body that the cloud gets
    #[default]
    Jsonl,
    /// One table, the columns of the cold tier: a row a metric
    Parquet,
    /// One JSON line an MQTT message: topic and payload (base64), each metric with name and type
    Payloads,
}

/// Writes the records of `selection` to standard output.
pub(super) fn export(place: &Place, format: Format, selection: Selection) -> anyhow::Result<bool> {
    let stdout = io::stdout();
    anyhow::ensure!(
        format != Format::Parquet || !stdout.is_terminal(),
        "a Parquet table is not for a terminal: write it to a file with > records.parquet"
    );
    let history = place.history(selection)?;
    let mut out = io::BufWriter::new(stdout);
    let mut told = progress("export");
    let count = match format {
        Format::Jsonl => {
            let mut encoder = Encoder::new("export", Encoding::Json);
            tools::export(history, &mut told, &mut |record| {
                writeln!(out, "{}", line(&mut encoder, record))
            })?
        }
        Format::Payloads => {
            let mut left_out = 0u64;
            let count = tools::export(history, &mut told, &mut |record| match message(record) {
                Some(message) => writeln!(out, "{message}"),
                None => {
                    left_out += 1;
                    Ok(())
                }
            })?;
            if left_out > 0 {
                eprintln!(
                    "{left_out} records left out: they are the gateway's own and were no MQTT messages"
                );
            }
            count - left_out
        }
        #[cfg(feature = "cold")]
        Format::Parquet => {
            use crate::buffer::cold::table;
            let mut table = table::Writer::new(&mut out)?;
            let count = tools::export(history, &mut told, &mut |record| {
                table.put(record).map_err(io::Error::other)
            })?;
            table.finish()?;
            count
        }
        #[cfg(not(feature = "cold"))]
        Format::Parquet => anyhow::bail!("this build has no Parquet: cargo feature `cold`"),
    };
    out.flush()?;
    eprintln!("{count} records");
    Ok(true)
}

/// A record with the body that the cloud gets.
fn line(encoder: &mut Encoder, record: &Record) -> Json {
    let body = encoder
        .prepare(record, None, usize::MAX)
        .ok()
        .and_then(|prepared| serde_json::from_slice(prepared.bodies.first()?).ok())
        .unwrap_or_else(|| Json::String(BASE64.encode(&record.body)));
    json!({
        "record": record.id,
        "class": record.class.as_str(),
        "group": record.key.group.as_deref(),
        "node": record.key.node.as_deref(),
        "device": record.key.device.as_deref(),
        "received_at": record.received_ms,
        "body": body,
    })
}

/// The MQTT message that a record was; `None`: it was none, or its names or payload can't be read.
fn message(record: &Record) -> Option<Json> {
    let (topic, payload) = match record.class {
        Class::Raw => {
            let (_, topic) = record.extra.iter().find(|(name, _)| &**name == "topic")?;
            (topic.to_string(), record.body.to_vec())
        }
        Class::Data | Class::Birth => (topic(record)?, resolved(record)?),
        Class::Death => (topic(record)?, death(record)?),
        Class::Schema
        | Class::Inference
        | Class::Embedding
        | Class::Gap
        | Class::Status
        | Class::Alarm
        | Class::Command => return None,
    };
    Some(json!({
        "record": record.id,
        "received_at": record.received_ms,
        "topic": topic,
        "payload": BASE64.encode(payload),
    }))
}

fn topic(record: &Record) -> Option<String> {
    let key = &record.key;
    let (group, node) = (key.group.as_deref()?, key.node.as_deref()?);
    Some(match &key.device {
        None => NodeId::new(group, node).ok()?.topic(match record.class {
            Class::Birth => NodeVerb::Birth,
            Class::Death => NodeVerb::Death,
            _ => NodeVerb::Data,
        }),
        Some(device) => DeviceId::new(group, node, device)
            .ok()?
            .topic(match record.class {
                Class::Birth => DeviceVerb::Birth,
                Class::Death => DeviceVerb::Death,
                _ => DeviceVerb::Data,
            }),
    })
}

/// Names and types in every message and aliases in none: each message stands on its own, in whatever order they are
/// read.
fn resolved(record: &Record) -> Option<Vec<u8>> {
    let mut payload = decode_resolved(&record.body).ok()?;
    for metric in &mut payload.metrics {
        metric.alias = None;
    }
    let node_birth = record.class == Class::Birth && record.key.device.is_none();
    let named = payload.metrics.iter().any(|metric| &*metric.name == BDSEQ);
    // tck-id-topics-nbirth-bdseq-included
    if let Some(bdseq) = record.bdseq.filter(|_| node_birth && !named) {
        payload.metrics.push(bdseq_metric(bdseq));
    }
    Some(encode(
        payload.timestamp,
        payload.seq,
        &payload.metrics,
        Form::Full,
    ))
}

const BDSEQ: &str = "bdSeq";

fn bdseq_metric(bdseq: u64) -> Metric {
    Metric::new(BDSEQ, DataType::Int64, Value::Int(bdseq.cast_signed()))
}

/// A death certificate; `None` for a death that the gateway concluded by itself.
fn death(record: &Record) -> Option<Vec<u8>> {
    let body: Json = serde_json::from_slice(&record.body).ok()?;
    if !matches!(body.get("cause")?.as_str(), Some("death" | "will")) {
        return None;
    }
    let timestamp = body.get("timestamp")?.as_u64();
    Some(match &record.key.device {
        // tck-id-topics-ndeath-payload, tck-id-topics-ndeath-seq
        None => {
            let bdseq: Vec<Metric> = record.bdseq.map(bdseq_metric).into_iter().collect();
            encode(timestamp, None, &bdseq, Form::Full)
        }
        // tck-id-topics-ddeath-seq-num
        Some(_) => encode(timestamp, record.seq, &[], Form::Full),
    })
}
