//! The `firmware-sim` command.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use firmware_sim::fleet::{Fleet, FleetConfig, FleetError};
use firmware_sim::link::Protocol;

/// Conforming Sparkplug edge nodes, with faults on request.
#[derive(Debug, Parser)]
#[command(name = "firmware-sim", version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mqtt {
    #[value(name = "3.1.1")]
    V3,
    #[value(name = "5")]
    V5,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a fleet
    Run {
        /// Broker address, mqtt://host:port or mqtts://host:port; several, separated by commas, are walked in turn
        /// while the primary host is away
        #[arg(long)]
        broker: String,
        /// Edge nodes
        #[arg(long, default_value_t = 5)]
        nodes: usize,
        /// Devices of each node
        #[arg(long, default_value_t = 10)]
        devices: usize,
        /// Metrics of each device, at least 10
        #[arg(long, default_value_t = 10)]
        metrics: usize,
        /// Data messages of a device in a second
        #[arg(long, default_value_t = 10.0)]
        rate: f64,
        /// How long; without it, until SIGINT or SIGTERM
        #[arg(long)]
        seconds: Option<u64>,
        /// Scenario file with faults
        #[arg(long)]
        scenario: Option<PathBuf>,
        /// Seed of signals and faults
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Sparkplug group id
        #[arg(long, default_value = "plantA")]
        group: String,
        /// Stay silent until this host application is online
        #[arg(long)]
        primary_host: Option<String>,
        /// MQTT version; with 5, nodes leave with reason 0x04
        #[arg(long, value_enum, default_value = "3.1.1")]
        protocol: Mqtt,
        /// Give nodes templates and a DataSet, and devices properties
        #[arg(long)]
        structured: bool,
        /// Print a table or JSON
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
}

fn main() -> ExitCode {
    let Verb::Run {
        broker,
        nodes,
        devices,
        metrics,
        rate,
        seconds,
        scenario,
        seed,
        group,
        primary_host,
        protocol,
        structured,
        output,
    } = Cli::parse().verb;
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::INFO)
        .init();
    let config = FleetConfig {
        broker,
        group,
        nodes,
        devices_per_node: devices,
        metrics,
        rate_hz: rate,
        seed,
        scenario,
        primary_host,
        protocol: match protocol {
            Mqtt::V3 => Protocol::V3,
            Mqtt::V5 => Protocol::V5,
        },
        structured,
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("firmware-sim: tokio runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(config, seconds, output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("firmware-sim: {error:#}");
            match error.downcast_ref::<FleetError>() {
                Some(error) if error.is_usage() => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

async fn run(config: FleetConfig, seconds: Option<u64>, output: Output) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let fleet = Fleet::start(&config)?;
    let started = Instant::now();
    let shown = std::io::stderr().is_terminal();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let at = started.elapsed().as_secs();
                if shown {
                    eprint!("\r{at} s  {} nodes  {} devices ", config.nodes, config.nodes * config.devices_per_node);
                }
                if seconds.is_some_and(|s| at >= s) {
                    break;
                }
            }
            _ = term.recv() => break,
            _ = int.recv() => break,
        }
    }
    if shown {
        eprintln!();
    }
    let report = fleet.stop().await;
    match output {
        Output::Json => println!("{}", serde_json::to_string(&report)?),
        Output::Table => {
            let json = serde_json::to_value(report)?;
            for (key, value) in json.as_object().into_iter().flatten() {
                println!("{key:<12}{value}");
            }
        }
    }
    Ok(())
}
