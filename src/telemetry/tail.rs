//! The newest log lines in memory, for the page and the support bundle of a box that nobody is logged in to.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer};

/// Lines kept; the oldest goes first.
const LINES: usize = 400;
/// Longest line kept, bytes.
const LONGEST: usize = 1_000;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// ms UTC.
    pub time: u64,
    /// `ERROR`, `WARN`, `INFO`, …
    pub level: &'static str,
    /// The message and then its fields as `name=value`.
    pub text: String,
}

static TAIL: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());

/// The newest lines, oldest first.
#[must_use]
pub fn lines() -> Vec<Line> {
    let tail = TAIL.lock().unwrap_or_else(PoisonError::into_inner);
    tail.iter().cloned().collect()
}

/// Keeps what passes the filters before it.
pub(super) struct Tail;

impl<S: tracing::Subscriber> Layer<S> for Tail {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let line = Line {
            time: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            level: event.metadata().level().as_str(),
            text: text.line(),
        };
        let mut tail = TAIL.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn line(mut self) -> String {
        self.message.push_str(&self.fields);
        if self.message.len() > LONGEST {
            let mut end = LONGEST;
            while !self.message.is_char_boundary(end) {
                end -= 1;
            }
            self.message.truncate(end);
            self.message.push('…');
        }
        self.message
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string can't fail. An event may have its constant text and a field of the same name.
        let _ = if field.name() == "message" && self.message.is_empty() {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = if field.name() == "message" && self.message.is_empty() {
            write!(self.message, "{value}")
        } else {
            write!(self.fields, " {}={value}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn lines_have_their_fields_and_an_end() {
        let subscriber = tracing_subscriber::registry().with(Tail);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(place = "here", count = 3, "something odd 7f3a");
            tracing::info!("{}", "ü".repeat(LONGEST));
        });
        let all = lines();
        let odd = all.iter().find(|l| l.text.contains("7f3a")).unwrap();
        assert_eq!(
            (odd.level, odd.text.as_str()),
            ("WARN", "something odd 7f3a place=here count=3")
        );
        assert!(all.iter().all(|l| l.text.len() <= LONGEST + 4));
    }
}
