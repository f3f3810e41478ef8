//! Many nodes at once.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::link::Protocol;
use crate::node::{Node, NodeConfig};
use crate::scenario::{Scenario, covers};
use crate::transport::{AddressError, Broker, Outcome, Runner};

/// A fleet.
#[derive(Debug, Clone)]
pub struct FleetConfig {
    /// `mqtt://host:port`, or `mqtts://host:port` for TLS; several, separated by commas, are walked in turn while the
    /// primary host is away.
    pub broker: String,
    /// Sparkplug group id.
    pub group: String,
    /// Edge nodes, named `node-1`…
    pub nodes: usize,
    /// Devices of each, named `press-1`…
    pub devices_per_node: usize,
    /// Metrics of each device, at least ten.
    pub metrics: usize,
    /// Data messages of a device in a second.
    pub rate_hz: f64,
    /// Seed of all signals and faults.
    pub seed: u64,
    /// Faults.
    pub scenario: Option<PathBuf>,
    /// Host without which nodes stay silent.
    pub primary_host: Option<String>,
    /// MQTT version.
    pub protocol: Protocol,
    /// Nodes have templates and a DataSet, devices have properties.
    pub structured: bool,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            broker: "mqtt://127.0.0.1:1883".to_owned(),
            group: "plantA".to_owned(),
            nodes: 5,
            devices_per_node: 10,
            metrics: 10,
            rate_hz: 10.0,
            seed: 1,
            scenario: None,
            primary_host: None,
            protocol: Protocol::V3,
            structured: false,
        }
    }
}

/// Why a fleet can't start.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The broker's address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
    /// The scenario.
    #[error(transparent)]
    Scenario(#[from] crate::scenario::ScenarioError),
    /// A group id that can't be a topic level.
    #[error("group `{0}`: {1}")]
    Group(String, #[source] sparkplug::topic::TopicError),
    /// A rate that is no rate.
    #[error("a rate of {0} Hz is not between 0.001 and 1000")]
    Rate(f64),
}

impl FleetError {
    /// Whether an argument is at fault, and not a file.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Scenario(_) | Self::Tls(_))
    }
}

/// What a fleet did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Edge nodes.
    pub nodes: u64,
    /// Devices.
    pub devices: u64,
    /// Messages handed to their connections.
    pub messages: u64,
    /// Metrics in them.
    pub metrics: u64,
    /// NBIRTH and DBIRTH among them.
    pub births: u64,
    /// Command metrics received.
    pub commands: u64,
    /// Of these, those that took effect.
    pub writes: u64,
    /// Rebirths on request.
    pub rebirths: u64,
    /// Connections made.
    pub connections: u64,
    /// Faults put in.
    pub faults: u64,
    /// Messages lost because the broker did not read as fast as the fleet speaks.
    pub dropped: u64,
}

/// A running fleet.
pub struct Fleet {
    stop: watch::Sender<bool>,
    tasks: JoinSet<Outcome>,
    nodes: usize,
    devices: usize,
}

impl Fleet {
    /// Starts all nodes on the present tokio runtime. A broker that is not there is waited for.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn start(config: &FleetConfig) -> Result<Self, FleetError> {
        let brokers = config
            .broker
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<Broker>, _>>()?;
        let scenario = config
            .scenario
            .as_deref()
            .map(Scenario::read)
            .transpose()?
            .unwrap_or_default();
        if !(0.001..=1000.0).contains(&config.rate_hz) {
            return Err(FleetError::Rate(config.rate_hz));
        }
        let tls = match brokers.iter().any(|broker| broker.tls) {
            true => Some(crate::tls::transport()?),
            false => None,
        };
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for place in 1..=config.nodes as u64 {
            let name = format!("node-{place}");
            let node = Node::new(&NodeConfig {
                group: config.group.clone(),
                name: name.clone(),
                devices: (1..=config.devices_per_node)
                    .map(|i| format!("press-{i}"))
                    .collect(),
                metrics: config.metrics,
                seed: config.seed,
                place,
                primary_host: config.primary_host.clone(),
                servers: brokers.len(),
                structured: config.structured,
            })
            .map_err(|error| FleetError::Group(config.group.clone(), error))?;
            let runner = Runner {
                node,
                faults: scenario
                    .faults
                    .iter()
                    .filter(|f| covers(&f.node, &name))
                    .cloned()
                    .collect(),
                name,
                group: config.group.clone(),
                brokers: brokers.clone(),
                period: Duration::from_secs_f64(1.0 / config.rate_hz),
                seed: config.seed,
                place,
                protocol: config.protocol,
                tls: tls.clone(),
                late: None,
                generation: 0,
                revived: Vec::new(),
                others: JoinSet::new(),
            };
            tasks.spawn(runner.run(stopped.clone()));
        }
        Ok(Self {
            stop,
            tasks,
            nodes: config.nodes,
            devices: config.nodes * config.devices_per_node,
        })
    }

    /// Stops all nodes, each with its death, and tells what they did.
    pub async fn stop(mut self) -> Report {
        let _ = self.stop.send(true);
        let mut report = Report {
            nodes: self.nodes as u64,
            devices: self.devices as u64,
            ..Report::default()
        };
        while let Some(outcome) = self.tasks.join_next().await {
            let Ok(outcome) = outcome else { continue };
            report.messages += outcome.tally.messages;
            report.metrics += outcome.tally.metrics;
            report.births += outcome.tally.births;
            report.commands += outcome.counts.commands;
            report.writes += outcome.counts.writes;
            report.rebirths += outcome.counts.rebirths;
            report.connections += outcome.connections;
            report.faults += outcome.faults;
            report.dropped += outcome.tally.dropped;
        }
        report
    }
}
