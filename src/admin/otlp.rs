//! Metrics and traces to an OpenTelemetry collector: OTLP over HTTP with protobuf bodies (OTLP 1.x, "OTLP/HTTP").
//!
//! Metrics are what `/metrics` renders, read back line by line, so that both always tell the same. Traces are the ring
//! of decisions. Nothing waits for the collector: while it can't be reached, metrics of that moment are left out, and
//! traces wait in their ring as long as they fit.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, metric::Data,
    number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use sha2::{Digest, Sha256};

use super::Shared;
use super::metrics::{NAMES, render};
use crate::pipeline::decisions::Decision;

/// Longest wait for the collector.
const PATIENCE: Duration = Duration::from_secs(5);
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: i32 = 2;
/// `SPAN_KIND_INTERNAL`.
const INTERNAL: i32 = 1;

/// Sends until the process ends. `authority` is `host:port`.
pub async fn send(shared: Arc<Shared>, authority: String, every: Duration) {
    let mut ticks = tokio::time::interval(every.max(Duration::from_secs(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut sent, mut failing) = (0, false);
    loop {
        ticks.tick().await;
        match send_once(&shared, &authority, sent).await {
            Ok(newest) => {
                if std::mem::take(&mut failing) {
                    tracing::info!(authority, "the collector takes telemetry again");
                }
                sent = newest;
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(
                        authority,
                        error = format!("{error:#}"),
                        "telemetry can't be sent"
                    );
                }
            }
        }
    }
}

/// Sends the metrics of now and the traces after `sent`; returns the newest that is sent.
async fn send_once(shared: &Arc<Shared>, authority: &str, sent: u64) -> anyhow::Result<u64> {
    let text = render(shared)
        .await
        .map_err(|error| anyhow::anyhow!(error.message().to_owned()))?;
    let now = crate::clock::wall_ms().saturating_mul(1_000_000);
    let start = shared.started_ms.saturating_mul(1_000_000);
    let request = metrics_request(&shared.gateway, &text, start, now);
    post(authority, "/v1/metrics", request.encode_to_vec()).await?;
    let traces = shared.core.decisions().after(sent);
    let Some(newest) = traces.last().map(|trace| trace.number) else {
        return Ok(sent);
    };
    let request = traces_request(&shared.gateway, shared.started_ms, &traces);
    post(authority, "/v1/traces", request.encode_to_vec()).await?;
    Ok(newest)
}

async fn post(authority: &str, path: &str, body: Vec<u8>) -> anyhow::Result<()> {
    let answer = tokio::time::timeout(PATIENCE, async {
        let io = tokio::net::TcpStream::connect(authority).await?;
        let mut sender = crate::http::open(io).await?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header("host", authority)
            .header("content-type", "application/x-protobuf")
            .body(Full::new(Bytes::from(body)))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let said = response.into_body().collect().await?.to_bytes();
        anyhow::Ok((status, said))
    });
    let (status, said) = answer.await.context("no answer in time")??;
    if !status.is_success() {
        bail!("{path}: {status} {}", String::from_utf8_lossy(&said));
    }
    Ok(())
}

fn text(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

fn resource(gateway: &str) -> Resource {
    Resource {
        attributes: vec![
            text("service.name", "sparkgate"),
            text("service.instance.id", gateway),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ],
        ..Resource::default()
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "sparkgate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

fn metrics_request(
    gateway: &str,
    rendered: &str,
    start: u64,
    now: u64,
) -> ExportMetricsServiceRequest {
    let mut metrics: Vec<Metric> = Vec::new();
    for line in rendered.lines() {
        let Some((name, labels, value)) = sample(line) else {
            continue;
        };
        let Some((known, counter, help)) = NAMES.iter().find(|(known, _, _)| *known == name) else {
            continue;
        };
        let point = NumberDataPoint {
            attributes: labels.iter().map(|(key, value)| text(key, value)).collect(),
            start_time_unix_nano: if *counter { start } else { 0 },
            time_unix_nano: now,
            value: Some(number_data_point::Value::AsDouble(value)),
            ..NumberDataPoint::default()
        };
        // Samples of one name stand together in the text format.
        if metrics.last().is_none_or(|metric| metric.name != *known) {
            let data = if *counter {
                Data::Sum(Sum {
                    aggregation_temporality: CUMULATIVE,
                    is_monotonic: true,
                    ..Sum::default()
                })
            } else {
                Data::Gauge(Gauge::default())
            };
            metrics.push(Metric {
                name: (*known).to_owned(),
                description: (*help).to_owned(),
                unit: unit(known).to_owned(),
                data: Some(data),
                ..Metric::default()
            });
        }
        match metrics.last_mut().and_then(|metric| metric.data.as_mut()) {
            Some(Data::Sum(sum)) => sum.data_points.push(point),
            Some(Data::Gauge(gauge)) => gauge.data_points.push(point),
            _ => {}
        }
    }
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource(gateway)),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics,
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}

/// UCUM, as OTLP wants units.
fn unit(name: &str) -> &'static str {
    let name = name.trim_end_matches("_total").trim_end_matches("_sum");
    if name.ends_with("_seconds") {
        "s"
    } else if name.ends_with("_bytes") {
        "By"
    } else {
        "1"
    }
}

/// Name, labels and value of a sample.
type Sample<'a> = (&'a str, Vec<(String, String)>, f64);

/// A sample line of the text format, `name{key="value",…} number`; comments are none.
fn sample(line: &str) -> Option<Sample<'_>> {
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, rest)) = series.split_once('{') else {
        return Some((series, Vec::new(), value));
    };
    let mut labels = Vec::new();
    let mut rest = rest.strip_suffix('}')?;
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"")?;
        let mut label = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (_, '\\') => match chars.next()?.1 {
                    'n' => label.push('\n'),
                    other => label.push(other),
                },
                (at, '"') => break at,
                (_, other) => label.push(other),
            }
        };
        labels.push((key.to_owned(), label));
        rest = after.get(end + 1..)?.trim_start_matches(',');
    }
    Some((name, labels, value))
}

/// Each trace is a span `decision` with two inside: `decide` and `write`. Ids are made of gateway, start and number, so
/// that a trace which is sent twice is one.
fn traces_request(
    gateway: &str,
    started_ms: u64,
    traces: &[Decision],
) -> ExportTraceServiceRequest {
    let spans = traces.iter().flat_map(|trace| {
        let digest = Sha256::digest(format!("{gateway} {started_ms} {}", trace.number));
        let id = |from: usize, to: usize| digest.get(from..to).unwrap_or_default().to_vec();
        let nanos = |us: u64| trace.start_us.saturating_add(us).saturating_mul(1000);
        let span = |name: &str, own: Vec<u8>, parent: Vec<u8>, from: u64, to: u64| Span {
            trace_id: id(0, 16),
            span_id: own,
            parent_span_id: parent,
            name: name.to_owned(),
            kind: INTERNAL,
            start_time_unix_nano: nanos(from),
            end_time_unix_nano: nanos(to),
            ..Span::default()
        };
        let mut whole = span("decision", id(16, 24), Vec::new(), 0, trace.written_us);
        whole.attributes = vec![text("messaging.destination.name", &trace.topic)];
        let mut second = id(24, 32);
        second.reverse();
        [
            whole,
            span("decide", id(24, 32), id(16, 24), 0, trace.decided_us),
            span(
                "write",
                second,
                id(16, 24),
                trace.decided_us,
                trace.written_us,
            ),
        ]
    });
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource(gateway)),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope()),
                spans: spans.collect(),
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_lines_are_read() {
        let of = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        for (line, expected) in [
            ("a_total 3", Some(("a_total", of(&[]), 3.0))),
            (
                "a{x=\"1\",y=\"b c\"} 0.5",
                Some(("a", of(&[("x", "1"), ("y", "b c")]), 0.5)),
            ),
            (
                "a{x=\"q\\\"}, \\n\"} 1",
                Some(("a", of(&[("x", "q\"}, \n")]), 1.0)),
            ),
            ("# HELP a text 3", None),
            ("a{x=\"1} 2", None),
            ("a", None),
        ] {
            assert_eq!(sample(line), expected, "{line}");
        }
    }

    #[test]
    fn series_of_one_name_become_one_metric() {
        let rendered = "# TYPE x counter\nsparkgate_commands_total{status=\"sent\"} 2\nsparkgate_commands_total{status=\"timeout\"} 1\nsparkgate_disk_healthy 1\n";
        let request = metrics_request("a", rendered, 5, 9);
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        assert_eq!(metrics.len(), 2);
        let Some(Data::Sum(sum)) = &metrics[0].data else {
            panic!("{:?}", metrics[0])
        };
        assert_eq!((sum.data_points.len(), sum.is_monotonic), (2, true));
        assert_eq!(sum.data_points[1].start_time_unix_nano, 5);
        assert!(matches!(&metrics[1].data, Some(Data::Gauge(_))));
    }

    #[test]
    fn a_trace_that_is_sent_twice_has_the_same_ids() {
        let trace = Decision {
            number: 7,
            topic: "t".into(),
            start_us: 100,
            decided_us: 3,
            written_us: 8,
        };
        let one = traces_request("a", 1, std::slice::from_ref(&trace));
        assert_eq!(one, traces_request("a", 1, std::slice::from_ref(&trace)));
        assert_ne!(one, traces_request("b", 1, &[trace]));
        let spans = &one.resource_spans[0].scope_spans[0].spans;
        assert_eq!(spans.len(), 3);
        assert!(
            spans[1..]
                .iter()
                .all(|s| s.parent_span_id == spans[0].span_id)
        );
        assert_eq!(spans[0].end_time_unix_nano, 108_000);
    }
}
