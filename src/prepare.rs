//! Everything between a configuration file and binding the first socket. `run` and `validate` both come here, so
//! that what is approved is what starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use models::{BackendPreference, Registry};

use crate::admin::auth::Token;
use crate::config::Config;
use crate::config::load::{Diagnostic, Loaded};
use crate::packs;

/// A configuration with all that it names, read and checked.
pub struct Prepared {
    /// The configuration and where its values come from.
    pub loaded: Loaded<Config>,
    /// Rule packs.
    pub packs: Vec<rules::Pack>,
    /// Models that are right on this machine.
    pub registry: Option<Registry>,
    /// Text model; it loads on first use.
    pub texts: Option<crate::texts::Setup>,
    /// Models that are not, with the reason; the gateway runs without them.
    pub model_errors: Vec<String>,
    /// Token for writes over TCP.
    pub token: Option<Token>,
}

/// What of a configuration can change while the gateway runs, read and checked.
pub struct Changed {
    /// The configuration and where its values come from.
    pub loaded: Loaded<Config>,
    /// Rule packs.
    pub packs: Vec<rules::Pack>,
    /// Token for writes over TCP.
    pub token: Option<Token>,
    preference: BackendPreference,
}

/// Reads the files and everything they name.
///
/// # Errors
/// Every mistake at once.
pub fn prepare(file: Option<&Path>, folder: Option<&Path>) -> Result<Prepared, Vec<Diagnostic>> {
    let (loaded, main) = load(file, folder)?;
    from_loaded(loaded, main)
}

/// As [`prepare`], without the models: they take seconds to open, and those that run stay.
///
/// # Errors
/// Every mistake at once.
pub fn changed(file: Option<&Path>, folder: Option<&Path>) -> Result<Changed, Vec<Diagnostic>> {
    let (loaded, main) = load(file, folder)?;
    check(loaded, main)
}

fn load<'a>(
    file: Option<&'a Path>,
    folder: Option<&Path>,
) -> Result<(Loaded<Config>, &'a Path), Vec<Diagnostic>> {
    let main = file.unwrap_or_else(|| Path::new(crate::config::DEFAULT_FILE));
    match Config::usable(&Config::texts(file, folder)?) {
        (Some(loaded), wrong) if wrong.is_empty() => Ok((loaded, main)),
        (Some(loaded), mut wrong) => {
            wrong.extend(named_files(&loaded.value, main));
            Err(wrong)
        }
        (None, wrong) => Err(wrong),
    }
}

/// The mistakes in what a configuration names, packs and models, where the configuration itself has some: they are
/// shown in the same run. What depends on a value that may be the wrong one (folders, certificates, secrets) waits.
fn named_files(config: &Config, main: &Path) -> Vec<Diagnostic> {
    let mut wrong = packs::configured(&config.rules).err().unwrap_or_default();
    let preference = BackendPreference::parse(&config.models.backend)
        .unwrap_or_else(|_| BackendPreference::builtin());
    wrong.extend(unknown_models(config, main));
    let (_, errors) = load_models(config, &preference);
    wrong.extend(errors.into_iter().map(|message| Diagnostic {
        file: main.to_path_buf(),
        place: None,
        message,
    }));
    wrong
}

/// As [`prepare`], from a configuration that was read already.
///
/// # Errors
/// Every mistake at once.
pub fn from_loaded(loaded: Loaded<Config>, main: &Path) -> Result<Prepared, Vec<Diagnostic>> {
    let Changed {
        loaded,
        packs,
        token,
        preference,
    } = check(loaded, main)?;
    let config = &loaded.value;
    let (registry, mut model_errors) = load_models(config, &preference);
    let texts = crate::texts::find(&config.models.paths).unwrap_or_else(|errors| {
        model_errors.extend(errors);
        None
    });
    if texts.is_none() {
        let phrases: Vec<Arc<str>> = packs
            .iter()
            .flat_map(rules::Pack::phrases)
            .cloned()
            .collect();
        model_errors.extend(crate::texts::missing(&phrases));
    }
    Ok(Prepared {
        loaded,
        packs,
        registry,
        texts,
        model_errors,
        token,
    })
}

/// Everything but the models.
fn check(mut loaded: Loaded<Config>, main: &Path) -> Result<Changed, Vec<Diagnostic>> {
    take_credentials(&mut loaded.value);
    let config = &loaded.value;
    let mut wrong = Vec::new();
    let mut say = |message: String| {
        wrong.push(Diagnostic {
            file: main.to_path_buf(),
            place: None,
            message,
        })
    };
    if let Err(error) = tracing_subscriber::EnvFilter::try_new(&config.log.filter) {
        say(format!("log.filter `{}`: {error}", config.log.filter));
    }
    let token = match config
        .admin
        .token_file
        .as_deref()
        .map(Token::read)
        .transpose()
    {
        Ok(token) => token,
        Err(error) => {
            say(error.to_string());
            None
        }
    };
    for error in crate::broker::check(&config.mqtt) {
        say(error);
    }
    for error in crate::host::check(&config.host.server) {
        say(error);
    }
    for error in config.bridge.iter().flat_map(crate::bridge::Config::errors) {
        say(error.to_string());
    }
    for error in config.notify.errors() {
        say(error.to_string());
    }
    if let Err(error) = usable_folder(&config.gateway.data_dir) {
        say(format!(
            "gateway.data_dir {}: {error}",
            config.gateway.data_dir.display()
        ));
    } else if let Err(error) = crate::data_folder::check(&config.gateway.data_dir) {
        say(format!("gateway.data_dir {error}"));
    }
    let preference = match BackendPreference::parse(&config.models.backend) {
        Ok(preference) => preference,
        Err(error) => {
            say(format!("models.backend: {error}"));
            BackendPreference::builtin()
        }
    };
    let packs = match packs::configured(&config.rules) {
        Ok(packs) => packs,
        Err(errors) => {
            wrong.extend(errors);
            Vec::new()
        }
    };
    wrong.extend(unknown_models(config, main));
    if wrong.is_empty() {
        Ok(Changed {
            loaded,
            packs,
            token,
            preference,
        })
    } else {
        Err(wrong)
    }
}

/// Names in `use_shipped` of models that are not built in.
fn unknown_models(config: &Config, main: &Path) -> Vec<Diagnostic> {
    let shipped: Vec<&str> = Registry::shipped().collect();
    let names = config.models.use_shipped.iter();
    names
        .filter(|name| *name != "*" && !shipped.contains(&name.as_str()))
        .map(|name| {
            let mut message = format!("models.use_shipped: no model `{name}` is built in");
            if let Some(near) = crate::config::load::nearest(name, shipped.iter().copied()) {
                message.push_str(&format!("; did you mean `{near}`?"));
            }
            Diagnostic {
                file: main.to_path_buf(),
                place: None,
                message,
            }
        })
        .collect()
}

/// The models a configuration names, in the versions that were promoted. One that fails its golden rows on this machine
/// is left out with its reason: a gateway without a model is better than no gateway.
fn load_models(config: &Config, preference: &BackendPreference) -> (Option<Registry>, Vec<String>) {
    let sources = model_sources(config);
    if sources.is_empty() {
        return (None, Vec::new());
    }
    let (promoted, mut errors) = crate::rollout::promoted(&rollout_file(config), preference);
    let (mut registry, refused) = Registry::load_in_place(&sources, preference, promoted);
    let chosen = &config.models.use_shipped;
    if !chosen.iter().any(|name| name == "*") {
        registry.keep(|name| chosen.iter().any(|chosen| chosen == name));
    }
    errors.extend(refused.iter().map(ToString::to_string));
    let any = registry.models().next().is_some();
    (any.then_some(registry), errors)
}

/// Where the configured models come from.
#[must_use]
pub fn model_sources(config: &Config) -> Vec<models::Source> {
    // Built-in ones first: a folder's model of the same name replaces them.
    let built_in = (!config.models.use_shipped.is_empty()).then_some(models::Source::Embedded);
    let folders = config.models.paths.iter().filter(|path| path.is_dir());
    built_in
        .into_iter()
        .chain(folders.cloned().map(models::Source::Dir))
        .collect()
}

/// Which versions were promoted.
#[must_use]
pub fn rollout_file(config: &Config) -> PathBuf {
    config.gateway.data_dir.join("rollout.json")
}

/// The configured backends; those of this build when the list can't be read, which `prepare` has said.
#[must_use]
pub fn preference(config: &Config) -> BackendPreference {
    BackendPreference::parse(&config.models.backend)
        .unwrap_or_else(|_| BackendPreference::builtin())
}

/// Whether files can be made in `folder`. A full disk is a state that heals, and no reason to refuse a start.
fn usable_folder(folder: &Path) -> std::io::Result<()> {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    std::fs::create_dir_all(folder)?;
    let probe = folder.join(".write-probe");
    let written = std::fs::write(&probe, b"sparkgate");
    match written {
        Err(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => {
            // It may be there without a byte in it.
            let _ = std::fs::remove_file(&probe);
            Ok(())
        }
        written => written.and_then(|()| std::fs::remove_file(&probe)),
    }
}

/// Secrets of the service manager; for a tool, those of the running service. Where there are none, nothing changes.
pub fn take_credentials(config: &mut Config) {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY")
        .filter(|folder| !folder.is_empty())
        .map_or_else(
            || PathBuf::from("/run/credentials/sparkgate.service"),
            PathBuf::from,
        );
    use_credentials(config, &folder);
}

/// Secrets by a bare name are looked for among the service manager's credentials first (systemd's `LoadCredential=`).
fn use_credentials(config: &mut Config, folder: &Path) {
    let (admin, mqtt) = (&mut config.admin, &mut config.mqtt);
    let receivers = config.notify.secrets();
    let mut secrets: Vec<&mut PathBuf> = [&mut admin.token_file, &mut mqtt.users_file]
        .into_iter()
        .flatten()
        .chain(receivers)
        .collect();
    if let Some(tls) = &mut mqtt.tls {
        secrets.extend([&mut tls.cert, &mut tls.key]);
    }
    for server in &mut config.host.server {
        secrets.extend(server.password_file.as_mut());
        let tls = [
            &mut server.tls.ca,
            &mut server.tls.cert,
            &mut server.tls.key,
        ];
        secrets.extend(tls.into_iter().flatten());
    }
    if let Some(bridge) = &mut config.bridge {
        let files = [
            &mut bridge.creds_file,
            &mut bridge.nkey_file,
            &mut bridge.password_file,
            &mut bridge.token_file,
        ];
        secrets.extend(files.into_iter().flatten());
        if let Some(tls) = &mut bridge.tls {
            secrets.extend(
                [&mut tls.ca, &mut tls.cert, &mut tls.key]
                    .into_iter()
                    .flatten(),
            );
        }
    }
    if let Some(cold) = &mut config.buffer.cold {
        let files = [&mut cold.credentials_file, &mut cold.ca];
        secrets.extend(files.into_iter().flatten());
    }
    for secret in secrets {
        let credential = folder.join(&*secret);
        if secret.components().count() == 1 && credential.is_file() {
            *secret = credential;
        }
    }
}

/// The bridge's certificate files, by what for; the broker knows its own.
#[must_use]
pub fn certificate_files(config: &Config) -> Vec<(&'static str, PathBuf)> {
    let mut files = Vec::new();
    if let Some(tls) = config
        .bridge
        .as_ref()
        .and_then(|bridge| bridge.tls.as_ref())
    {
        files.extend(tls.cert.iter().map(|cert| ("uplink client", cert.clone())));
        files.extend(tls.ca.iter().map(|ca| ("uplink authority", ca.clone())));
    }
    files
}

/// The host session's settings.
#[must_use]
pub fn host_config(config: &Config) -> sparkplug::host::HostConfig {
    let defaults = sparkplug::host::HostConfig::default();
    sparkplug::host::HostConfig {
        host_id: config.host_id().into(),
        publish_state: config.host.primary,
        reorder_timeout_ms: config.host.reorder_timeout.as_millis(),
        rebirth: sparkplug::host::RebirthPolicy {
            enabled: config.host.rebirth.enabled,
            cooldown_ms: config.host.rebirth.cooldown.as_millis(),
            ..defaults.rebirth
        },
        command_devices: !config.writes.read_only,
        ..defaults
    }
}

/// The journal's settings.
#[must_use]
pub fn buffer_config(config: &Config) -> crate::buffer::Config {
    let (hot, warm) = (&config.buffer.hot, &config.buffer.warm);
    crate::buffer::Config {
        hot_ttl_ms: hot.ttl.as_millis(),
        hot_max_bytes: hot.max.0,
        warm_ttl_ms: warm.ttl.as_millis(),
        warm_max_bytes: warm.max.0,
        sync_ms: warm.sync.as_millis(),
        segment_bytes: warm.segment.0,
        keep_acked_ms: warm.keep_delivered.as_millis(),
        ..crate::buffer::Config::default()
    }
}

/// Under which names the journal's records are to be delivered.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Identity {
    gateway: String,
    #[serde(default)]
    cold_url: Option<String>,
}

/// Refuses a start under another gateway id while records are pending under the old one, and with another cold
/// tier while undelivered records lie in the old one: they would be orphaned.
///
/// # Errors
/// What would be orphaned, how many, and what to do; or the file that remembers the names can't be used.
pub fn check_identity(config: &Config, journal: &crate::buffer::Journal) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let path = journal_folder(config).join("identity");
    let now = Identity {
        gateway: config.gateway.id.clone(),
        cold_url: config.buffer.cold.as_ref().map(|cold| cold.url.clone()),
    };
    let before: Option<Identity> = match std::fs::read(&path) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).with_context(|| {
            format!(
                "{} can't be read; remove it if no records are pending",
                path.display()
            )
        })?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
    };
    if let Some(before) = &before {
        let pending = journal.counts().pending;
        anyhow::ensure!(
            before.gateway == now.gateway || pending == 0,
            "{pending} records are pending under gateway id `{}`: set gateway.id back until they are delivered, then rename",
            before.gateway
        );
        let (parked, _) = journal.parked();
        anyhow::ensure!(
            before.cold_url == now.cold_url || parked == 0,
            "{parked} undelivered records lie in the cold tier at {}: set buffer.cold.url back until they are delivered",
            before.cold_url.as_deref().unwrap_or("none")
        );
    }
    if before.as_ref() != Some(&now) {
        crate::data_folder::replace(&path, &serde_json::to_vec(&now)?)
            .with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

/// What the core takes while running.
#[must_use]
pub fn live(config: &Config, packs: Vec<rules::Pack>) -> crate::pipeline::core::Live {
    crate::pipeline::core::Live {
        packs,
        host: host_config(config),
        limits: write_limits(config),
        dry_run: config.rules.dry_run,
        confirm_timeout_ms: config.writes.confirm_timeout.as_millis(),
    }
}

/// Limits of local writes.
#[must_use]
pub fn write_limits(config: &Config) -> crate::actuation::Limits {
    crate::actuation::Limits {
        read_only: config.writes.read_only,
        max_per_second: config.writes.max_per_second,
        hold_off_ms: config.writes.hold_off.as_millis(),
        undo_patience_ms: config.writes.undo_patience.as_millis(),
        policy: write_policy(config),
        ..crate::actuation::Limits::default()
    }
}

fn write_policy(config: &Config) -> crate::actuation::Policy {
    let glob = |text: &Option<String>| rules::Glob::new(text.as_deref().unwrap_or("*"));
    let rules = config.writes.policy.iter().map(|policy| {
        let it = &policy.matches;
        crate::actuation::PolicyRule {
            group: glob(&it.group),
            node: glob(&it.node),
            device: glob(&it.device),
            metric: glob(&it.metric),
            by: glob(&it.by),
            allow: policy.allow,
            min: policy.min,
            max: policy.max,
        }
    });
    crate::actuation::Policy {
        allow_by_default: config.writes.default == crate::config::WriteDefault::Allow,
        rules: rules.collect(),
    }
}

/// The journal's folder.
#[must_use]
pub fn journal_folder(config: &Config) -> PathBuf {
    config.gateway.data_dir.join("journal")
}

/// The audit log's folder.
#[must_use]
pub fn audit_folder(config: &Config) -> PathBuf {
    config.gateway.data_dir.join("audit")
}

/// The state store's folder.
#[must_use]
pub fn state_folder(config: &Config) -> PathBuf {
    config.gateway.data_dir.join("state")
}

/// Shared by everything that needs the models' manifests.
#[must_use]
pub fn windower(registry: &Registry) -> models::Windower {
    let manifests: Vec<Arc<models::Manifest>> = registry.manifests();
    models::Windower::new(&manifests, models::WindowerConfig::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_by_their_bare_name_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("nats.creds"), "x").unwrap();
        let mut config = Config {
            bridge: Some(crate::bridge::Config {
                creds_file: Some("nats.creds".into()),
                token_file: Some("elsewhere/nats.creds".into()),
                ..crate::bridge::Config::default()
            }),
            ..Config::default()
        };
        config.admin.token_file = Some("missing.token".into());
        use_credentials(&mut config, folder.path());
        let bridge = config.bridge.unwrap();
        assert_eq!(bridge.creds_file, Some(folder.path().join("nats.creds")));
        assert_eq!(bridge.token_file, Some("elsewhere/nats.creds".into()));
        assert_eq!(config.admin.token_file, Some("missing.token".into()));
    }
}
