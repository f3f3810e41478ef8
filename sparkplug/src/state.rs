//! STATE: the presence of a host application, in the form of 3.0 and, for reading only, of 2.2.

use crate::topic::{NAMESPACE, state_topic};

/// A host's presence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostState {
    /// Up or down.
    pub online: bool,
    /// Milliseconds UTC. The 2.2 form has none.
    pub timestamp: Option<u64>,
}

/// Why a payload is no STATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Not a JSON object.
    #[error("not a JSON object")]
    Json,
    /// `online` is missing or no JSON boolean.
    #[error("\"online\" is missing or not a boolean")]
    Online,
    /// `timestamp` is missing or no JSON integer.
    #[error("\"timestamp\" is missing or not a whole number")]
    Timestamp,
}

impl HostState {
    /// The JSON body of 3.0.
    // tck-id-host-topic-phid-birth-payload, tck-id-host-topic-phid-death-payload,
    // tck-id-payloads-state-birth-payload, tck-id-payloads-state-will-message-payload
    #[must_use]
    pub fn body(online: bool, timestamp: u64) -> Vec<u8> {
        format!("{{\"online\":{online},\"timestamp\":{timestamp}}}").into_bytes()
    }

    /// Reads the JSON body of 3.0. Further keys are ignored.
    ///
    /// # Errors
    /// [`StateError`] names the key that is wrong.
    pub fn parse(payload: &[u8]) -> Result<Self, StateError> {
        let json: serde_json::Value =
            serde_json::from_slice(payload).map_err(|_| StateError::Json)?;
        let object = json.as_object().ok_or(StateError::Json)?;
        let online = object
            .get("online")
            .and_then(serde_json::Value::as_bool)
            .ok_or(StateError::Online)?;
        let timestamp = object
            .get("timestamp")
            .and_then(serde_json::Value::as_u64)
            .ok_or(StateError::Timestamp)?;
        Ok(Self {
            online,
            timestamp: Some(timestamp),
        })
    }

    /// Reads the text body of 2.2, `ONLINE` or `OFFLINE`.
    #[must_use]
    pub fn parse_legacy(payload: &[u8]) -> Option<Self> {
        let online = match payload {
            b"ONLINE" => true,
            b"OFFLINE" => false,
            _ => return None,
        };
        Some(Self {
            online,
            timestamp: None,
        })
    }
}

/// The STATE topic of 2.2, which is outside of the namespace.
#[must_use]
pub fn legacy_topic(host: &str) -> String {
    format!("STATE/{host}")
}

/// The two literal filters of a host: all of Sparkplug, and its own STATE.
// tck-id-host-topic-phid-birth-sub-required, tck-id-message-flow-phid-sparkplug-subscription,
// tck-id-payloads-state-subscribe
#[must_use]
pub fn host_filters(host: &str) -> [String; 2] {
    [format!("{NAMESPACE}/#"), state_topic(host)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_state_birth_payload_is_strict_json() {
        let body = HostState::body(true, 1_760_000_000_000);
        assert_eq!(body, br#"{"online":true,"timestamp":1760000000000}"#);
        let state = HostState {
            online: true,
            timestamp: Some(1_760_000_000_000),
        };
        assert_eq!(HostState::parse(&body), Ok(state));
        for (text, error) in [
            ("", StateError::Json),
            ("ONLINE", StateError::Json),
            ("[]", StateError::Json),
            (r#"{"timestamp":1}"#, StateError::Online),
            (r#"{"online":"true","timestamp":1}"#, StateError::Online),
            (r#"{"online":1,"timestamp":1}"#, StateError::Online),
            (r#"{"online":true}"#, StateError::Timestamp),
            (r#"{"online":true,"timestamp":"1"}"#, StateError::Timestamp),
            (r#"{"online":true,"timestamp":1.5}"#, StateError::Timestamp),
            (r#"{"online":true,"timestamp":-1}"#, StateError::Timestamp),
        ] {
            assert_eq!(HostState::parse(text.as_bytes()), Err(error), "{text}");
        }
    }

    #[test]
    fn the_form_of_2_2_is_read_and_never_written() {
        let state = |online| HostState {
            online,
            timestamp: None,
        };
        assert_eq!(HostState::parse_legacy(b"ONLINE"), Some(state(true)));
        assert_eq!(HostState::parse_legacy(b"OFFLINE"), Some(state(false)));
        assert_eq!(HostState::parse_legacy(b"online"), None);
    }
}
