//! What people see of the bridge.

/// Where the uplink stands. The order is by severity: the worst lane speaks for the bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum UplinkState {
    /// Records leave and acknowledgements return.
    Ok,
    /// Stopped on purpose.
    Stopped,
    /// Connected; finding out where the stream stands.
    Resuming,
    /// No connection yet, or lost and being made again.
    #[default]
    Connecting,
    /// A name in `urls` can't be resolved.
    NoDns,
    /// Nothing listens there.
    Refused,
    /// A peer accepted the connection and did not greet as a NATS server does.
    NotNats,
    /// TLS failed: certificate, name or protocol.
    TlsFailed,
    /// Connected, records waiting, and no acknowledgement for the stall time.
    Stalled,
    /// The server refused the credentials, or they can't be read.
    BadCredentials,
    /// The credentials don't permit to publish here.
    Denied,
    /// Connected to a server or account without JetStream.
    NoJetStream,
    /// The stream does not exist or stores other subjects.
    NoStream,
    /// The stream or account has no room; records stay here.
    Full,
    /// Another publisher writes to this gateway's stream; this one holds still.
    Fenced,
}

impl UplinkState {
    /// The word in status objects and metrics labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Stopped => "stopped",
            Self::Resuming => "resuming",
            Self::Connecting => "connecting",
            Self::NoDns => "no_dns",
            Self::Refused => "refused",
            Self::NotNats => "not_nats",
            Self::TlsFailed => "tls_failed",
            Self::Stalled => "stalled",
            Self::BadCredentials => "bad_credentials",
            Self::Denied => "denied",
            Self::NoJetStream => "no_jetstream",
            Self::NoStream => "no_stream",
            Self::Full => "full",
            Self::Fenced => "fenced",
        }
    }
}

/// How one lane is doing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LaneStatus {
    /// Where this lane's connection and stream stand.
    pub state: UplinkState,
    /// When it came to stand there, wall clock in ms.
    pub since_ms: u64,
    /// Why, in the server's or the system's words; empty when all is well.
    pub detail: String,
    /// Records that wait, those in flight included.
    pub pending: u64,
    /// Their bytes in the journal.
    pub pending_bytes: u64,
    /// Wall clock at arrival of the oldest of them, ms.
    pub oldest_ms: Option<u64>,
    /// Messages sent and not acknowledged.
    pub in_flight: usize,
    /// How many may be in flight now; follows the delay of acknowledgements.
    pub window: usize,
    /// Acknowledged records a second, smoothed over about 10 s.
    pub rate: f64,
    /// Seconds until the backlog is gone at the present rates; `None`: it will not drain.
    pub drain_eta_s: Option<f64>,
    /// Records acknowledged by the stream since start.
    pub published: u64,
    /// Records that filters kept back since start.
    pub filtered: u64,
    /// Records that could not be sent, a gap message in their place, since start.
    pub unsendable: u64,
    /// Acknowledgements that said "duplicate" since start; each one led to a look at the stream.
    pub duplicates: u64,
    /// Times the stream was inspected to find the place to go on.
    pub resyncs: u64,
    /// Connections made since start.
    pub connects: u64,
    /// The highest record acknowledged.
    pub acked: u64,
}

/// The bridge as a whole.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UplinkStatus {
    /// The worse of the two lanes.
    pub state: UplinkState,
    /// When it came to stand there, wall clock in ms.
    pub since_ms: u64,
    /// Births, data and everything else that is not an alarm.
    pub data: LaneStatus,
    /// Alarms and commands.
    pub alarms: LaneStatus,
}

impl UplinkStatus {
    /// The status of a bridge with these lanes.
    #[must_use]
    pub fn of(data: LaneStatus, alarms: LaneStatus) -> Self {
        let worst = if alarms.state > data.state {
            &alarms
        } else {
            &data
        };
        Self {
            state: worst.state,
            since_ms: worst.since_ms,
            data,
            alarms,
        }
    }

    /// Seconds since the oldest waiting record arrived, over both lanes.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // milliseconds of one outage
    pub fn oldest_pending_s(&self, now_ms: u64) -> Option<f64> {
        let oldest = self
            .data
            .oldest_ms
            .into_iter()
            .chain(self.alarms.oldest_ms)
            .min()?;
        Some(now_ms.saturating_sub(oldest) as f64 / 1000.0)
    }
}
