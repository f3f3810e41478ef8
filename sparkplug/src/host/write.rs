//! Writes: NCMD and DCMD to metrics that the birth names, with values that fit their type.

use super::HostSession;
use super::event::Transmit;
use super::node::Phase;
use super::rebirth::REBIRTH;
use crate::metric::Metric;
use crate::payload::{Form, encode};
use crate::topic::{DeviceVerb, NodeId, NodeVerb};
use crate::value::{CoerceError, Value};

/// Why a write was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// No such node.
    #[error("no such node")]
    UnknownNode,
    /// The node has no such device.
    #[error("no such device")]
    UnknownDevice,
    /// The node or device is offline.
    #[error("offline")]
    Offline,
    /// The birth names no such metric.
    #[error("the birth names no metric {name:?}")]
    UnknownMetric {
        /// The name.
        name: String,
    },
    /// The value does not fit the metric's type.
    #[error(transparent)]
    Value(#[from] CoerceError),
    /// A text in an array holds a zero byte.
    #[error("a string of an array cannot hold a zero byte")]
    Encoding,
    /// The configuration forbids commands.
    #[error("commands to devices are switched off")]
    CommandsDisabled,
    /// The host has no connection, or has not announced itself yet.
    #[error("not connected to the node's server")]
    NotConnected,
}

impl HostSession {
    /// Makes the command that writes `value` to a metric; the caller publishes it.
    ///
    /// The metric goes by its alias when the birth gave one, else by name; its type comes from the birth. The
    /// result shows in the node's next data only.
    ///
    /// # Errors
    /// [`WriteError`]: unknown node, device or metric, offline, or a value that does not fit.
    // tck-id-operational-behavior-data-commands-ncmd-verb, -ncmd-metric-name, -dcmd-verb, -dcmd-metric-name
    pub fn write(
        &mut self,
        now: u64,
        node: &NodeId,
        device: Option<&str>,
        metric: &str,
        value: &Value,
    ) -> Result<Transmit, WriteError> {
        if !self.config.command_devices {
            return Err(WriteError::CommandsDisabled);
        }
        let at = *self.index.get(node).ok_or(WriteError::UnknownNode)?;
        let wall_ms = self.wall(now);
        let known = self.nodes.get(at as usize).ok_or(WriteError::UnknownNode)?;
        if !self.presence.is_ready(known.server) {
            return Err(WriteError::NotConnected);
        }
        let entity = match device {
            None => 0,
            Some(device) => known.device(device).ok_or(WriteError::UnknownDevice)?,
        };
        let entity = known
            .entities
            .get(entity as usize)
            .ok_or(WriteError::UnknownDevice)?;
        if known.phase == Phase::Unborn || !entity.online {
            return Err(WriteError::Offline);
        }
        let state = entity
            .find(metric)
            .ok_or_else(|| WriteError::UnknownMetric {
                name: metric.to_owned(),
            })?;
        let value = value.coerce(state.datatype)?;
        if let Value::Array(array) = &value {
            array.encode().map_err(|_| WriteError::Encoding)?;
        }
        let mut command = Metric::new(state.name.clone(), state.datatype, value).at(wall_ms);
        // tck-id-payloads-alias-data-cmd-requirement; the rebirth metric goes by name even where it has an alias
        command.alias = state.alias.filter(|_| metric != REBIRTH);
        let topic = match device {
            None => node.topic(NodeVerb::Command),
            Some(device) => node.device_topic(DeviceVerb::Command, device),
        };
        // tck-id-topics-ncmd-mqtt, tck-id-topics-dcmd-mqtt, tck-id-topics-ncmd-timestamp,
        // tck-id-topics-dcmd-timestamp, tck-id-payloads-ncmd-seq, tck-id-payloads-dcmd-seq
        Ok(Transmit {
            server: known.server,
            topic,
            payload: encode(Some(wall_ms), None, &[command], Form::Command),
            qos: 0,
            retain: false,
        })
    }
}
