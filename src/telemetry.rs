//! Log output: to stderr, and its tail in memory.

mod repeats;
mod tail;

use std::sync::OnceLock;

use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

pub use repeats::suppressed;
pub use tail::{Line, lines};

use crate::config::{Log, LogFormat};

/// Puts another filter in place of the running one; set once.
static FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Takes another filter while running; `SPARKGATE_LOG` stands above it.
pub fn set_filter(directives: &str) {
    if std::env::var_os("SPARKGATE_LOG").is_none()
        && let (Some(set), Ok(filter)) = (FILTER.get(), EnvFilter::try_new(directives))
    {
        set(filter);
    }
}

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
    let lines = tracing_subscriber::fmt::layer()
        .with_span_events(FmtSpan::NONE)
        .with_target(false)
        .with_writer(std::io::stderr);
    let plain = std::env::var_os("NO_COLOR").is_some()
        || !std::io::IsTerminal::is_terminal(&std::io::stderr());
    let under_systemd = std::env::var_os("JOURNAL_STREAM").is_some();
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match (log.format, under_systemd) {
        (LogFormat::Json, _) => lines.json().flatten_event(true).boxed(),
        (LogFormat::Text, true) => lines.with_ansi(false).without_time().boxed(),
        (LogFormat::Text, false) => lines.with_ansi(!plain).boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter);
    // A second start in one process (tests) keeps the first one's output.
    let started = tracing_subscriber::registry()
        .with(
            lines
                .and_then(tail::Tail)
                .with_filter(repeats::Repeats::default()),
        )
        .with(filter)
        .try_init();
    if started.is_ok() {
        let _ = FILTER.set(Box::new(move |filter| {
            let _ = handle.reload(filter);
        }));
    }
    Ok(())
}

/// An error with everything that caused it, on one line. A cause that an error already tells at its end is not told twice.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #[derive(Debug, thiserror::Error)]
    enum Told {
        #[error("listen {0}: {1}")]
        Already(u16, #[source] std::io::Error),
        #[error("listen {0}")]
        NotYet(u16, #[source] std::io::Error),
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = || std::io::Error::other("in use");
        for error in [Told::Already(1, cause()), Told::NotYet(1, cause())] {
            assert_eq!(super::chain(&error), "listen 1: in use");
        }
    }
}
