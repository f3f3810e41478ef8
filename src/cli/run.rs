//! `sparkgate run`: the daemon under a service manager or on a terminal.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{ConfigArgs, EX_CONFIG};
use crate::daemon::{Ended, Gateway, watchdog};
use crate::prepare::{Prepared, prepare};

/// Runs until a signal or a failure.
pub fn run(args: &ConfigArgs) -> ExitCode {
    let prepared = match prepare(args.config.as_deref(), args.config_dir.as_deref()) {
        Ok(prepared) => prepared,
        Err(errors) => {
            for error in errors {
                eprintln!("{error}");
            }
            return ExitCode::from(EX_CONFIG);
        }
    };
    if let Err(error) = crate::telemetry::start(&prepared.loaded.value.log) {
        eprintln!("{error}");
        return ExitCode::from(EX_CONFIG);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("sparkgate: tokio runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(prepared, args)) {
        Ok(Ended::Asked) => ExitCode::SUCCESS,
        Ok(Ended::Failed(reason)) => {
            tracing::error!(reason, "the gateway can't go on");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(prepared: Prepared, args: &ConfigArgs) -> anyhow::Result<Ended> {
    let gateway = Gateway::build(prepared).await?;
    let (stop, stopped) = watch::channel(false);
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hup = signal(SignalKind::hangup())?;
    let (file, folder) = (args.config.clone(), args.config_dir.clone());
    let (ready_tx, ready_rx) = tokio::sync::oneshot::channel();
    let signals = tokio::spawn(async move {
        let shared: std::sync::Arc<crate::admin::Shared> = match ready_rx.await {
            Ok(shared) => shared,
            Err(_) => return,
        };
        loop {
            tokio::select! {
                _ = term.recv() => break,
                _ = int.recv() => break,
                _ = hup.recv() => reload(&shared, file.as_deref(), folder.as_deref()).await,
            }
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let _ = stop.send(true);
    });
    let ended = gateway
        .run(stopped, move |_, shared| {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
            if let Some(period) = sd_notify::watchdog_enabled() {
                tokio::spawn(watchdog(shared.clone(), period));
            }
            let _ = ready_tx.send(shared.clone());
        })
        .await;
    signals.abort();
    ended
}

/// Takes a changed configuration as far as it can change while running; an invalid one leaves what runs in force.
async fn reload(
    shared: &crate::admin::Shared,
    file: Option<&std::path::Path>,
    folder: Option<&std::path::Path>,
) {
    use sd_notify::NotifyState;
    if let Ok(state) = NotifyState::monotonic_usec_now() {
        let _ = sd_notify::notify(&[NotifyState::Reloading, state]);
    }
    match prepare(file, folder) {
        Ok(prepared) => {
            let config = prepared.loaded.value;
            // Users, rights and certificates; a pair that does not match keeps the old one in force.
            if let Err(error) = shared.broker.reload(&config.mqtt) {
                tracing::error!(%error, "the broker keeps its users, rights and certificates");
            }
            *shared
                .config_hash
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner) =
                crate::prepare::config_hash(&config);
            let packs = prepared.packs;
            let host = crate::prepare::host_config(&config);
            let limits = crate::prepare::write_limits(&config);
            let dry_run = config.rules.dry_run;
            let done = shared
                .core
                .ask(move |core, now, ports| {
                    core.reconfigure(now, packs, host, limits, dry_run, ports)
                })
                .await;
            match done {
                Ok(()) => {
                    tokio::spawn(crate::texts::supply(
                        shared.core.clone(),
                        shared.embedder.clone(),
                    ));
                    tracing::info!(
                        "configuration reloaded: rules, host, writes, users, rights and certificates; listeners, buffer, models and bridge need a restart"
                    );
                }
                Err(error) => tracing::error!(%error, "reload"),
            }
        }
        Err(errors) => {
            for error in &errors {
                tracing::error!(%error, "configuration refused");
            }
            tracing::error!(
                mistakes = errors.len(),
                "the configuration that was in force stays in force"
            );
        }
    }
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}
