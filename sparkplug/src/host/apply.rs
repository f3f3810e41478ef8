//! What a message does to a node: births, data, deaths.

use std::sync::Arc;

use super::event::{
    DeathCause, HostEvent, IgnoredReason, InvalidReason, Message, RebirthCause, Record,
};
use super::node::{BirthMark, Cx, Incoming, Node, Phase, Verb};
use super::resolve::{Opened, Resolved, Times, open, reason_of_decode, send_time};
use crate::metric::Metric;
use crate::payload::raw::RawPayload;
use crate::seq::Seq;
use crate::topic::DeviceId;

/// Metric that numbers the MQTT sessions of a node.
pub const BDSEQ: &str = "bdSeq";

impl Node {
    /// A message in sequence.
    pub(super) fn apply(&mut self, cx: &mut Cx<'_>, message: &Incoming<'_>) {
        match (message.verb, message.device) {
            (Verb::NodeData, _) => self.data(cx, 0, message),
            (Verb::DeviceData, Some(device)) => match self.born_device(device) {
                Some(entity) => self.data(cx, entity, message),
                None => self.unknown_device(cx, message),
            },
            (Verb::DeviceBirth, Some(device)) => self.device_birth(cx, device, message),
            (Verb::DeviceDeath, Some(device)) => match self.device(device) {
                Some(entity) => self.device_death(cx, entity, message),
                None => self.unknown_device(cx, message),
            },
            // A device message always has a device; the topic says so.
            (_, None) => self.unknown_device(cx, message),
        }
    }

    pub(super) fn born_device(&self, device: &str) -> Option<u32> {
        self.device(device).filter(|at| {
            self.entities
                .get(*at as usize)
                .is_some_and(|entity| entity.born)
        })
    }

    fn unknown_device(&mut self, cx: &mut Cx<'_>, message: &Incoming<'_>) {
        self.want(cx, RebirthCause::UnknownDevice);
        self.invalid(
            cx,
            message,
            InvalidReason::UnknownDevice,
            "the device has not been born since its node's birth",
        );
    }

    fn data(&mut self, cx: &mut Cx<'_>, entity: u32, message: &Incoming<'_>) {
        let limits = &cx.config.limits.payload;
        let opened = match open(&message.payload, limits) {
            Ok(opened) => opened,
            Err(error) => return self.undecodable(cx, message, &error),
        };
        let raw = match opened.payload(limits) {
            Ok(raw) => raw,
            Err(error) => return self.undecodable(cx, message, &error),
        };
        let resolved = self.resolve_data(cx, entity, &raw, message);
        if let Some(cause) = resolved.rebirth {
            self.want(cx, cause);
        }
        // Nothing of it could be used: refused as a whole, under the first reason.
        if resolved.metrics.is_empty()
            && let Some(first) = resolved.rejected.first()
        {
            let (reason, detail) = (first.reason, first.detail.clone());
            return self.invalid(cx, message, reason, detail);
        }
        let record = self.record(
            entity,
            message,
            message.timestamp.or(raw.timestamp),
            resolved,
        );
        let event = match message.device {
            None => HostEvent::NodeData {
                node: self.id.clone(),
                record,
            },
            Some(_) => HostEvent::DeviceData {
                device: self.device_id(entity),
                record,
            },
        };
        cx.events.push_back(event);
    }

    fn undecodable(
        &mut self,
        cx: &mut Cx<'_>,
        message: &Incoming<'_>,
        error: &crate::payload::DecodeError,
    ) {
        self.want(cx, RebirthCause::Undecodable);
        self.invalid(cx, message, reason_of_decode(error), error.to_string());
    }

    fn record(
        &mut self,
        entity: u32,
        message: &Incoming<'_>,
        sent: Option<u64>,
        resolved: Resolved,
    ) -> Record {
        let timestamp = send_time(sent, message.received_ms);
        let mut schema = 0;
        if let Some(owner) = self.entities.get_mut(entity as usize) {
            owner.latency_ms = sent.map(|_| {
                message
                    .received_ms
                    .cast_signed()
                    .saturating_sub(timestamp.cast_signed())
            });
            schema = owner.schema;
        }
        Record {
            tag: message.tag,
            received_ms: message.received_ms,
            timestamp,
            seq: Some(message.seq.get()),
            bdseq: self.bdseq,
            schema,
            metrics: resolved.metrics,
            rejected: resolved.rejected,
        }
    }

    pub(super) fn device_id(&self, entity: u32) -> DeviceId {
        let device = (entity as usize)
            .checked_sub(1)
            .and_then(|at| self.devices.get(at).cloned())
            .unwrap_or_default();
        DeviceId {
            node: self.id.clone(),
            device,
        }
    }

    fn device_birth(&mut self, cx: &mut Cx<'_>, device: &str, message: &Incoming<'_>) {
        let limits = &cx.config.limits.payload;
        let opened = open(&message.payload, limits);
        let raw = opened
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|it| it.payload(limits));
        let raw = match raw {
            Ok(raw) => raw,
            Err(error) => return self.undecodable(cx, message, &error),
        };
        let Some(entity) = self.device_or_insert(device, cx.config.limits.max_devices) else {
            let detail = format!("limit {}", cx.config.limits.max_devices);
            return self.invalid(cx, message, InvalidReason::TooManyDevices, detail);
        };
        let sent = message.timestamp.or(raw.timestamp);
        let times = Times {
            payload: sent,
            received: message.received_ms,
        };
        // A device's aliases live from its birth to the next.
        self.aliases.remove_entity(entity);
        let mut resolved = self.resolve_birth(cx, entity, &raw, &times);
        let Some(owner) = self.entities.get_mut(entity as usize) else {
            return;
        };
        let rebirth = owner.born;
        let schema = owner.rebuild(&mut resolved.metrics, rebirth);
        owner.births += 1;
        owner.born = true;
        if !owner.online {
            owner.online = true;
            owner.since_ms = message.received_ms;
        }
        self.bind_aliases(entity);
        self.arrived(device);
        if let Some(cause) = resolved.rebirth {
            self.want(cx, cause);
        }
        let record = self.record(entity, message, sent, resolved);
        cx.events.push_back(HostEvent::DeviceBirth {
            device: self.device_id(entity),
            rebirth,
            schema,
            record,
        });
    }

    /// A device has been heard of since NBIRTH: it is not missing.
    fn arrived(&mut self, device: &str) {
        if let Some((_, awaited)) = &mut self.awaited {
            awaited.retain(|it| &**it != device);
            if awaited.is_empty() {
                self.awaited = None;
            }
        }
    }

    // tck-id-operational-behavior-edge-node-termination-host-action-ddeath-devices-offline
    fn device_death(&mut self, cx: &mut Cx<'_>, entity: u32, message: &Incoming<'_>) {
        let at_ms = send_time(message.timestamp, message.received_ms);
        self.aliases.remove_entity(entity);
        if let Some(owner) = self.entities.get_mut(entity as usize) {
            owner.die(at_ms);
        }
        if let Some(device) = message.device {
            self.arrived(device);
        }
        cx.events.push_back(HostEvent::DeviceDeath {
            tag: message.tag,
            device: self.device_id(entity),
            seq: Some(message.seq.get()),
            bdseq: self.bdseq,
            at_ms,
            received_ms: message.received_ms,
        });
    }

    /// NBIRTH: a session begins, or begins again.
    pub(super) fn handle_birth(
        &mut self,
        cx: &mut Cx<'_>,
        message: &Message<'_>,
        header: &RawPayload<'_>,
        opened: &Opened<'_>,
    ) {
        let limits = &cx.config.limits.payload;
        let topic = || message.topic.to_owned();
        let raw = match opened.payload(limits) {
            Ok(raw) => raw,
            Err(error) => {
                self.want(cx, RebirthCause::Undecodable);
                return cx.events.push_back(HostEvent::Invalid {
                    tag: message.tag,
                    reason: reason_of_decode(&error),
                    topic: topic(),
                    detail: error.to_string(),
                });
            }
        };
        // tck-id-payloads-sequence-num-req-nbirth: any start counts; missing, as proto3 encoders leave 0 out, is 0
        let seq = match header.seq.or(raw.seq) {
            None => Seq::default(),
            Some(wire) => match Seq::from_wire(wire) {
                Some(seq) => seq,
                None => {
                    self.want(cx, RebirthCause::Undecodable);
                    return cx.events.push_back(HostEvent::Invalid {
                        tag: message.tag,
                        reason: InvalidReason::Sequence,
                        topic: topic(),
                        detail: format!("seq {wire} is not 0 to 255"),
                    });
                }
            },
        };
        let sent = header.timestamp.or(raw.timestamp);
        let bdseq = bdseq_of(&raw);
        let mark = BirthMark {
            timestamp: sent,
            seq,
            bdseq,
            len: message.payload.len(),
            at: cx.now,
        };
        if let Some(reason) = self.is_old_birth(cx, &mark) {
            return cx.events.push_back(HostEvent::Ignored {
                tag: message.tag,
                reason,
                topic: topic(),
            });
        }
        // tck-id-payloads-nbirth-bdseq-repeat: a rebirth repeats bdSeq, a new connection counts on
        let rebirth = matches!(self.phase, Phase::Live | Phase::Gap { .. })
            && self.server == message.server
            && self.bdseq == bdseq;
        self.server = message.server;
        self.begin_session(message, mark, bdseq);
        let devices = self.await_devices(cx, message.received_ms);
        let times = Times {
            payload: sent,
            received: message.received_ms,
        };
        self.aliases.clear();
        let mut resolved = self.resolve_birth(cx, 0, &raw, &times);
        let schema = self.own_birth(&mut resolved.metrics, rebirth, message.received_ms);
        self.bind_aliases(0);
        if let Some(cause) = resolved.rebirth {
            self.want(cx, cause);
        }
        let incoming = Incoming {
            verb: Verb::NodeData,
            device: None,
            payload: *header,
            timestamp: sent,
            received_ms: message.received_ms,
            tag: message.tag,
            seq,
        };
        let record = self.record(0, &incoming, sent, resolved);
        cx.events.push_back(HostEvent::NodeBirth {
            node: self.id.clone(),
            rebirth,
            schema,
            devices,
            record,
        });
        self.release_after_birth(cx, sent);
    }

    fn begin_session(&mut self, message: &Message<'_>, mark: BirthMark, bdseq: Option<u64>) {
        if let (Some(old), Some(new)) = (&self.client, &message.client)
            && old != new
        {
            self.previous_client = Some((old.clone(), mark.at));
        }
        self.client.clone_from(&message.client);
        self.bdseq = bdseq;
        self.birth = Some(mark);
        self.phase = Phase::Live;
        self.expected = mark.seq.next();
        self.rebirth.settle();
        self.verify_deadline = None;
        self.forget_delivered();
        self.dirty = true;
    }

    /// Devices from before stay stale until their own DBIRTH.
    fn await_devices(&mut self, cx: &Cx<'_>, at_ms: u64) -> Vec<Arc<str>> {
        let mut stale = Vec::new();
        for (entity, name) in self.entities.iter_mut().skip(1).zip(&self.devices) {
            if entity.online {
                stale.push(name.clone());
            }
            entity.born = false;
            if entity.online {
                entity.online = false;
                entity.since_ms = at_ms;
            }
            entity.stale(at_ms);
        }
        self.awaited = (!stale.is_empty()).then(|| {
            let at = cx.now.saturating_add(cx.config.birth_grace_ms);
            (at, stale.clone())
        });
        stale
    }

    fn own_birth(
        &mut self,
        metrics: &mut [Metric],
        rebirth: bool,
        received_ms: u64,
    ) -> Option<super::event::SchemaChange> {
        let own = self.entities.first_mut()?;
        let schema = own.rebuild(metrics, rebirth);
        own.births += 1;
        own.born = true;
        if !(own.online && rebirth) {
            own.online = true;
            own.since_ms = received_ms;
        }
        schema
    }

    /// What waited: sent after this birth, it counts on from it; sent before, it is of the past.
    fn release_after_birth(&mut self, cx: &mut Cx<'_>, born: Option<u64>) {
        let waiting = self.take_parked();
        if waiting.is_empty() {
            return;
        }
        let deadline = cx.now.saturating_add(cx.config.reorder_timeout_ms);
        for parked in waiting {
            if matches!((parked.timestamp, born), (Some(sent), Some(born)) if sent < born) {
                self.ignored(cx, &parked.incoming(), IgnoredReason::Superseded);
            } else {
                self.parked_bytes += parked.payload.len();
                self.parked.push(parked);
                self.reorder_deadline = Some(deadline);
            }
        }
        self.drain(cx);
    }

    /// The same NBIRTH again, or one that was overtaken by the one in force.
    fn is_old_birth(&self, cx: &Cx<'_>, mark: &BirthMark) -> Option<IgnoredReason> {
        let birth = self.birth.filter(|_| self.phase != Phase::Unborn)?;
        if mark.timestamp.is_some()
            && (BirthMark {
                at: birth.at,
                ..*mark
            }) == birth
        {
            return Some(IgnoredReason::Duplicate);
        }
        self.predates_birth(cx, mark.timestamp)
            .then_some(IgnoredReason::Superseded)
    }

    /// NDEATH: the node and all its devices are down, by the host's clock.
    // tck-id-payloads-ndeath-bdseq, tck-id-topics-ndeath-payload
    pub(super) fn handle_death(
        &mut self,
        cx: &mut Cx<'_>,
        message: &Message<'_>,
        bdseq: Option<u64>,
    ) {
        let ignore = |cx: &mut Cx<'_>, reason| {
            cx.events.push_back(HostEvent::Ignored {
                tag: message.tag,
                reason,
                topic: message.topic.to_owned(),
            });
        };
        if bdseq.is_none() && self.bdseq.is_some() {
            return cx.events.push_back(HostEvent::Invalid {
                tag: message.tag,
                reason: InvalidReason::DeathWithoutBdSeq,
                topic: message.topic.to_owned(),
                detail: "an NDEATH has the metric bdSeq".into(),
            });
        }
        // Equality is the only test: after a wrap, less does not mean older.
        if self.bdseq.is_some() && bdseq != self.bdseq {
            return ignore(cx, IgnoredReason::StaleDeath);
        }
        if self.phase == Phase::Unborn {
            return ignore(cx, IgnoredReason::RepeatedDeath);
        }
        if self.server != message.server {
            return ignore(cx, IgnoredReason::OtherServer);
        }
        let cause = if message.will {
            DeathCause::Will
        } else {
            DeathCause::Death
        };
        self.die(cx, Some(message.tag), cause, message.received_ms);
    }

    /// Ends the session. What waited for a missing message is dropped with it.
    // tck-id-operational-behavior-edge-node-termination-host-action-ndeath-node-offline,
    // -ndeath-devices-offline
    pub(super) fn die(&mut self, cx: &mut Cx<'_>, tag: Option<u64>, cause: DeathCause, at_ms: u64) {
        for parked in self.take_parked() {
            self.ignored(cx, &parked.incoming(), IgnoredReason::Superseded);
        }
        let mut devices = Vec::new();
        for (entity, name) in self.entities.iter().skip(1).zip(&self.devices) {
            if entity.online {
                devices.push(name.clone());
            }
        }
        for entity in &mut self.entities {
            entity.die(at_ms);
        }
        self.aliases.clear();
        self.phase = Phase::Unborn;
        self.rebirth.settle();
        self.awaited = None;
        self.verify_deadline = None;
        self.dirty = true;
        cx.events.push_back(HostEvent::NodeDeath {
            tag,
            node: self.id.clone(),
            cause,
            bdseq: self.bdseq,
            at_ms,
            devices,
        });
    }
}

/// `bdSeq` of a birth or death, from whichever integer field it is in.
pub(super) fn bdseq_of(raw: &RawPayload<'_>) -> Option<u64> {
    use crate::payload::raw::Arm;
    raw.metrics()
        .flatten()
        .find(|it| it.name == Some(BDSEQ))
        .and_then(|it| match it.arm {
            Arm::Int(v) => Some(u64::from(v)),
            Arm::Long(v) => Some(v),
            _ => None,
        })
}
