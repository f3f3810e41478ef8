//! `sparkgate run`: the daemon under a service manager or on a terminal.
//! Takes a changed configuration on SIGHUP, and changed packs as soon as they lie still.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::watch::{PERIOD, Watch};
use super::{ConfigArgs, EX_CONFIG};
use crate::daemon::{Ended, Gateway, watchdog};
use crate::prepare::{Changed, Prepared, changed, prepare};
use crate::telemetry::chain;

/// Runs until a signal or a failure.
pub fn run(args: &ConfigArgs) -> ExitCode {
    raise_descriptors();
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
            tracing::error!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Each connection takes a descriptor, and the journal must never be the one that finds none left: the soft limit is
/// raised to the hard one.
pub(super) fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        eprintln!(
            "the limit of open files can't be raised ({error}); set it above mqtt.limits.connections"
        );
    }
}

async fn serve(prepared: Prepared, args: &ConfigArgs) -> anyhow::Result<Ended> {
    let mut rules = prepared.loaded.value.rules.clone();
    let mut watch = Watch::new(&rules);
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
        let mut looks = tokio::time::interval(PERIOD);
        loop {
            tokio::select! {
                _ = term.recv() => break,
                _ = int.recv() => break,
                _ = hup.recv() => {
                    if let Some(fresh) = reload(&shared, file.as_deref(), folder.as_deref()).await {
                        rules = fresh;
                        watch = Watch::new(&rules);
                    }
                }
                _ = looks.tick(), if rules.watch => {
                    if watch.changed(&rules) {
                        reload_rules(&shared, &rules).await;
                    }
                }
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

/// Takes changed packs; a mistake in one of them leaves all rules as they are.
async fn reload_rules(shared: &crate::admin::Shared, rules: &crate::config::Rules) {
    match crate::packs::configured(rules) {
        Ok(packs) => {
            let versions = crate::admin::configured::versions(&packs);
            let done = shared
                .core
                .ask(move |core, now, ports| core.reload_rules(now, packs, ports))
                .await;
            match done {
                Ok(()) => {
                    tokio::spawn(crate::texts::supply(
                        shared.core.clone(),
                        shared.embedder.clone(),
                    ));
                    shared.configured.packs_taken(versions);
                }
                Err(error) => tracing::error!(%error, "reload"),
            }
        }
        Err(errors) => refused(&errors, "the rules that were in force stay in force"),
    }
}

fn refused(errors: &[crate::config::load::Diagnostic], consequence: &'static str) {
    for error in errors {
        tracing::error!(%error, "configuration refused");
    }
    tracing::error!(mistakes = errors.len(), "{consequence}");
}

/// Takes a changed configuration as far as it can change while running; an invalid one leaves what runs in force.
async fn reload(
    shared: &crate::admin::Shared,
    file: Option<&std::path::Path>,
    folder: Option<&std::path::Path>,
) -> Option<crate::config::Rules> {
    use sd_notify::NotifyState;
    if let Ok(state) = NotifyState::monotonic_usec_now() {
        let _ = sd_notify::notify(&[NotifyState::Reloading, state]);
    }
    let (file, folder) = (
        file.map(std::path::Path::to_owned),
        folder.map(std::path::Path::to_owned),
    );
    // Packs may be many: not on a thread that serves sockets.
    let read = tokio::task::spawn_blocking(move || changed(file.as_deref(), folder.as_deref()));
    let rules = match read.await {
        Ok(Ok(changed)) => Some(take(shared, changed).await),
        Ok(Err(errors)) => {
            shared.configured.refused(errors.len());
            refused(
                &errors,
                "the configuration that was in force stays in force",
            );
            None
        }
        Err(error) => {
            tracing::error!(%error, "reload");
            None
        }
    };
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    rules
}

/// Puts in force what needs no restart, and only that; see `config::change`.
async fn take(shared: &crate::admin::Shared, changed: Changed) -> crate::config::Rules {
    let Changed {
        loaded,
        packs,
        token,
        ..
    } = changed;
    let (running, fresh) = (shared.configured.config(), loaded.value);
    let mut next = crate::config::change::take(&running, &fresh);
    let mut mistakes = 0;
    // Users, rights and certificates; a pair that does not match keeps the old one in force.
    if let Err(error) = shared.broker.reload(&next.mqtt) {
        tracing::error!(%error, "the broker keeps its users, rights and certificates");
        next.mqtt = running.mqtt;
        mistakes += 1;
    }
    shared.tokens.set(token);
    shared.notifier.reload(&next.notify);
    crate::telemetry::set_filter(&next.log.filter);
    let versions = crate::admin::configured::versions(&packs);
    let live = crate::prepare::live(&next, packs);
    let done = shared
        .core
        .ask(move |core, now, ports| core.reconfigure(now, live, ports))
        .await;
    if let Err(error) = done {
        tracing::error!(%error, "reload");
    }
    tokio::spawn(crate::texts::supply(
        shared.core.clone(),
        shared.embedder.clone(),
    ));
    let rules = next.rules.clone();
    shared.configured.taken(next, &fresh, versions, mistakes);
    rules
}
