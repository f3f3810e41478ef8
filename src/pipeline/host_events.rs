//! What follows from each thing that the host session tells.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::json;
use sparkplug::host::{HostEvent, Record, SchemaChange};
use sparkplug::topic::NodeId;

use super::Ports;
use super::bodies;
use super::convert::{model_key, model_sample, record_key, rule_event, rule_key};
use super::core::Core;
use super::latency::Stamp;
use super::own::{self, Own};
use crate::actuation::Target;
use crate::buffer::record::{Cause, Class, NewRecord, Origin, RecordId};
use crate::clock::Now;

/// Rule word in the cause of records that the host itself derives.
pub(super) const HOST_RULE: &str = "sparkgate.host";

pub(super) fn handle(core: &mut Core, now: Now, event: HostEvent, ports: &mut dyn Ports) {
    match event {
        HostEvent::NodeBirth {
            node,
            rebirth,
            schema,
            devices: _,
            record,
        } => {
            let id = received(core, now, Class::Birth, &node, None, &record, ports);
            born(
                core,
                now,
                &node,
                None,
                rebirth,
                schema.as_ref(),
                &record,
                id,
                ports,
            );
        }
        HostEvent::DeviceBirth {
            device,
            rebirth,
            schema,
            record,
        } => {
            let id = received(
                core,
                now,
                Class::Birth,
                &device.node,
                Some(&device.device),
                &record,
                ports,
            );
            born(
                core,
                now,
                &device.node,
                Some(&device.device),
                rebirth,
                schema.as_ref(),
                &record,
                id,
                ports,
            );
        }
        HostEvent::NodeData { node, record } => {
            received(core, now, Class::Data, &node, None, &record, ports);
            core.host.recycle(HostEvent::NodeData { node, record });
        }
        HostEvent::DeviceData { device, record } => {
            received(
                core,
                now,
                Class::Data,
                &device.node,
                Some(&device.device),
                &record,
                ports,
            );
            core.host.recycle(HostEvent::DeviceData { device, record });
        }
        HostEvent::NodeDeath {
            tag,
            node,
            cause,
            bdseq,
            at_ms,
            devices,
        } => {
            let id = death(
                core,
                now,
                tag,
                &node,
                None,
                bdseq,
                None,
                at_ms,
                cause.as_str(),
                ports,
            );
            let rule_cause = match cause {
                sparkplug::host::DeathCause::Death => rules::DeathCause::Death,
                sparkplug::host::DeathCause::Will => rules::DeathCause::Will,
                sparkplug::host::DeathCause::Stale => rules::DeathCause::Stale,
            };
            mourn(core, now, &node, None, rule_cause, ports);
            for (index, device) in devices.iter().enumerate() {
                let body = bodies::death(at_ms, bdseq, "node");
                let cause = Cause {
                    record: id,
                    rule: super::convert::stable_hash(HOST_RULE),
                    index: u32::try_from(index).unwrap_or(u32::MAX),
                };
                let key = record_key(&node.group, &node.node, Some(device));
                core.append_derived(now, Class::Death, key, Some(cause), &body, ports);
                mourn(
                    core,
                    now,
                    &node,
                    Some(device),
                    rules::DeathCause::Node,
                    ports,
                );
            }
        }
        HostEvent::DeviceDeath {
            tag,
            device,
            seq,
            bdseq,
            at_ms,
            received_ms: _,
        } => {
            death(
                core,
                now,
                Some(tag),
                &device.node,
                Some(&device.device),
                bdseq,
                seq,
                at_ms,
                "death",
                ports,
            );
            mourn(
                core,
                now,
                &device.node,
                Some(&device.device),
                rules::DeathCause::Death,
                ports,
            );
        }
        HostEvent::RebirthRequested {
            node,
            cause,
            attempt,
        } => {
            *core.counters.rebirths.entry(cause.as_str()).or_default() += 1;
            tracing::info!(%node, cause = cause.as_str(), attempt, "rebirth requested");
        }
        HostEvent::DevicesMissing { node, devices } => {
            tracing::warn!(%node, devices = devices.len(), "devices were not born again after their node");
        }
        HostEvent::DuplicateIdentity {
            node,
            first,
            second,
        } => {
            core.counters.duplicate_identities += 1;
            tracing::error!(%node, %first, %second, "two clients publish under one identity; give each edge node its own id");
            let message = format!(
                "clients `{first}` and `{second}` both publish as {node}; give each edge node its own id"
            );
            let of = node.to_string();
            let own = Own::event(own::HOST, "duplicate_identity", &of, &message, true);
            core.tell(now, own, ports);
        }
        HostEvent::HostState { tag, host, state } => {
            settle_without_record(core, tag);
            tracing::debug!(%host, online = state.online, "host state");
        }
        HostEvent::HostConflict { server, client } => {
            tracing::error!(
                server = server.0,
                ?client,
                "another host application uses this gateway's host id; set [host] id"
            );
            let message = format!(
                "another host application ({}) uses this gateway's host id; set [host] id",
                client.as_deref().unwrap_or("client id unknown")
            );
            let own = Own::event(own::HOST, "host_conflict", "", &message, true);
            core.tell(now, own, ports);
        }
        HostEvent::Invalid {
            tag,
            reason,
            topic,
            detail,
        } => {
            core.count_invalid(reason.as_str());
            tracing::debug!(topic, reason = reason.as_str(), detail, "message refused");
            if let Some(open) = core.take_open(tag)
                && let Some(ack) = open.ack
            {
                ack.refuse();
            }
        }
        HostEvent::Ignored { tag, reason, topic } => {
            *core.counters.ignored.entry(reason.as_str()).or_default() += 1;
            tracing::trace!(topic, reason = reason.as_str(), "message without effect");
            settle_without_record(core, tag);
        }
    }
}

/// A message that needs no record is acknowledged at once: there is nothing to make durable.
fn settle_without_record(core: &mut Core, tag: u64) {
    if let Some(open) = core.take_open(tag)
        && let Some(ack) = open.ack
    {
        ack.accept();
    }
}

/// Journals a birth or data message and lets rules and models see it. Returns its record id.
fn received(
    core: &mut Core,
    now: Now,
    class: Class,
    node: &NodeId,
    device: Option<&Arc<str>>,
    record: &Record,
    ports: &mut dyn Ports,
) -> RecordId {
    let (ack, times, traceparent, lossless) = match core.take_open(record.tag) {
        Some(open) => (
            open.ack,
            Some((open.read_at, open.taken_at)),
            open.traceparent,
            open.lossless,
        ),
        None => (None, None, None, false),
    };
    for rejected in &record.rejected {
        core.count_invalid(rejected.reason.as_str());
        tracing::debug!(%node, ?device, index = rejected.index, reason = rejected.reason.as_str(), detail = rejected.detail, "metric refused");
    }
    core.counters.messages += 1;
    core.counters.metrics += record.metrics.len() as u64;
    let body = sparkplug::payload::encode_resolved(
        Some(record.timestamp),
        record.seq,
        record.bdseq,
        &record.metrics,
    );
    let id = core.append_received(
        NewRecord {
            class,
            origin: Origin::Received,
            engine_ms: now.engine_ms,
            received_ms: record.received_ms,
            clock_trusted: now.trusted,
            key: record_key(&node.group, &node.node, device),
            seq: record.seq,
            bdseq: record.bdseq,
            schema: Some(record.schema),
            cause: None,
            traceparent,
            body: Bytes::from(body),
            extra: Vec::new(),
        },
        ack,
        lossless,
        ports,
    );
    observe(
        core,
        now,
        node,
        device,
        &record.metrics,
        id,
        record.received_ms,
        times,
        ports,
    );
    id
}

/// Lets rules, pending writes and model windows see metrics, in the order of the payload.
#[expect(
    clippy::too_many_arguments,
    reason = "one call site a path, each argument of its own kind"
)]
pub(super) fn observe(
    core: &mut Core,
    now: Now,
    node: &NodeId,
    device: Option<&Arc<str>>,
    metrics: &[sparkplug::metric::Metric],
    id: RecordId,
    received_ms: u64,
    times: Option<(Instant, Instant)>,
    ports: &mut dyn Ports,
) {
    let key = rule_key(&node.group, &node.node, device);
    let stamp = times.map(|(read, taken)| {
        let resolved = ports.mark();
        Stamp {
            read,
            taken,
            resolved,
            decided: resolved,
        }
    });
    for (index, metric) in metrics.iter().enumerate() {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let event = rule_event(&key, metric, id, index, now.engine_ms, received_ms);
        core.rules.handle_event(&event);
    }
    core.drain_rules_at(now, stamp, ports);
    core.embed_metrics(&key, metrics, id, received_ms, ports);
    if core.actuation.in_flight() > 0 {
        let target = Target {
            group: node.group.clone(),
            node: node.node.clone(),
            device: device.cloned(),
        };
        let good = |m: &&sparkplug::metric::Metric| {
            m.is_news() && m.quality.is_none_or(|quality| quality == super::gate::GOOD)
        };
        for metric in metrics.iter().filter(good) {
            core.with_gate(now, ports, |actuation, gate| {
                actuation.handle_value(now.engine_ms, &target, &metric.name, &metric.value, gate);
            });
        }
    }
    if core.windows.is_some() {
        let key = model_key(&node.group, &node.node, device);
        let mut outcomes = Vec::new();
        if let Some(windows) = &mut core.windows {
            for metric in metrics.iter().filter(|m| m.is_news()) {
                if !windows.reads(&metric.name) {
                    continue;
                }
                let sample = model_sample(metric, id, received_ms);
                windows.handle_sample(&key, &sample, wall(received_ms), &mut outcomes);
            }
        }
        windowed(core, outcomes, ports);
    }
}

/// Lets the windows notice silence.
pub(super) fn tick_windows(core: &mut Core, now: Now, ports: &mut dyn Ports) {
    let mut outcomes = Vec::new();
    if let Some(windows) = &mut core.windows {
        windows.handle_tick(wall(now.wall_ms), &mut outcomes);
    }
    windowed(core, outcomes, ports);
}

fn wall(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

fn windowed(core: &mut Core, outcomes: Vec<models::WindowOutcome>, ports: &mut dyn Ports) {
    for outcome in outcomes {
        match outcome {
            models::WindowOutcome::Request(request) => ports.infer(request),
            models::WindowOutcome::NoVerdict(none) => core.count_no_verdict(&none),
        }
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "one call site a path, each argument of its own kind"
)]
fn born(
    core: &mut Core,
    now: Now,
    node: &NodeId,
    device: Option<&Arc<str>>,
    rebirth: bool,
    schema: Option<&SchemaChange>,
    record: &Record,
    id: RecordId,
    ports: &mut dyn Ports,
) {
    let key = rule_key(&node.group, &node.node, device);
    core.rules.handle_birth(&key, now.engine_ms);
    let metrics: Vec<_> = record
        .metrics
        .iter()
        .map(|metric| (&*metric.name, metric.datatype.as_str()))
        .collect();
    for finding in core.rules.check_birth(&key, &metrics) {
        tracing::warn!(%finding, "a birth does not fit a rule");
    }
    let target = Target {
        group: node.group.clone(),
        node: node.node.clone(),
        device: device.cloned(),
    };
    core.with_gate(now, ports, |actuation, gate| {
        actuation.handle_birth(now.engine_ms, &target, gate);
    });
    if let Some(change) = schema {
        let metrics: Vec<_> = record
            .metrics
            .iter()
            .map(|m| json!({"name": m.name.as_ref(), "type": m.datatype.as_str()}))
            .collect();
        let names = |list: &[Arc<str>]| {
            list.iter()
                .map(|n| n.as_ref().to_owned())
                .collect::<Vec<String>>()
        };
        let body = json!({
            "version": change.version,
            "previous": change.previous,
            "change": change.change.as_str(),
            "added": names(&change.added),
            "removed": names(&change.removed),
            "changed": names(&change.changed),
            "metrics": metrics,
        });
        let cause = Cause {
            record: id,
            rule: super::convert::stable_hash(HOST_RULE),
            index: 0,
        };
        core.append_derived(
            now,
            Class::Schema,
            record_key(&node.group, &node.node, device),
            Some(cause),
            &body,
            ports,
        );
    }
    tracing::debug!(%node, ?device, rebirth, metrics = record.metrics.len(), "birth");
}

/// Journals a death. One that came as a message is a received record; one that the host concluded is derived.
#[expect(
    clippy::too_many_arguments,
    reason = "one call site a path, each argument of its own kind"
)]
fn death(
    core: &mut Core,
    now: Now,
    tag: Option<u64>,
    node: &NodeId,
    device: Option<&Arc<str>>,
    bdseq: Option<u64>,
    seq: Option<u8>,
    at_ms: u64,
    cause: &str,
    ports: &mut dyn Ports,
) -> RecordId {
    let body = bodies::death(at_ms, bdseq, cause);
    let key = record_key(&node.group, &node.node, device);
    let Some(tag) = tag else {
        return core.append_derived(now, Class::Death, key, None, &body, ports);
    };
    let (ack, traceparent, lossless) = match core.take_open(tag) {
        Some(open) => (open.ack, open.traceparent, open.lossless),
        None => (None, None, false),
    };
    core.counters.messages += 1;
    core.append_received(
        NewRecord {
            class: Class::Death,
            origin: Origin::Received,
            engine_ms: now.engine_ms,
            received_ms: now.wall_ms,
            clock_trusted: now.trusted,
            key,
            seq,
            bdseq,
            schema: None,
            cause: None,
            traceparent,
            body: Bytes::from(body.to_string()),
            extra: Vec::new(),
        },
        ack,
        lossless,
        ports,
    )
}

/// Rules, windows and pending writes learn of a death.
fn mourn(
    core: &mut Core,
    now: Now,
    node: &NodeId,
    device: Option<&Arc<str>>,
    cause: rules::DeathCause,
    ports: &mut dyn Ports,
) {
    core.rules.handle_death(
        &rule_key(&node.group, &node.node, device),
        now.engine_ms,
        cause,
    );
    let mut outcomes = Vec::new();
    if let Some(windows) = &mut core.windows {
        windows.handle_stale(
            &model_key(&node.group, &node.node, device),
            core.last_record,
            &mut outcomes,
        );
    }
    windowed(core, outcomes, ports);
    let target = Target {
        group: node.group.clone(),
        node: node.node.clone(),
        device: device.cloned(),
    };
    core.with_gate(now, ports, |actuation, gate| {
        actuation.handle_death(now.engine_ms, &target, gate)
    });
}
