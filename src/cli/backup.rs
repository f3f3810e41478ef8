//! `sparkgate backup` and `restore`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::client::{Client, Refused, block_on};
use super::{ConfigArgs, Output, Reach};
use crate::backup::{self, Manifest};
use crate::config::Config;
use crate::{prepare, state};

/// What `restore` may be told.
#[derive(Debug, clap::Args)]
pub(super) struct RestoreArgs {
    /// A file that `backup` made
    file: PathBuf,
    /// Move the data that is there aside
    #[arg(long)]
    replace: bool,
    /// Restore below this folder instead of /
    #[arg(long, default_value = "/")]
    root: PathBuf,
    /// Only say what would be restored
    #[arg(long)]
    dry_run: bool,
}

/// Writes a backup, of a running gateway or of a stopped one.
pub(super) fn backup(file: &Path, reach: &Reach, output: Output) -> anyhow::Result<()> {
    let ConfigArgs { config, config_dir } = &reach.config;
    let all = |errors: Vec<crate::config::load::Diagnostic>| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("the configuration can't be read:\n{}", lines.join("\n"))
    };
    let sources = Config::texts(config.as_deref(), config_dir.as_deref()).map_err(all)?;
    let loaded = Config::from_sources(&sources).map_err(all)?.value;
    let (mut state, record) = export(&loaded, reach)?;
    let files: Vec<PathBuf> = sources
        .iter()
        .map(|source| std::path::absolute(&source.file))
        .collect::<Result<_, _>>()?;
    let (parts, left_out) = backup::parts(&loaded, &files);
    let manifest = Manifest {
        format: backup::FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        gateway: loaded.gateway.id.clone(),
        made_ms: crate::clock::wall_ms(),
        data_dir: std::path::absolute(&loaded.gateway.data_dir)?,
        record,
        parts,
        left_out,
    };
    backup::write(file, &manifest, state.as_mut())?;
    tell(&manifest, output);
    Ok(())
}

/// A fresh export of the state, open: from the running gateway, or from the store of a stopped one.
fn export(config: &Config, reach: &Reach) -> anyhow::Result<(Option<File>, Option<u64>)> {
    match block_on(Client::new(reach)?.post("/api/backup", &json!({}))) {
        Ok(answer) => {
            let path = answer
                .get("snapshot")
                .and_then(Value::as_str)
                .context("the gateway did not say where its export lies")?;
            let file = File::open(path).with_context(|| format!("export {path}"))?;
            return Ok((Some(file), answer.get("record").and_then(Value::as_u64)));
        }
        Err(error) if error.downcast_ref::<Refused>().is_some() => return Err(error),
        // Nobody answers: a stopped gateway's store can be opened here.
        Err(_) => {}
    }
    let folder = prepare::state_folder(config);
    if !folder.is_dir() {
        return Ok((None, None));
    }
    let store = state::open(&folder, state::Options::default())
        .context("no gateway answers, and its state can't be opened here")?;
    let record = crate::pipeline::recover::meta(&store)?.map_or(0, |meta| meta.record);
    store.snapshot(record)?;
    let snapshot = store
        .newest_snapshot()?
        .context("the export that was just made is gone")?;
    let file = File::open(&snapshot.path)
        .with_context(|| format!("export {}", snapshot.path.display()))?;
    Ok((Some(file), Some(snapshot.mark)))
}

fn tell(manifest: &Manifest, output: Output) {
    if output == Output::Json {
        println!(
            "{:#}",
            serde_json::to_value(manifest).unwrap_or(Value::Null)
        );
        return;
    }
    println!(
        "gateway {}, sparkgate {}, state {}",
        manifest.gateway,
        manifest.version,
        manifest
            .record
            .map_or("none".to_owned(), |record| format!("of record {record}"))
    );
    for part in &manifest.parts {
        println!("  {}", part.display());
    }
    for secret in &manifest.left_out {
        println!("  not in it: {} (a secret)", secret.display());
    }
}

/// Restores one.
pub(super) fn restore(args: &RestoreArgs) -> anyhow::Result<()> {
    let manifest = backup::manifest(&args.file)?;
    if args.dry_run {
        tell(&manifest, Output::Table);
        return Ok(());
    }
    if !args.root.is_dir() {
        bail!("{} is no folder", args.root.display());
    }
    for path in backup::restore(&args.file, &args.root, args.replace)? {
        println!("{}", path.display());
    }
    for secret in &manifest.left_out {
        eprintln!("put in place by hand: {} (a secret)", secret.display());
    }
    Ok(())
}
