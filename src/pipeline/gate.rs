//! The gate of the actuation: the host checks against the birth, the ports send.

use std::collections::HashMap;
use std::sync::Arc;

use sparkplug::host::{HostSession, MetricState, WriteError};
use sparkplug::topic::NodeId;
use sparkplug::value::Value;

use super::Ports;
use super::latency::Stamp;
use super::shard::Rules;
use crate::actuation::{Gate, Interlock, Refusal, Target, Write, in_range};
use crate::clock::Now;

/// Quality of a value that may confirm a write.
pub(super) const GOOD: i32 = 192;

pub(super) struct HostGate<'a> {
    pub(super) host: &'a mut HostSession,
    pub(super) rules: &'a mut Rules,
    pub(super) guards: &'a HashMap<Arc<str>, Vec<Option<rules::Guard>>>,
    pub(super) ports: &'a mut dyn Ports,
    pub(super) now: Now,
    pub(super) stamp: Option<Stamp>,
}

impl HostGate<'_> {
    fn command(
        &mut self,
        write: &Write,
    ) -> Result<(sparkplug::host::Transmit, Option<Value>), Refusal> {
        let state = state(self.host, &write.target, &write.metric);
        let previous = state.map(|state| state.value.clone());
        if let Some(state) = state {
            declared(state, &write.value)?;
        }
        let device = write.target.device.as_deref();
        let transmit = self
            .host
            .write(
                self.now.engine_ms,
                &node_id(&write.target),
                device,
                &write.metric,
                &write.value,
            )
            .map_err(|error| refusal(&error))?;
        Ok((transmit, previous))
    }
}

impl Gate for HostGate<'_> {
    fn check(&mut self, write: &Write) -> Result<Option<Value>, Refusal> {
        self.command(write).map(|(_, previous)| previous)
    }

    fn send(&mut self, write: &Write) -> Result<Option<Value>, Refusal> {
        let (transmit, previous) = self.command(write)?;
        let stamp = self.stamp.map(|stamp| stamp.decided(self.ports.mark()));
        self.ports
            .publish(transmit, stamp)
            .map_err(|unsent| Refusal::passing(format!("not_sent: {unsent}")))?;
        Ok(previous)
    }

    fn shows(&mut self, target: &Target, metric: &str) -> Option<Value> {
        let state = state(self.host, target, metric)?;
        let good = !state.stale && state.quality.is_none_or(|quality| quality == GOOD);
        good.then(|| state.value.clone())
    }

    fn allowed(&mut self, interlock: &Interlock) -> Result<bool, String> {
        let guard = self
            .guards
            .get(&interlock.plan)
            .and_then(|guards| guards.get(interlock.position as usize))
            .and_then(Option::as_ref)
            .ok_or("its condition is not known any more")?;
        Ok(self.rules.check(guard))
    }
}

fn node_id(target: &Target) -> NodeId {
    NodeId {
        group: target.group.clone(),
        node: target.node.clone(),
    }
}

fn state<'a>(host: &'a HostSession, target: &Target, metric: &str) -> Option<&'a MetricState> {
    host.metric(&node_id(target), target.device.as_deref(), metric)
}

/// What the node itself says of a metric: `readOnly`, `engLow` and `engHigh`, as Ignition's nodes name them.
fn declared(state: &MetricState, value: &Value) -> Result<(), Refusal> {
    let Some(properties) = &state.properties else {
        return Ok(());
    };
    let property = |key: &str| properties.get(key).map(|property| &property.value);
    if property("readOnly") == Some(&Value::Bool(true)) {
        return Err(Refusal::rejected(format!(
            "not_writable: the birth calls {} read-only",
            state.name
        )));
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "bounds are compared as doubles, as rules do"
    )]
    let bound = |key: &str| match property(key)? {
        Value::Int(v) => Some(*v as f64),
        Value::UInt(v) => Some(*v as f64),
        Value::Float(v) => Some(f64::from(*v)),
        Value::Double(v) => Some(*v),
        _ => None,
    };
    in_range(
        value,
        (bound("engLow"), bound("engHigh")),
        "engLow and engHigh of the birth",
    )
}

fn refusal(error: &WriteError) -> Refusal {
    let (word, passing) = match error {
        WriteError::UnknownNode => ("unknown_node", true),
        WriteError::UnknownDevice => ("unknown_device", true),
        WriteError::Offline => ("offline", true),
        WriteError::NotConnected => ("not_connected", true),
        WriteError::UnknownMetric { .. } => ("unknown_metric", false),
        WriteError::Value(_) | WriteError::Encoding => ("datatype", false),
        WriteError::CommandsDisabled => ("read_only", false),
    };
    Refusal {
        passing,
        ..Refusal::rejected(format!("{word}: {error}"))
    }
}
