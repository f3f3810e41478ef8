//! Log output.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::config::{Log, LogFormat};

/// Starts logging to stderr. Under systemd lines carry no time of their own: the journal has one.
///
/// # Errors
/// A filter directive that can't be read, with the place in the configuration.
pub fn start(log: &Log) -> Result<(), String> {
    let filter = match std::env::var("SPARKGATE_LOG") {
        Ok(directives) => EnvFilter::try_new(&directives)
            .map_err(|e| format!("SPARKGATE_LOG `{directives}`: {e}"))?,
        Err(_) => EnvFilter::try_new(&log.filter)
            .map_err(|e| format!("[log] filter `{}`: {e}", log.filter))?,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::NONE)
        .with_target(false)
        .with_writer(std::io::stderr);
    let plain = std::env::var_os("NO_COLOR").is_some()
        || !std::io::IsTerminal::is_terminal(&std::io::stderr());
    let under_systemd = std::env::var_os("JOURNAL_STREAM").is_some();
    // A second start in one process (tests) keeps the first one's output.
    let _ = match (log.format, under_systemd) {
        (LogFormat::Json, _) => builder.json().flatten_event(true).try_init(),
        (LogFormat::Text, true) => builder.with_ansi(false).without_time().try_init(),
        (LogFormat::Text, false) => builder.with_ansi(!plain).try_init(),
    };
    Ok(())
}
