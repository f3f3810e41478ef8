//! One client's session: what outlives its connections, and the present connection's side of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::AckOutcome;
use super::acl::Rights;
use super::codec::{Options, Version, Will};
use super::link::Link;
use super::outbound::Outbound;
use super::pressure::Pressure;

/// A QoS 2 publish whose PUBREL has not come.
#[derive(Debug, Clone)]
pub(crate) enum Received {
    /// The pipeline has it and has not answered; the place that its PUBREC takes, once more where the client sent
    /// it again.
    Pending(Option<(Arc<Link>, u64)>),
    /// Owned by the gateway: PUBREC was or may be sent.
    Owned,
    /// Subscribers have it; the pipeline let it go. A repetition is for the pipeline alone.
    Refused,
}

/// A present connection.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) link: Arc<Link>,
    /// Packets other than PUBLISH, PUBREL, PUBACK and PUBREC, ready to send.
    pub(crate) control: Vec<u8>,
    /// A wake-up is under way: no second one is needed.
    pub(crate) woken: bool,
    pub(crate) receive_maximum: u16,
    /// Largest packet the client takes.
    pub(crate) max_packet: u32,
    /// Topics of the client's aliases, from alias 1.
    pub(crate) aliases: Vec<Option<Arc<str>>>,
    pub(crate) pressure: Pressure,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Session {
    /// Never used twice; tells a late token that its session is gone.
    pub(crate) serial: u64,
    pub(crate) client: Arc<str>,
    pub(crate) user: Option<Arc<str>>,
    pub(crate) rights: Arc<Rights>,
    pub(crate) version: Version,
    pub(crate) attached: Option<Attached>,
    /// Seconds that it lasts without a connection; `u32::MAX`: for ever.
    pub(crate) expiry: u32,
    pub(crate) subscriptions: BTreeMap<Box<str>, Stored>,
    pub(crate) outbound: Outbound,
    pub(crate) received: BTreeMap<u16, Received>,
    pub(crate) will: Option<Box<Will>>,
    /// When a delayed will is due; only without a connection.
    pub(crate) will_due: Option<Instant>,
    /// When it ends; only without a connection.
    pub(crate) expires: Option<Instant>,
    /// The state file knows of it: its end has to be written as well.
    pub(crate) filed: bool,
}

/// A subscription as the session knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) options: Options,
    pub(crate) id: Option<u32>,
}

impl Session {
    /// Whether it is kept on disk: it outlives its connection.
    pub(crate) fn is_persistent(&self) -> bool {
        self.expiry > 0
    }

    /// Whether the present connection has this id.
    pub(crate) fn is_linked(&self, link: u64) -> bool {
        self.attached.as_ref().is_some_and(|a| a.link.id == link)
    }

    /// Resolves a pending QoS 2 publish; the place of a repetition's PUBREC, if there was one.
    pub(crate) fn settle(&mut self, pid: u16, outcome: AckOutcome) -> Option<(Arc<Link>, u64)> {
        let entry = self.received.get_mut(&pid)?;
        let Received::Pending(waiting) = entry else {
            return None;
        };
        let waiting = waiting.take();
        match outcome {
            AckOutcome::Accepted => *entry = Received::Owned,
            AckOutcome::Dropped => *entry = Received::Refused,
            // A PUBREC with an error ends the exchange in v5; a v3.1.1 client goes on with PUBREL.
            AckOutcome::Refused if self.version == Version::V311 => *entry = Received::Owned,
            AckOutcome::Refused => {
                self.received.remove(&pid);
            }
        }
        waiting
    }
}
