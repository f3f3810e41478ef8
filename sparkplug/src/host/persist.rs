//! Checkpoints of nodes and devices, and replay of the records after them.
//!
//! A snapshot is a protobuf message with a version; its metrics are in the journal's form. The node and each of
//! its devices have one of their own, so that a checkpoint writes what changed. What comes back is unverified: it
//! holds until the node's next message shows that nothing is missing, or its next birth replaces it.

use std::sync::Arc;

use hashbrown::HashMap;
use prost::Message as _;

use super::HostSession;
use super::entity::{Entity, MetricState};
use super::event::{RebirthCause, ServerId};
use super::node::{BirthMark, Cx, Node, Phase};
use crate::metric::{Metric, MetricFlags};
use crate::payload::{DecodeError, ResolvedPayload, decode_resolved, encode_resolved};
use crate::seq::Seq;
use crate::topic::{NodeId, TopicError};
use crate::value::Value;

const VERSION: u32 = 1;

/// State of a node, or of one of its devices, as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The node.
    pub node: NodeId,
    /// The device; `None` for the node itself.
    pub device: Option<Arc<str>>,
    /// What [`HostSession::restore_node`] takes. May exceed 64 KiB where a birth is large.
    pub bytes: Vec<u8>,
}

/// Why a snapshot cannot be used. The node then starts unknown and is asked for its birth.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Not a snapshot.
    #[error("not a snapshot: {0}")]
    Damaged(String),
    /// Written by another version.
    #[error("snapshot version {0}, this program reads {VERSION}")]
    Version(u32),
    /// Its ids are not valid.
    #[error(transparent)]
    Id(#[from] TopicError),
    /// Its metrics cannot be read.
    #[error(transparent)]
    Metrics(#[from] DecodeError),
    /// A limit on nodes or devices is reached.
    #[error("no room for another node or device")]
    Full,
}

/// What a replayed record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// NBIRTH or DBIRTH.
    Birth,
    /// NDATA or DDATA.
    Data,
    /// NDEATH or DDEATH, or what the host concluded.
    Death,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Stored {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(string, tag = "2")]
    group: String,
    #[prost(string, tag = "3")]
    node: String,
    #[prost(string, optional, tag = "4")]
    device: Option<String>,
    #[prost(message, optional, tag = "5")]
    session: Option<StoredSession>,
    #[prost(bool, tag = "6")]
    online: bool,
    #[prost(uint64, tag = "7")]
    since_ms: u64,
    #[prost(uint64, tag = "8")]
    births: u64,
    #[prost(uint64, tag = "9")]
    deaths: u64,
    #[prost(uint32, tag = "10")]
    schema: u32,
    #[prost(bool, tag = "11")]
    born: bool,
    #[prost(bytes = "vec", tag = "12")]
    metrics: Vec<u8>,
    /// 0: not stale; else since when, plus one.
    #[prost(uint64, repeated, tag = "13")]
    stale: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredSession {
    #[prost(uint32, tag = "1")]
    server: u32,
    #[prost(string, optional, tag = "2")]
    client: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    bdseq: Option<u64>,
    #[prost(uint32, tag = "4")]
    expected: u32,
    #[prost(bool, tag = "5")]
    in_session: bool,
    #[prost(string, optional, tag = "6")]
    rebirth_cause: Option<String>,
    /// Messages were known to be missing; only a birth puts that right.
    #[prost(bool, tag = "7")]
    broken: bool,
    /// The NBIRTH in force, so that what was sent before it is still known to be late.
    #[prost(message, optional, tag = "8")]
    birth: Option<StoredBirth>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredBirth {
    #[prost(uint64, optional, tag = "1")]
    timestamp: Option<u64>,
    #[prost(uint32, tag = "2")]
    seq: u32,
    #[prost(uint64, tag = "3")]
    len: u64,
    /// Engine time, which goes on over restarts.
    #[prost(uint64, tag = "4")]
    at: u64,
}

impl HostSession {
    /// Snapshots of what changed since the last call.
    pub fn dirty_nodes(&mut self) -> Vec<Snapshot> {
        let mut out = Vec::new();
        for at in std::mem::take(&mut self.dirty) {
            if let Some(node) = self.nodes.get_mut(at as usize) {
                node.listed = false;
                snapshots(node, &mut out);
            }
        }
        out
    }

    /// Takes one snapshot back, in any order. Its values are stale from `wall_ms` on, its names and types
    /// unverified.
    ///
    /// # Errors
    /// [`RestoreError`]; nothing has changed then.
    pub fn restore_node(
        &mut self,
        now: u64,
        wall_ms: u64,
        bytes: &[u8],
    ) -> Result<(), RestoreError> {
        let stored =
            Stored::decode(bytes).map_err(|error| RestoreError::Damaged(error.to_string()))?;
        if stored.version != VERSION {
            return Err(RestoreError::Version(stored.version));
        }
        let metrics = decode_resolved(&stored.metrics)?.metrics;
        let id = NodeId::new(&stored.group, &stored.node)?;
        let at = self.replayed_node(&id).ok_or(RestoreError::Full)?;
        let mut restored = Ok(());
        self.on_node(now, at, |node, cx| {
            restored = node.restore(cx, &stored, metrics, wall_ms);
        });
        restored
    }

    /// Applies a record that is newer than the checkpoint. Nothing is emitted, asked for or sent.
    pub fn apply_record(
        &mut self,
        now: u64,
        kind: RecordKind,
        node: &NodeId,
        device: Option<&str>,
        wall_ms: u64,
        payload: &ResolvedPayload,
    ) {
        let Some(at) = self.replayed_node(node) else {
            return;
        };
        let max_devices = self.config.limits.max_devices;
        let patience = self.config.restore_patience_ms;
        self.on_node(now, at, |node, _| {
            let entity = match device {
                None => Some(0),
                Some(device) => node.device_or_insert(device, max_devices),
            };
            let Some(entity) = entity else {
                return;
            };
            node.replay(kind, entity, wall_ms, payload);
            node.verify_deadline =
                (node.phase == Phase::Unverified).then(|| now.saturating_add(patience));
        });
    }

    fn replayed_node(&mut self, id: &NodeId) -> Option<u32> {
        if let Some(at) = self.index.get(id) {
            return Some(*at);
        }
        (self.nodes.len() < self.config.limits.max_nodes)
            .then(|| self.insert(Node::new(id.clone(), ServerId::default())))
    }
}

impl Node {
    fn restore(
        &mut self,
        cx: &Cx<'_>,
        stored: &Stored,
        metrics: Vec<Metric>,
        wall_ms: u64,
    ) -> Result<(), RestoreError> {
        let limits = &cx.config.limits;
        let entity = match &stored.device {
            None => 0,
            Some(device) => self
                .device_or_insert(device, limits.max_devices)
                .ok_or(RestoreError::Full)?,
        };
        let owner = self
            .entities
            .get_mut(entity as usize)
            .ok_or(RestoreError::Full)?;
        let count = self.metric_count - owner.metrics.len() + metrics.len();
        if count > limits.max_metrics || count + cx.metrics_elsewhere > limits.max_metrics_total {
            return Err(RestoreError::Full);
        }
        *owner = entity_of(stored, metrics, wall_ms);
        self.metric_count = self.entities.iter().map(|it| it.metrics.len()).sum();
        if let Some(session) = &stored.session {
            self.server = ServerId(u16::try_from(session.server).unwrap_or_default());
            self.client = session.client.as_deref().map(Arc::from);
            self.bdseq = session.bdseq;
            self.expected = Seq::new(session.expected as u8);
            self.rebirth.restore_cause(cause(session));
            self.birth = session.birth.as_ref().map(|it| BirthMark {
                timestamp: it.timestamp,
                seq: Seq::new(it.seq as u8),
                bdseq: session.bdseq,
                len: usize::try_from(it.len).unwrap_or_default(),
                at: it.at,
            });
            if session.in_session {
                self.distrust(!session.broken);
                let patience = cx.config.restore_patience_ms;
                self.verify_deadline = Some(cx.now.saturating_add(patience));
            }
        }
        // Devices may come before their node: aliases hold within a session only.
        match (entity, self.phase) {
            (0, Phase::Unborn) => {}
            (0, _) => {
                self.redefine_templates();
                (0..self.entities.len() as u32).for_each(|entity| self.rebind_aliases(entity));
            }
            (entity, Phase::Unborn) => self.aliases.remove_entity(entity),
            (entity, _) => self.rebind_aliases(entity),
        }
        Ok(())
    }

    fn replay(&mut self, kind: RecordKind, entity: u32, wall_ms: u64, payload: &ResolvedPayload) {
        self.dirty = true;
        if let Some(seq) = payload.seq {
            self.expected = Seq::new(seq).next();
        }
        match (kind, entity) {
            (RecordKind::Birth, 0) => {
                self.distrust(true);
                self.bdseq = payload.bdseq;
                self.aliases.clear();
                for device in self.entities.iter_mut().skip(1) {
                    device.born = false;
                    if device.online {
                        device.online = false;
                        device.since_ms = wall_ms;
                    }
                    device.stale(wall_ms);
                }
                self.replay_birth(0, wall_ms, payload);
                self.redefine_templates();
            }
            (RecordKind::Birth, entity) => self.replay_birth(entity, wall_ms, payload),
            (RecordKind::Data, entity) => {
                if let Some(owner) = self.entities.get_mut(entity as usize) {
                    owner.replay_data(&payload.metrics);
                }
            }
            (RecordKind::Death, 0) => {
                for entity in &mut self.entities {
                    entity.die(wall_ms);
                }
                self.aliases.clear();
                self.phase = Phase::Unborn;
            }
            (RecordKind::Death, entity) => {
                self.aliases.remove_entity(entity);
                if let Some(owner) = self.entities.get_mut(entity as usize) {
                    owner.die(payload.timestamp.unwrap_or(wall_ms));
                }
            }
        }
    }

    fn replay_birth(&mut self, entity: u32, wall_ms: u64, payload: &ResolvedPayload) {
        let Some(owner) = self.entities.get_mut(entity as usize) else {
            return;
        };
        let mut metrics = payload.metrics.clone();
        owner.rebuild(&mut metrics, false);
        owner.births += 1;
        owner.born = true;
        if !owner.online {
            owner.online = true;
            owner.since_ms = wall_ms;
        }
        self.bind_aliases(entity);
    }

    fn rebind_aliases(&mut self, entity: u32) {
        if self.entities.get(entity as usize).is_some_and(|it| it.born) {
            self.bind_aliases(entity);
        }
    }

    fn redefine_templates(&mut self) {
        self.definitions.0 = self
            .entities
            .first()
            .into_iter()
            .flat_map(|own| &own.metrics)
            .filter_map(|state| match &state.value {
                Value::Template(it) if it.is_definition => Some((state.name.clone(), it.clone())),
                _ => None,
            })
            .collect();
    }
}

impl Entity {
    fn replay_data(&mut self, metrics: &[Metric]) {
        for metric in metrics {
            if metric.historical || metric.flags.contains(MetricFlags::UNKNOWN_IN_BIRTH) {
                continue;
            }
            let Some(at) = self.by_name.get(&metric.name) else {
                continue;
            };
            if let Some(state) = self.metrics.get_mut(*at as usize) {
                state.update(metric);
            }
        }
        self.dirty = true;
    }
}

fn snapshots(node: &mut Node, out: &mut Vec<Snapshot>) {
    let session = StoredSession {
        server: u32::from(node.server.0),
        client: node.client.as_deref().map(str::to_owned),
        bdseq: node.bdseq,
        expected: u32::from(node.expected.get()),
        in_session: node.phase != Phase::Unborn,
        rebirth_cause: node.rebirth.last_cause().map(|it| it.as_str().to_owned()),
        broken: node.is_broken(),
        birth: node.birth.map(|it| StoredBirth {
            timestamp: it.timestamp,
            seq: u32::from(it.seq.get()),
            len: it.len as u64,
            at: it.at,
        }),
    };
    let names = std::iter::once(None).chain(node.devices.iter().map(Some));
    let session_changed = std::mem::take(&mut node.dirty);
    for (at, (entity, device)) in node.entities.iter_mut().zip(names).enumerate() {
        let changed = std::mem::take(&mut entity.dirty);
        if !(changed || at == 0 && session_changed) {
            continue;
        }
        let stored = Stored {
            version: VERSION,
            group: node.id.group.to_string(),
            node: node.id.node.to_string(),
            device: device.map(|it| it.to_string()),
            session: (at == 0).then(|| session.clone()),
            online: entity.online,
            since_ms: entity.since_ms,
            births: entity.births,
            deaths: entity.deaths,
            schema: entity.schema,
            born: entity.born,
            metrics: {
                let metrics: Vec<Metric> = entity.metrics.iter().map(metric_of).collect();
                encode_resolved(None, None, None, &metrics)
            },
            stale: entity
                .metrics
                .iter()
                .map(|it| {
                    if it.stale {
                        it.stale_since_ms.saturating_add(1)
                    } else {
                        0
                    }
                })
                .collect(),
        };
        out.push(Snapshot {
            node: node.id.clone(),
            device: device.cloned(),
            bytes: stored.encode_to_vec(),
        });
    }
}

fn metric_of(state: &MetricState) -> Metric {
    Metric {
        name: state.name.clone(),
        alias: state.alias,
        datatype: state.datatype,
        value: state.value.clone(),
        timestamp: (state.timestamp != 0).then_some(state.timestamp),
        time_source: state.time_source,
        historical: false,
        transient: state.transient,
        quality: state.quality,
        properties: state.properties.clone(),
        metadata: None,
        flags: MetricFlags::NONE,
    }
}

fn entity_of(stored: &Stored, metrics: Vec<Metric>, wall_ms: u64) -> Entity {
    let mut entity = Entity {
        online: stored.online,
        since_ms: stored.since_ms,
        births: stored.births,
        deaths: stored.deaths,
        schema: stored.schema,
        born: stored.born,
        ..Entity::default()
    };
    let mut by_name = HashMap::with_capacity(metrics.len());
    for (at, metric) in metrics.into_iter().enumerate() {
        if by_name.contains_key(&metric.name) {
            continue;
        }
        by_name.insert(metric.name.clone(), entity.metrics.len() as u32);
        let since = stored.stale.get(at).copied().unwrap_or_default();
        entity.metrics.push(MetricState {
            name: metric.name,
            datatype: metric.datatype,
            alias: metric.alias,
            value: metric.value,
            timestamp: metric.timestamp.unwrap_or_default(),
            time_source: metric.time_source,
            quality: metric.quality,
            properties: metric.properties,
            transient: metric.transient,
            stale: true,
            stale_since_ms: since.checked_sub(1).unwrap_or(wall_ms),
        });
    }
    entity.by_name = by_name;
    entity
}

fn cause(session: &StoredSession) -> Option<RebirthCause> {
    let word = session.rebirth_cause.as_deref()?;
    RebirthCause::ALL
        .iter()
        .copied()
        .find(|it| it.as_str() == word)
}
