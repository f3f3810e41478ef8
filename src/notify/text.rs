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
            "{} earlier alarms were left out: too many waited, or they left the disk unread.",
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::core::Alarm;
    use super::*;
    use rules::Priority;

    fn entry(id: &str, message: &str, events: &[&str]) -> Entry {
        let events: Vec<Arc<str>> = events.iter().map(|event| Arc::from(*event)).collect();
        Entry {
            alarm: Alarm {
                record: 7,
                id: id.into(),
                event: events.last().unwrap().clone(),
                priority: Priority::High,
                source: "g/n/d".into(),
                message: message.into(),
                body: Arc::new(json!({"id": id, "rule": "r", "version": "1"})),
            },
            events,
        }
    }

    #[test]
    fn a_subject_is_one_short_line_whatever_a_device_writes() {
        let check = |entries: Vec<Entry>, expected: &str| {
            let message = Message {
                span: (7, 7),
                entries,
                left_out: 0,
            };
            assert_eq!(subject("gw", &message), expected);
        };
        check(
            vec![entry("a", "95 °C", &["raise"])],
            "[gw] HIGH raised: 95 °C",
        );
        check(
            vec![entry("a", "95", &["raise", "clear"])],
            "[gw] HIGH raised and cleared: 95",
        );
        check(vec![entry("a", "95", &["clear"])], "[gw] HIGH cleared: 95");
        check(
            vec![
                entry("a", "x\r\nBcc: you@example.com", &["raise"]),
                entry("b", "y", &["raise"]),
            ],
            "[gw] 2 alarms: HIGH raised: x  Bcc: you@example.com and 1 more",
        );
        let long = subject(
            "gw",
            &Message {
                span: (7, 7),
                entries: vec![entry("a", &"x".repeat(900), &["raise"])],
                left_out: 0,
            },
        );
        assert_eq!(long.chars().count(), 156);
    }

    #[test]
    fn a_body_counts_what_it_leaves_out() {
        let entries = (0..60)
            .map(|n| entry(&format!("a{n}"), "m", &["raise"]))
            .collect();
        let message = Message {
            span: (7, 7),
            entries,
            left_out: 3,
        };
        let body = body("gw", &message);
        assert_eq!(body.matches("HIGH raised").count(), MOST_LINES);
        assert!(
            body.contains("and 10 more") && body.contains("3 earlier alarms were left out"),
            "{body}"
        );
        let object = object("gw", "id", &message);
        assert_eq!(object["alarms"].as_array().unwrap().len(), 60);
        assert_eq!(object["alarms"][0]["source"], "g/n/d");
    }
}
