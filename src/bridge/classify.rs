//! What a refusal of JetStream means for the lane that met it.
//!
//! Codes are `err_code` of a publish acknowledgement or an API response (nats-server `errors.json`).

use super::status::UplinkState;

/// What to do after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Passing trouble (no leader, too busy): wait, look where the stream stands, go on.
    Retry,
    /// Our idea of the stream's last sequence is wrong: look where it stands at once.
    Resync,
    /// This record will never be taken; a gap message takes its place.
    Permanent,
    /// The stream or the account has no room: keep everything, probe slowly.
    Full,
    /// Nothing stores this subject, or not under the name we expect.
    NoStream,
    /// The account or the server has no JetStream.
    NoJetStream,
}

/// A refusal as the server words it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP-like status: 400, 404, 503.
    pub code: u16,
    /// JetStream's own error code; 0 when the reply was a bare "no responders".
    pub err_code: u32,
    /// The server's words.
    pub description: String,
}

impl Refusal {
    /// Nobody listens on the subject.
    #[must_use]
    pub fn no_responders() -> Self {
        Self {
            code: 503,
            err_code: 0,
            description: "no responders".to_owned(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self.err_code {
            // "insufficient storage/memory resources", "insufficient resources", account limits on streams'
            // bytes, "stream store failed" (discard new at max_bytes or max_msgs, or a full disk), sealed.
            10023 | 10028 | 10047 | 10077 | 10109 => Class::Full,
            // message size exceeds maximum allowed; header size exceeds maximum allowed of 64k
            10054 | 10097 => Class::Permanent,
            // wrong last msg id, wrong last sequence (two forms), the same msg id in process
            10070 | 10071 | 10158 | 10164 => Class::Resync,
            // stream not found; expected stream does not match
            10059 | 10060 => Class::NoStream,
            // jetstream not enabled (server, account)
            10039 | 10076 => Class::NoJetStream,
            // Nothing listens: the stream is away, has no leader, or was never there.
            0 if self.code == 503 => Class::NoStream,
            // Atomic batches that were abandoned, timed out or too many at once: look and send again.
            10175..=10179 | 10199 | 10210 | 10211 => Class::Retry,
            _ => Class::Retry,
        }
    }
}

impl Class {
    /// The state that people see meanwhile.
    #[must_use]
    pub fn state(self) -> UplinkState {
        match self {
            Self::Full => UplinkState::Full,
            Self::NoStream => UplinkState::NoStream,
            Self::NoJetStream => UplinkState::NoJetStream,
            Self::Retry | Self::Resync | Self::Permanent => UplinkState::Resuming,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: u16, err_code: u32, class: Class) {
        let refusal = Refusal {
            code,
            err_code,
            description: String::new(),
        };
        assert_eq!(refusal.class(), class, "{err_code}");
    }

    #[test]
    fn every_refusal_that_publishing_can_meet_has_a_class() {
        check(503, 10077, Class::Full);
        check(500, 10047, Class::Full);
        check(500, 10028, Class::Full);
        check(503, 10023, Class::Full);
        check(400, 10109, Class::Full);
        check(400, 10054, Class::Permanent);
        check(400, 10097, Class::Permanent);
        check(400, 10071, Class::Resync);
        check(400, 10164, Class::Resync);
        check(400, 10070, Class::Resync);
        check(404, 10059, Class::NoStream);
        check(400, 10060, Class::NoStream);
        check(503, 0, Class::NoStream);
        check(503, 10039, Class::NoJetStream);
        check(503, 10076, Class::NoJetStream);
        check(503, 10008, Class::Retry);
        check(500, 99999, Class::Retry);
    }
}
