//! `/metrics` for Prometheus. Names are listed in `docs/metrics.md`, which a test compares with what is rendered.
//!
//! Everything is counted where it happens; a scrape copies the counts into the exporter. Labels are bounded: no
//! series is ever named after a device.

mod families;
mod names;

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use metrics::Key;
use metrics::Label;
use metrics::Recorder;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

pub use names::NAMES;

use super::Shared;
use super::api::ApiError;
use super::status::look;
use crate::broker::Handle;
use crate::pipeline::latency::{Latency, STAGES};

/// Renders counts.
pub struct Exporter {
    recorder: PrometheusRecorder,
}

impl Default for Exporter {
    fn default() -> Self {
        Self::new()
    }
}

impl Exporter {
    /// An exporter with every name described.
    #[must_use]
    pub fn new() -> Self {
        let exporter = Self {
            recorder: PrometheusBuilder::new().build_recorder(),
        };
        for (name, counter, help) in NAMES {
            if *counter {
                exporter
                    .recorder
                    .describe_counter((*name).into(), None, (*help).into());
            } else {
                exporter
                    .recorder
                    .describe_gauge((*name).into(), None, (*help).into());
            }
        }
        exporter
    }

    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)], value: u64) {
        self.recorder
            .register_counter(&key(name, labels), &METADATA)
            .absolute(value);
    }

    #[expect(clippy::cast_precision_loss, reason = "Prometheus values are doubles")]
    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)], value: u64) {
        self.recorder
            .register_gauge(&key(name, labels), &METADATA)
            .set(value as f64);
    }

    fn gauge_f64(&self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        self.recorder
            .register_gauge(&key(name, labels), &METADATA)
            .set(value);
    }
}

static METADATA: metrics::Metadata<'static> = metrics::Metadata::new(
    "sparkgate",
    metrics::Level::INFO,
    Some("sparkgate::admin::metrics"),
);

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels
        .iter()
        .map(|(k, v)| Label::new(*k, (*v).to_owned()))
        .collect();
    Key::from_parts(name, labels)
}

/// `GET /metrics`.
///
/// # Errors
/// The core is gone.
pub async fn metrics(State(shared): State<Arc<Shared>>) -> Result<Response, ApiError> {
    let text = render(&shared).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

pub(super) async fn render(shared: &Shared) -> Result<String, ApiError> {
    let view = look(shared).await?;
    let to = &shared.metrics;
    let broker = shared.broker.stats();
    to.gauge(
        "sparkgate_info",
        &[
            ("version", env!("CARGO_PKG_VERSION")),
            ("gateway", &shared.gateway),
            ("mqtt_engine", broker.engine),
        ],
        1,
    );
    #[expect(
        clippy::cast_precision_loss,
        reason = "ms since 1970 are exact in a double"
    )]
    to.gauge_f64(
        "sparkgate_start_time_seconds",
        &[],
        shared.started_ms as f64 / 1000.0,
    );
    records(shared, to);
    let counters = &view.counters;
    to.counter("sparkgate_sparkplug_messages_total", &[], counters.messages);
    to.counter("sparkgate_sparkplug_metrics_total", &[], counters.metrics);
    for (reason, count) in &counters.invalid {
        to.counter(
            "sparkgate_sparkplug_invalid_total",
            &[("reason", reason)],
            *count,
        );
    }
    for (reason, count) in &counters.ignored {
        to.counter(
            "sparkgate_sparkplug_ignored_total",
            &[("reason", reason)],
            *count,
        );
    }
    for (cause, count) in &counters.rebirths {
        to.counter(
            "sparkgate_sparkplug_rebirth_requests_total",
            &[("cause", cause)],
            *count,
        );
    }
    for (name, (all, online)) in [
        ("sparkgate_sparkplug_nodes", view.nodes),
        ("sparkgate_sparkplug_devices", view.devices),
    ] {
        to.gauge(name, &[("state", "online")], online as u64);
        to.gauge(name, &[("state", "offline")], (all - online) as u64);
    }
    to.counter("sparkgate_rule_matches_total", &[], counters.matches);
    to.counter("sparkgate_rule_errors_total", &[], counters.rule_errors);
    to.gauge("sparkgate_alarms_active", &[], view.active as u64);
    to.gauge(
        "sparkgate_alarms_unacknowledged",
        &[],
        view.unacknowledged as u64,
    );
    for receiver in shared.notifier.status() {
        let outcomes = [
            ("sent", receiver.counts.sent),
            ("failed", receiver.counts.failed),
            ("given_up", receiver.counts.given_up),
            ("left_out", receiver.counts.left_out),
        ];
        for (outcome, count) in outcomes {
            let labels = [("receiver", &*receiver.name), ("outcome", outcome)];
            to.counter("sparkgate_notifications_total", &labels, count);
        }
        let waiting = receiver.waiting as u64;
        to.gauge(
            "sparkgate_notifications_waiting",
            &[("receiver", &receiver.name)],
            waiting,
        );
    }
    for (status, count) in &view.writes {
        to.counter("sparkgate_commands_total", &[("status", status)], *count);
    }
    decisions(&view.latency, to);
    for (reason, count) in &counters.no_verdict {
        to.counter(
            "sparkgate_windows_without_verdict_total",
            &[("reason", reason)],
            *count,
        );
    }
    models(shared, to);
    uplink(shared, to);
    to.gauge("sparkgate_mqtt_connections", &[], broker.connections);
    to.gauge("sparkgate_mqtt_sessions", &[], broker.sessions);
    to.gauge("sparkgate_mqtt_retained_messages", &[], broker.retained);
    to.counter("sparkgate_mqtt_publishes_total", &[], broker.publishes);
    for (reason, count) in &broker.dropped {
        to.counter(
            "sparkgate_mqtt_dropped_total",
            &[("reason", reason)],
            *count,
        );
    }
    for (reason, count) in &broker.refused {
        to.counter(
            "sparkgate_mqtt_refused_total",
            &[("reason", reason)],
            *count,
        );
    }
    if let Some(clients) = &broker.clients {
        for (version, count) in &clients.connects {
            let labels = [("version", *version)];
            to.counter("sparkgate_mqtt_connects_total", &labels, *count);
        }
        for (reason, count) in &clients.disconnects {
            let labels = [("reason", *reason)];
            to.counter("sparkgate_mqtt_disconnects_total", &labels, *count);
        }
    }
    for certificate in &broker.certificates {
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds since 1970 are exact in a double"
        )]
        to.gauge_f64(
            "sparkgate_mqtt_certificate_expiry_timestamp_seconds",
            &[("certificate", certificate.what)],
            certificate.ends as f64,
        );
    }
    for link in shared.links.status() {
        let labels = [("server", link.url.as_str())];
        to.gauge(
            "sparkgate_server_connected",
            &labels,
            u64::from(link.state == "up"),
        );
        for (name, count) in [
            ("sparkgate_server_connects_total", link.connects),
            ("sparkgate_server_received_total", link.received),
            ("sparkgate_server_sent_total", link.sent),
            ("sparkgate_server_lost_total", link.lost),
        ] {
            to.counter(name, &labels, count);
        }
    }
    to.counter(
        "sparkgate_log_suppressed_total",
        &[],
        crate::telemetry::suppressed(),
    );
    for certificate in shared.certificates.seen() {
        // A file that can't be read is as bad as one that has ended: 0 lets the same alert fire.
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds since 1970 are exact in a double"
        )]
        to.gauge_f64(
            "sparkgate_uplink_certificate_expiry_timestamp_seconds",
            &[("certificate", certificate.name)],
            (certificate.not_after.unwrap_or(0) / 1000) as f64,
        );
    }
    let (read_ms, taken, waiting) = shared.configured.figures();
    #[expect(
        clippy::cast_precision_loss,
        reason = "ms since 1970 are exact in a double"
    )]
    to.gauge_f64(
        "sparkgate_config_last_reload_timestamp_seconds",
        &[],
        read_ms as f64 / 1000.0,
    );
    to.gauge(
        "sparkgate_config_last_reload_successful",
        &[],
        u64::from(taken),
    );
    to.gauge("sparkgate_config_restart_pending_keys", &[], waiting as u64);
    Ok(families::gather(&to.recorder.handle().render()))
}

/// Upper bounds of the buckets, µs.
const BUCKETS_US: [u64; 13] = [
    50, 100, 200, 300, 500, 700, 1_000, 2_000, 5_000, 15_000, 50_000, 200_000, 1_000_000,
];

fn decisions(latency: &Latency, to: &Exporter) {
    let quantiles = [("0.5", 0.5), ("0.99", 0.99), ("0.999", 0.999)];
    for (word, share) in quantiles {
        let us = latency.total.quantile(share);
        to.gauge_f64(
            "sparkgate_decision_seconds",
            &[("quantile", word)],
            us / 1e6,
        );
    }
    to.counter(
        "sparkgate_decision_seconds_count",
        &[],
        latency.total.count(),
    );
    #[expect(clippy::cast_precision_loss, reason = "Prometheus values are doubles")]
    to.gauge_f64(
        "sparkgate_decision_seconds_sum",
        &[],
        latency.total.sum_us() as f64 / 1e6,
    );
    let stages = STAGES.iter().copied().zip(&latency.stages);
    for (stage, histogram) in stages.chain([("all", &latency.total)]) {
        let bounds = BUCKETS_US.map(|us| (micros_as_seconds(us), histogram.at_most(us)));
        let all = ("+Inf".to_owned(), histogram.count());
        for (bound, count) in bounds.into_iter().chain([all]) {
            to.counter(
                "sparkgate_decision_stage_seconds_bucket",
                &[("stage", stage), ("le", &bound)],
                count,
            );
        }
        to.counter(
            "sparkgate_decision_stage_seconds_count",
            &[("stage", stage)],
            histogram.count(),
        );
        #[expect(clippy::cast_precision_loss, reason = "Prometheus values are doubles")]
        to.gauge_f64(
            "sparkgate_decision_stage_seconds_sum",
            &[("stage", stage)],
            histogram.sum_us() as f64 / 1e6,
        );
    }
}

fn micros_as_seconds(us: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "at most a second")]
    let seconds = us as f64 / 1e6;
    seconds.to_string()
}

fn records(shared: &Shared, to: &Exporter) {
    let counts = shared.journal.counts();
    to.counter("sparkgate_records_received_total", &[], counts.received);
    to.counter("sparkgate_records_derived_total", &[], counts.derived);
    to.counter("sparkgate_records_published_total", &[], counts.published);
    to.counter("sparkgate_records_filtered_total", &[], counts.filtered);
    to.gauge("sparkgate_records_pending", &[], counts.pending);
    for (reason, count) in &counts.dropped {
        to.counter(
            "sparkgate_records_dropped_total",
            &[("reason", reason)],
            *count,
        );
    }
    let stat = shared.journal.stat();
    to.gauge("sparkgate_buffer_hot_bytes", &[], stat.hot_bytes);
    to.gauge("sparkgate_buffer_warm_bytes", &[], stat.warm_bytes);
    to.gauge(
        "sparkgate_buffer_warm_limit_bytes",
        &[],
        stat.warm_max_bytes,
    );
    to.counter(
        "sparkgate_buffer_written_bytes_total",
        &[],
        stat.bytes_written,
    );
    to.counter("sparkgate_buffer_appended_bytes_total", &[], stat.bytes_in);
    to.counter("sparkgate_buffer_fsyncs_total", &[], stat.fsyncs);
    to.counter(
        "sparkgate_buffer_served_records_total",
        &[("tier", "hot")],
        stat.served_hot,
    );
    to.counter(
        "sparkgate_buffer_served_records_total",
        &[("tier", "warm")],
        stat.served_warm,
    );
    to.counter(
        "sparkgate_buffer_served_records_total",
        &[("tier", "cold")],
        stat.served_cold,
    );
    if let Some(cold) = &stat.cold {
        to.gauge("sparkgate_buffer_cold_objects", &[], cold.objects);
        to.gauge("sparkgate_buffer_cold_bytes", &[], cold.bytes);
        to.gauge("sparkgate_buffer_cold_waiting_segments", &[], cold.waiting);
        to.counter(
            "sparkgate_buffer_cold_missed_records_total",
            &[],
            cold.missed_records,
        );
        to.gauge(
            "sparkgate_buffer_cold_healthy",
            &[],
            u64::from(cold.error.is_none()),
        );
    }
    to.gauge("sparkgate_disk_healthy", &[], u64::from(stat.is_healthy()));
}

fn models(shared: &Shared, to: &Exporter) {
    for model in shared.models.iter().flat_map(|runner| runner.status()) {
        let name: &str = &model.model;
        to.counter("sparkgate_model_runs_total", &[("model", name)], model.runs);
        for (reason, count) in &model.skipped {
            to.counter(
                "sparkgate_model_skipped_total",
                &[("model", name), ("reason", reason)],
                *count,
            );
        }
        #[expect(clippy::cast_precision_loss, reason = "Prometheus values are doubles")]
        for (quantile, us) in [("0.5", model.p50_us), ("0.95", model.p95_us)] {
            to.gauge_f64(
                "sparkgate_model_latency_seconds",
                &[("model", name), ("quantile", quantile)],
                us as f64 / 1e6,
            );
        }
        to.gauge(
            "sparkgate_model_fallback_active",
            &[("model", name)],
            u64::from(model.fallback_active),
        );
        let labels = [("model", name)];
        to.counter("sparkgate_model_degraded_total", &labels, model.degraded);
        for (reason, count) in &model.no_verdict {
            to.counter(
                "sparkgate_model_no_verdict_total",
                &[("model", name), ("reason", reason)],
                *count,
            );
        }
        for (of, index) in &model.drift {
            to.gauge_f64(
                "sparkgate_model_drift_index",
                &[("model", name), ("of", of)],
                *index,
            );
        }
        if let Some(candidate) = &model.candidate {
            let (compared, agreed) = (candidate.compared, candidate.agreed);
            to.counter(
                "sparkgate_model_candidate_compared_total",
                &labels,
                compared,
            );
            to.counter("sparkgate_model_candidate_agreed_total", &labels, agreed);
        }
    }
    let Some(text) = shared.embedder.as_ref().map(|embedder| embedder.status()) else {
        return;
    };
    let labels: [(&str, &str); 1] = [("model", &text.model)];
    to.counter("sparkgate_text_embedded_total", &labels, text.embedded);
    to.counter("sparkgate_text_cached_total", &labels, text.cached);
    to.counter("sparkgate_text_failed_total", &labels, text.failed);
    for (reason, count) in &text.skipped {
        to.counter(
            "sparkgate_text_skipped_total",
            &[("model", &text.model), ("reason", reason)],
            *count,
        );
    }
}

fn uplink(shared: &Shared, to: &Exporter) {
    let Some(bridge) = &shared.bridge else { return };
    let status = bridge.status();
    let oldest = status
        .oldest_pending_s(crate::clock::wall_ms())
        .unwrap_or(0.0);
    to.gauge_f64("sparkgate_uplink_oldest_pending_seconds", &[], oldest);
    for (lane, of) in [("data", &status.data), ("alarms", &status.alarms)] {
        let labels = [("lane", lane)];
        to.gauge(
            "sparkgate_uplink_up",
            &labels,
            u64::from(of.state == crate::bridge::status::UplinkState::Ok),
        );
        to.gauge("sparkgate_uplink_pending_records", &labels, of.pending);
        to.gauge(
            "sparkgate_uplink_in_flight_records",
            &labels,
            of.in_flight as u64,
        );
        to.counter("sparkgate_uplink_resyncs_total", &labels, of.resyncs);
        to.counter("sparkgate_uplink_duplicates_total", &labels, of.duplicates);
    }
}
