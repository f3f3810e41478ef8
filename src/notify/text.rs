//! What a message says: to people, and to programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::core::{Entry, Message};

/// Lines of a mail before the rest is only counted.
const MOST_LINES: usize = 50;

/// One line for a subject or a phone.
#[must_use]
pub fn subject(gateway: &str, message: &Message) -> String {
    let text = match message.entries.as_slice() {
        [] => String::new(),
        [only] => line(only),
        [first, rest @ ..] => format!(
            "{} alarms: {} and {} more",
            rest.len() + 1,
            line(first),
            rest.len()
        ),
    };
    // A header has one line; what a device writes into a message must not make another.
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    format!("[{gateway}] {}", cut(&text, 150))
}

/// Everything, for people.
#[must_use]
pub fn body(gateway: &str, message: &Message) -> String {
    let mut out = String::new();
    for entry in message.entries.iter().take(MOST_LINES) {
        let _ = writeln!(out, "{}", line(entry));
        let text = |key: &str| {
            entry
                .alarm
                .body
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or("")
        };
        let _ = writeln!(
            out,
            "    {}, rule {} {}, alarm {}",
            entry.alarm.source,
            text("rule"),
            text("version"),
            entry.alarm.id
        );
    }
    let rest = message.entries.len().saturating_sub(MOST_LINES);
    if rest > 0 {
        let _ = writeln!(out, "… and {rest} more.");
    }
    if message.left_out > 0 {
        let _ = writeln!(
            out,
            "{} earlier alarms were left out: too many waited.",
            message.left_out
        );
    }
    let _ = write!(
        out,
        "\nGateway {gateway}. Acknowledge with `sparkgate alarms ack ID` or on its page.\n"
    );
    out
}

fn line(entry: &Entry) -> String {
    let what = match (
        entry.events.first().map(AsRef::as_ref),
        entry.events.last().map(AsRef::as_ref),
    ) {
        (Some("raise"), Some("clear")) => "raised and cleared",
        (_, Some("clear")) => "cleared",
        _ => "raised",
    };
    format!(
        "{} {what}: {}",
        entry.alarm.priority.as_str().to_uppercase(),
        entry.alarm.message
    )
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most).chain(['…']).collect()
}

/// Everything, for programs.
#[must_use]
pub fn object(gateway: &str, id: &str, message: &Message) -> Value {
    let alarms: Vec<Value> = message
        .entries
        .iter()
        .map(|entry| {
            let mut alarm = Value::clone(&entry.alarm.body);
            if let Some(object) = alarm.as_object_mut() {
                let events = entry
                    .events
                    .iter()
                    .map(AsRef::as_ref)
                    .collect::<Vec<&str>>();
                object.insert("events".to_owned(), json!(events));
                object.insert("source".to_owned(), json!(entry.alarm.source.as_ref()));
                object.insert("record".to_owned(), json!(entry.alarm.record));
            }
            alarm
        })
        .collect();
    json!({
        "gateway": gateway,
        "id": id,
        "text": subject(gateway, message),
        "alarms": alarms,
        "left_out": message.left_out,
    })
}
