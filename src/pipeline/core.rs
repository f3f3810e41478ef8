//! The pipeline without I/O. See [`super`] for its path.
//!
//! Contract: every `handle_*` call does all that follows from its input through [`Ports`] before it returns;
//! [`Core::poll_timeout`] names the engine time at which [`Core::handle_timeout`] is due; spurious calls do nothing.
//!
//! Invariants: a message becomes at most one received record; its acknowledgement waits for that record; what can't
//! become a record is counted with its reason and acknowledged as refused, so that no client sends it for ever.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use serde_json::Value as Json;
use sparkplug::host::{HostEvent, HostSession, Message, ServerId};

use super::ack::Acks;
use super::latency::{Latency, Stamp};
use super::shard::Rules;
use super::trace::{self, Traces};
use super::writes::Writes;
use super::{Appended, Ports};
use crate::actuation::Actuation;
use crate::broker::{Event as ClientEvent, Inbound, PubackToken, Qos};
use crate::buffer::record::{Cause, Class, Key, NewRecord, Origin, Record, RecordId};
use crate::clock::Now;

/// Messages whose acknowledgement is withheld while the disk is full, at most.
const MOST_STALLED: usize = 4_096;
/// Time between two presence records, ms.
const PRESENCE_MS: u64 = 60_000;
/// Time between two looks at silent model windows, ms.
const WINDOWS_MS: u64 = 1_000;
/// How long after its connection a client's will is waited for, ms.
const GONE_GRACE_MS: u64 = 1_000;
/// Messages that may wait in reorder windows with their acknowledgements, at most; the host's own bounds are tighter.
const MOST_OPEN: usize = 65_536;

/// What of a message is needed until an event settles it.
pub(super) struct Open {
    pub(super) ack: Option<PubackToken>,
    pub(super) read_at: Instant,
    pub(super) taken_at: Instant,
    pub(super) traceparent: Option<Box<str>>,
    pub(super) lossless: bool,
}

/// The pipeline's state. One thread owns it.
pub struct Core {
    pub(super) host: HostSession,
    pub(super) rules: Rules,
    /// What the rules put out is left with them until the messages at hand are done.
    gathering: bool,
    /// When the bytes of records passed the stages whose outputs are not taken yet.
    pub(super) stamps: Vec<(RecordId, Stamp)>,
    pub(super) windows: Option<models::Windower>,
    pub(super) texts: Option<super::texts::Texts>,
    /// Windows without a verdict since the rules saw the last figures, by model.
    pub(super) unanswered: BTreeMap<Arc<str>, u64>,
    pub(super) actuation: Actuation,
    pub(super) settings: Settings,
    pub(super) counters: Counters,
    pub(super) latency: Arc<Mutex<Latency>>,
    acks: Acks,
    open: HashMap<u64, Open>,
    next_tag: u64,
    pub(super) last_record: RecordId,
    stalled: VecDeque<(NewRecord, Option<PubackToken>)>,
    /// What is kept beside the local writes in flight.
    pub(super) writes: Writes,
    /// Clients whose connection is gone, and when their nodes count as dead unless a will or a new connection says
    /// more, engine ms.
    gone: HashMap<Arc<str>, u64>,
    /// The same in order of time (the grace is one for all); an entry that `gone` does not confirm is void.
    gone_next: VecDeque<(u64, Arc<str>)>,
    next_presence_ms: u64,
    next_windows_ms: u64,
    since_ms: Option<u64>,
    pub(super) durable: RecordId,
    pub(super) traces: Traces,
    audit: Option<crate::audit::Heads>,
}

/// What of a configuration can change while running.
pub struct Live {
    /// All rules.
    pub packs: Vec<rules::Pack>,
    /// The host session's settings.
    pub host: sparkplug::host::HostConfig,
    /// Limits of local writes.
    pub limits: crate::actuation::Limits,
    /// Rules send nothing.
    pub dry_run: bool,
    /// How long a write waits for its confirmation when nothing else is said, ms.
    pub confirm_timeout_ms: u64,
}

/// What the configuration says to the core.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Gateway id: part of command ids.
    pub gateway: String,
    /// Journal epoch: makes command ids unique over rebuilds.
    pub epoch: String,
    /// Rules send nothing.
    pub dry_run: bool,
    /// Confirmation wait where nothing else is said, ms.
    pub confirm_timeout_ms: u64,
    /// Topics outside of Sparkplug's name space whose messages are recorded as `raw`.
    pub raw: bool,
}

/// Counts since start, by stable word.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Messages and metrics refused, by reason.
    pub invalid: BTreeMap<&'static str, u64>,
    /// Messages without effect, by reason.
    pub ignored: BTreeMap<&'static str, u64>,
    /// Metrics resolved.
    pub metrics: u64,
    /// Sparkplug messages accepted.
    pub messages: u64,
    /// Rule matches.
    pub matches: u64,
    /// Rule evaluation errors.
    pub rule_errors: u64,
    /// Model results.
    pub inferences: u64,
    /// Windows without a verdict, by reason.
    pub no_verdict: BTreeMap<&'static str, u64>,
    /// Rebirth requests, by cause.
    pub rebirths: BTreeMap<&'static str, u64>,
    /// Two clients under one identity.
    pub duplicate_identities: u64,
    /// Acknowledgements withheld since the disk is full, now.
    pub withheld: u64,
}

impl Core {
    /// A core over its parts, as restored.
    #[must_use]
    pub fn new(
        settings: Settings,
        host: HostSession,
        rules: Rules,
        windows: Option<models::Windower>,
        actuation: Actuation,
        last_record: RecordId,
    ) -> Self {
        let traces = Traces::new(&format!("{}-{}-", settings.gateway, settings.epoch));
        Self {
            host,
            rules,
            gathering: false,
            stamps: Vec::new(),
            windows,
            texts: None,
            unanswered: BTreeMap::new(),
            actuation,
            settings,
            counters: Counters::default(),
            latency: Arc::default(),
            acks: Acks::default(),
            open: HashMap::new(),
            next_tag: 0,
            last_record,
            stalled: VecDeque::new(),
            writes: Writes::default(),
            gone: HashMap::new(),
            gone_next: VecDeque::new(),
            next_presence_ms: 0,
            next_windows_ms: 0,
            since_ms: None,
            durable: last_record,
            traces,
            audit: None,
        }
    }

    /// Lets presence records carry the newest entry of the audit log.
    pub fn watch_audit(&mut self, heads: crate::audit::Heads) {
        self.audit = Some(heads);
    }

    /// Latency from socket read of the cause to socket write of the command.
    #[must_use]
    pub fn latency(&self) -> Arc<Mutex<Latency>> {
        self.latency.clone()
    }

    /// Counts since start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The host session, for listings.
    #[must_use]
    pub fn host(&self) -> &HostSession {
        &self.host
    }

    /// The host session, for its presence on the broker.
    pub fn host_mut(&mut self) -> &mut HostSession {
        &mut self.host
    }

    /// Takes what of a configuration can change while running. Keyed state is kept where a rule's identity and shape
    /// are the same.
    pub fn reconfigure(&mut self, now: Now, live: Live, ports: &mut dyn Ports) {
        self.host.reconfigure(live.host);
        self.actuation.set_limits(live.limits);
        self.settings.dry_run = live.dry_run;
        self.settings.confirm_timeout_ms = live.confirm_timeout_ms;
        self.reload_rules(now, live.packs, ports);
    }

    /// Takes other rules, all in one step between two messages.
    pub fn reload_rules(&mut self, now: Now, packs: Vec<rules::Pack>, ports: &mut dyn Ports) {
        self.rules.advance_to(now.engine_ms);
        self.rules.reload(packs);
        self.check_births();
        self.settle(now, ports);
    }

    /// Holds every birth that is known against the rules, and tells what does not fit.
    pub fn check_births(&mut self) {
        for node in self.host.nodes() {
            for device in std::iter::once(node.own()).chain(node.devices()) {
                let id = node.id();
                let key = super::convert::rule_key(&id.group, &id.node, device.name());
                let metrics = device.metrics().iter();
                let metrics: Vec<_> = metrics.map(|m| (&*m.name, m.datatype.as_str())).collect();
                for finding in self.rules.check_birth(&key, &metrics) {
                    tracing::warn!(%finding, "a birth does not fit a rule");
                }
            }
        }
    }

    /// Whether rules send nothing.
    #[must_use]
    pub fn dry_run(&self) -> bool {
        self.settings.dry_run
    }

    /// Confirmation wait where nothing else is said, ms.
    #[must_use]
    pub fn confirm_timeout_ms(&self) -> u64 {
        self.settings.confirm_timeout_ms
    }

    /// The rule engine, for listings and operators' actions; call [`Core::settle`] after an action.
    pub fn rules(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Local writes, for listings and holds.
    pub fn actuation(&mut self) -> &mut Actuation {
        &mut self.actuation
    }

    /// Highest record id appended.
    #[must_use]
    pub fn last_record(&self) -> RecordId {
        self.last_record
    }

    /// With several workers for the rules: between two calls, the first with `true`, they evaluate what messages bring
    /// while the next are read; the second takes what came out. With one there is nothing to wait for.
    pub fn gather(&mut self, now: Now, on: bool, ports: &mut dyn Ports) {
        if !self.rules.is_shared() {
            return;
        }
        self.gathering = on;
        if !on {
            self.settle(now, ports);
        }
    }

    pub(super) fn is_gathering(&self) -> bool {
        self.gathering
    }

    /// A publish that the embedded broker accepted.
    pub fn handle_inbound(&mut self, now: Now, inbound: Inbound, ports: &mut dyn Ports) {
        // A publish that reaches the gateway through its own broker is live, whatever its RETAIN flag says; retained
        // copies are never delivered to the tap.
        self.handle_publish(now, ServerId(0), false, inbound, ports);
    }

    /// A publish that came through `server`; `retained`: out of that server's store.
    pub fn handle_publish(
        &mut self,
        now: Now,
        server: ServerId,
        retained: bool,
        inbound: Inbound,
        ports: &mut dyn Ports,
    ) {
        if !inbound.topic.starts_with("spBv1.0/") {
            self.handle_raw(now, inbound, ports);
            return;
        }
        let tag = self.next_tag;
        self.next_tag += 1;
        if self.open.len() >= MOST_OPEN {
            self.count_invalid("too_many_open");
            if let Some(ack) = inbound.ack {
                ack.refuse();
            }
            return;
        }
        self.open.insert(
            tag,
            Open {
                lossless: inbound.qos.is_some_and(|q| q > Qos::AtMostOnce),
                ack: inbound.ack,
                read_at: inbound.received_at,
                taken_at: ports.mark(),
                traceparent: inbound.traceparent.filter(|text| trace::is_valid(text)),
            },
        );
        self.host.handle_message(
            now.engine_ms,
            &Message {
                topic: &inbound.topic,
                payload: &inbound.payload,
                received_ms: now.wall_ms,
                client: inbound.client,
                server,
                retained,
                will: inbound.will,
                tag,
            },
        );
        self.settle(now, ports);
    }

    /// A client of the broker came or went.
    pub fn handle_client(&mut self, now: Now, event: &ClientEvent) {
        match event {
            ClientEvent::Connected {
                client,
                user,
                address,
                protocol,
            } => {
                self.gone.remove(client);
                tracing::debug!(%client, ?user, %address, protocol, "client connected");
            }
            ClientEvent::Disconnected { client, reason } => {
                tracing::debug!(%client, reason, "client disconnected");
                // On a take-over the same client goes on; and a bounded list forgets nobody for long.
                if *reason != "take_over" && self.gone_next.len() < MOST_OPEN {
                    let at = now.engine_ms.saturating_add(GONE_GRACE_MS);
                    self.gone.insert(client.clone(), at);
                    self.gone_next.push_back((at, client.clone()));
                }
            }
        }
    }

    /// Everything up to this record is on disk.
    pub fn handle_durable(&mut self, now: Now, id: RecordId, ports: &mut dyn Ports) {
        self.acks.release(id);
        self.durable = self.durable.max(id);
        self.release_durable_commands(now, ports);
        self.settle(now, ports);
    }

    /// Releases acknowledgements whose records are only in memory (`ack = "memory"`).
    pub fn acknowledge_from_memory(&mut self) {
        self.acks.release(self.last_record);
    }

    /// Whether an acknowledgement waits for the disk.
    #[must_use]
    pub fn acks_waiting(&self) -> bool {
        self.acks.any()
    }

    /// Fires what is due.
    pub fn handle_timeout(&mut self, now: Now, ports: &mut dyn Ports) {
        if now.engine_ms >= self.next_presence_ms {
            self.presence(now, true, ports);
        }
        if now.engine_ms >= self.next_windows_ms {
            self.next_windows_ms = now.engine_ms.saturating_add(WINDOWS_MS);
            super::host_events::tick_windows(self, now, ports);
        }
        self.host.note_wall(now.engine_ms, now.wall_ms);
        if now.trusted {
            self.rules.set_wall(now.engine_ms, now.wall_ms);
        }
        self.host.handle_timeout(now.engine_ms);
        self.bury(now);
        self.rules.advance_to(now.engine_ms);
        self.with_gate(now, ports, |actuation, gate| {
            actuation.handle_timeout(now.engine_ms, gate)
        });
        self.retry_stalled(ports);
        self.settle(now, ports);
    }

    /// This gateway's presence: a `status` record at start, at stop, and every minute.
    fn presence(&mut self, now: Now, online: bool, ports: &mut dyn Ports) {
        self.next_presence_ms = now.engine_ms.saturating_add(PRESENCE_MS);
        self.append_status(now, online, None, ports);
    }

    /// Records what an operator did to the gateway itself, as a `status` record with an `action`. Returns its id, 0
    /// when there is no room.
    pub fn note_action(&mut self, now: Now, action: Json, ports: &mut dyn Ports) -> RecordId {
        self.tell_status(now, ("action", action), ports)
    }

    /// A `status` record with more than the gateway's presence. Returns its id, 0 when there is no room.
    pub(super) fn tell_status(
        &mut self,
        now: Now,
        more: (&str, Json),
        ports: &mut dyn Ports,
    ) -> RecordId {
        self.append_status(now, true, Some(more), ports)
    }

    fn append_status(
        &mut self,
        now: Now,
        online: bool,
        more: Option<(&str, Json)>,
        ports: &mut dyn Ports,
    ) -> RecordId {
        let since = *self.since_ms.get_or_insert(now.wall_ms);
        let mut body = serde_json::json!({
            "online": online,
            "version": env!("CARGO_PKG_VERSION"),
            "since": since,
            "timestamp": now.wall_ms,
            "clock_trusted": now.trusted,
            "nodes": self.host.nodes().count(),
        });
        if let Some(object) = body.as_object_mut() {
            if let Some(heads) = &self.audit {
                let head = heads.get();
                object.insert(
                    "audit".to_owned(),
                    serde_json::json!({"seq": head.seq, "hash": head.hash}),
                );
            }
            if let Some((name, more)) = more {
                object.insert(name.to_owned(), more);
            }
        }
        let key = Key::gateway();
        self.append_derived(now, Class::Status, key, None, &body, ports)
    }

    /// Nodes whose client left without a death are down.
    fn bury(&mut self, now: Now) {
        while self
            .gone_next
            .front()
            .is_some_and(|(at, _)| *at <= now.engine_ms)
        {
            let Some((at, client)) = self.gone_next.pop_front() else {
                return;
            };
            if self.gone.get(&client) == Some(&at) {
                self.gone.remove(&client);
                self.host.client_gone(&client, now.engine_ms, now.wall_ms);
            }
        }
    }

    /// Engine time in ms of the next timer.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        let gone = self.gone_next.front().map(|(at, _)| *at);
        [
            gone,
            self.host.poll_timeout(),
            self.rules.poll_timeout(),
            self.actuation.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes everything that the parts want to tell, until none of them has anything left.
    pub fn settle(&mut self, now: Now, ports: &mut dyn Ports) {
        loop {
            let mut quiet = true;
            while let Some(transmit) = self.host.poll_transmit() {
                // The host's own messages are repeated by its timers; what is lost is counted where it is lost.
                let _ = ports.publish(transmit, None);
                quiet = false;
            }
            while let Some(event) = self.host.poll_event() {
                self.handle_host_event(now, event, ports);
                quiet = false;
            }
            quiet &= !self.drain_rules(now, ports);
            quiet &= !self.drain_actuation(now, ports);
            if quiet {
                return;
            }
        }
    }

    /// The state a stop leaves behind: what waits for reordering is refused so that its sender keeps it.
    pub fn handle_stop(&mut self, now: Now, ports: &mut dyn Ports) {
        for server in self.host.servers() {
            if let Some(death) = self.host.stop(server, now.wall_ms) {
                // Without this, the server sends the will.
                let _ = ports.publish(death, None);
            }
        }
        self.settle(now, ports);
        self.presence(now, false, ports);
        // Dropped tokens close the sessions: their clients send again after the restart.
        self.open.clear();
    }

    fn handle_raw(&mut self, now: Now, inbound: Inbound, ports: &mut dyn Ports) {
        if !self.settings.raw {
            if let Some(ack) = inbound.ack {
                ack.accept();
            }
            return;
        }
        let record = NewRecord {
            clock_trusted: now.trusted,
            traceparent: inbound.traceparent.filter(|text| trace::is_valid(text)),
            extra: vec![("topic".into(), inbound.topic.as_ref().into())],
            ..NewRecord::new(
                Class::Raw,
                Origin::Received,
                now.engine_ms,
                now.wall_ms,
                Key::gateway(),
                inbound.payload,
            )
        };
        let lossless = inbound.qos.is_some_and(|q| q > Qos::AtMostOnce);
        self.append_received(record, inbound.ack, lossless, ports);
    }

    /// Appends a received record and ties its acknowledgement to it. Returns its id; 0 when the disk is full: rules
    /// still see the message.
    pub(super) fn append_received(
        &mut self,
        record: NewRecord,
        ack: Option<PubackToken>,
        lossless: bool,
        ports: &mut dyn Ports,
    ) -> RecordId {
        if !self.stalled.is_empty() && lossless {
            // Order among acknowledged messages is kept: behind one that waits, everything waits.
            return self.stall(record, ack, ports);
        }
        match ports.append(record) {
            Appended::Stored(stored) => {
                self.last_record = stored.id;
                self.note_trace(&stored);
                if let Some(ack) = ack {
                    self.acks.wait(stored.id, ack);
                }
                stored.id
            }
            Appended::Full(record) if lossless => self.stall(*record, ack, ports),
            Appended::Full(record) => {
                ports.dropped(&record, "disk_full");
                0
            }
            Appended::Stopped => 0,
        }
    }

    fn stall(
        &mut self,
        record: NewRecord,
        ack: Option<PubackToken>,
        ports: &mut dyn Ports,
    ) -> RecordId {
        if self.stalled.len() >= MOST_STALLED {
            // The token is dropped: the session closes, and its client sends the message again.
            ports.dropped(&record, "disk_full");
            return 0;
        }
        self.stalled.push_back((record, ack));
        self.counters.withheld = self.stalled.len() as u64;
        0
    }

    fn retry_stalled(&mut self, ports: &mut dyn Ports) {
        while let Some((record, ack)) = self.stalled.pop_front() {
            match ports.append(record) {
                Appended::Stored(stored) => {
                    self.last_record = stored.id;
                    self.note_trace(&stored);
                    if let Some(ack) = ack {
                        self.acks.wait(stored.id, ack);
                    }
                }
                Appended::Full(record) => {
                    self.stalled.push_front((*record, ack));
                    break;
                }
                Appended::Stopped => break,
            }
        }
        self.counters.withheld = self.stalled.len() as u64;
    }

    /// Appends a record that was made here. Returns its id, 0 when there is no room.
    pub(super) fn append_derived(
        &mut self,
        now: Now,
        class: Class,
        key: Key,
        cause: Option<Cause>,
        body: &Json,
        ports: &mut dyn Ports,
    ) -> RecordId {
        let body = Bytes::from(body.to_string());
        let record = self.derived(now, class, key, cause, body);
        self.append_made(record, ports)
    }

    /// A record that is made here.
    pub(super) fn derived(
        &self,
        now: Now,
        class: Class,
        key: Key,
        cause: Option<Cause>,
        body: Bytes,
    ) -> NewRecord {
        NewRecord {
            clock_trusted: now.trusted,
            cause,
            traceparent: cause.and_then(|cause| self.traces.follow(cause)),
            ..NewRecord::new(
                class,
                Origin::Derived,
                now.engine_ms,
                now.wall_ms,
                key,
                body,
            )
        }
    }

    /// Appends what [`Core::derived`] made. Returns its id, 0 when there is no room.
    pub(super) fn append_made(&mut self, record: NewRecord, ports: &mut dyn Ports) -> RecordId {
        match ports.append(record) {
            Appended::Stored(stored) => {
                self.last_record = stored.id;
                self.note_trace(&stored);
                stored.id
            }
            Appended::Full(record) => {
                ports.dropped(&record, "disk_full");
                0
            }
            Appended::Stopped => 0,
        }
    }

    /// What follows from this record goes on in its trace.
    pub(super) fn note_trace(&mut self, record: &Record) {
        if let Some(text) = &record.traceparent {
            self.traces.note(record.id, text);
        }
    }

    pub(super) fn take_open(&mut self, tag: u64) -> Option<Open> {
        self.open.remove(&tag)
    }

    pub(super) fn count_invalid(&mut self, reason: &'static str) {
        *self.counters.invalid.entry(reason).or_default() += 1;
    }

    fn handle_host_event(&mut self, now: Now, event: HostEvent, ports: &mut dyn Ports) {
        super::host_events::handle(self, now, event, ports);
    }
}
