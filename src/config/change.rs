//! What a changed file changes: the keys that differ, which of them a reload takes, and which wait for a restart.
//!
//! One list, `LIVE`, says what a reload takes. The gateway is reconfigured from [`take`]'s result and from nothing
//! else, so that a key that is not in the list can't be in force by accident, and what is shown as in force is.

use serde::Serialize;
use toml::{Table, Value};

use super::Config;

/// Keys, or tables of keys, that a reload takes. What a table of a listener is needed for (`mqtt.tls`) is taken only
/// where that table was there at the start.
const LIVE: [&str; 24] = [
    "admin.token_file",
    "host.rebirth",
    "host.reorder_timeout",
    "mqtt.acl_file",
    "mqtt.anonymous",
    "mqtt.command_senders",
    "mqtt.tls.cert",
    "mqtt.tls.client_ca",
    "mqtt.tls.crl",
    "mqtt.tls.key",
    "mqtt.users_file",
    "notify",
    "rules.dry_run",
    "rules.paths",
    "rules.use_shipped",
    "rules.watch",
    "writes.confirm_timeout",
    "writes.default",
    "writes.hold_off",
    "writes.max_per_second",
    "writes.policy",
    "writes.read_only",
    "writes.undo_patience",
    "log.filter",
];

/// One key that differs between two configurations. Secrets in values are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Dotted, as in the file; entries of lists of tables by their place: `notify.webhook[0].url`.
    pub key: String,
    /// The value before, as TOML; `None`: it was not there.
    pub from: Option<String>,
    /// The value after.
    pub to: Option<String>,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(
            f,
            "{} from {} to {}",
            self.key,
            side(&self.from),
            side(&self.to)
        )
    }
}

/// The keys that differ, in order of name within each section.
#[must_use]
pub fn between(before: &Config, after: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    compare("", Some(&table(before)), Some(&table(after)), &mut changes);
    changes
}

/// `running` with everything of `fresh` that needs no restart.
#[must_use]
pub fn take(running: &Config, fresh: &Config) -> Config {
    let (mut next, fresh) = (table(running), table(fresh));
    for key in LIVE {
        let (parent, name) = key.rsplit_once('.').unwrap_or(("", key));
        let wanted = at(&fresh, parent).and_then(Value::as_table);
        if let (Some(wanted), Some(Value::Table(there))) = (wanted, at_mut(&mut next, parent)) {
            match wanted.get(name) {
                Some(value) => there.insert(name.to_owned(), value.clone()),
                None => there.remove(name),
            };
        }
    }
    // A configuration that was read comes out of its own text again; see the test.
    next.try_into().unwrap_or_else(|_| running.clone())
}

/// SHA-256 of a configuration, hex: what runs can be compared with a file, or with another gateway.
#[must_use]
pub fn hash(config: &Config) -> String {
    use sha2::Digest;
    let text = toml::to_string(config).unwrap_or_default();
    let digest = sha2::Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn table(config: &Config) -> Value {
    Value::try_from(config).unwrap_or_else(|_| Value::Table(Table::new()))
}

fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .filter(|part| !part.is_empty())
        .try_fold(value, |value, part| value.get(part))
}

fn at_mut<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.')
        .filter(|part| !part.is_empty())
        .try_fold(value, |value, part| value.get_mut(part))
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, out: &mut Vec<Change>) {
    if before == after {
        return;
    }
    let tables = |value: Option<&Value>| match value {
        None => Some(Table::new()),
        Some(value) => value.as_table().cloned(),
    };
    if let (Some(old), Some(new)) = (tables(before), tables(after)) {
        let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            compare(&below(path, key), old.get(key), new.get(key), out);
        }
        return;
    }
    let lists = |value: Option<&Value>| match value {
        None => Some(Vec::new()),
        Some(Value::Array(items)) if items.iter().all(Value::is_table) => Some(items.clone()),
        Some(_) => None,
    };
    if let (Some(old), Some(new)) = (lists(before), lists(after)) {
        for i in 0..old.len().max(new.len()) {
            compare(&format!("{path}[{i}]"), old.get(i), new.get(i), out);
        }
        return;
    }
    let shown = |value: Option<&Value>| {
        value.map(|value| {
            let mut value = value.clone();
            redact(path, &mut value);
            value.to_string()
        })
    };
    out.push(Change {
        key: path.to_owned(),
        from: shown(before),
        to: shown(after),
    });
}

/// Calls `each` with every key that is no table, and its value.
pub fn leaves(path: &str, value: &Value, each: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                leaves(&below(path, key), value, each);
            }
        }
        other => each(path, other),
    }
}

fn below(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}

/// Takes secrets out of values: who logs in by a URL, and the path of a web hook, which at many services is the secret
/// itself. Everything else that is secret lies in files of its own.
pub fn redact(path: &str, value: &mut Value) {
    match value {
        Value::String(text) => {
            let Some((scheme, rest)) = text.split_once("://") else {
                return;
            };
            let (authority, below) = match rest.find(['/', '?', '#']) {
                Some(end) => rest.split_at(end),
                None => (rest, ""),
            };
            let (login, host) = match authority.rsplit_once('@') {
                Some((_, host)) => ("…@", host),
                None => ("", authority),
            };
            let below = if path.starts_with("notify.webhook") && below.len() > 1 {
                "/…"
            } else {
                below
            };
            *text = format!("{scheme}://{login}{host}{below}");
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(path, item)),
        Value::Table(table) => {
            for (key, value) in table.iter_mut() {
                redact(&below(path, key), value);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::Source;

    fn config(more: &str) -> Config {
        let text = format!("[gateway]\nid = \"a\"\n{more}");
        let source = Source {
            file: "a.toml".into(),
            text,
        };
        Config::from_sources(&[source]).unwrap().value
    }

    /// Keys that differ, and of those the ones that wait for a restart.
    fn check(before: &str, after: &str, changed: &[&str], waiting: &[&str]) {
        let keys = |changes: &[Change]| -> Vec<String> {
            changes.iter().map(|change| change.key.clone()).collect()
        };
        let (before, after) = (config(before), config(after));
        assert_eq!(keys(&between(&before, &after)), changed);
        let in_force = take(&before, &after);
        assert_eq!(keys(&between(&in_force, &after)), waiting, "{changed:?}");
    }

    #[test]
    fn what_a_reload_takes_is_told_from_what_waits() {
        check("", "", &[], &[]);
        check(
            "",
            "[rules]\nuse_shipped = [\"*\"]\n[buffer]\nhot = { ttl = \"5s\", max = \"1MiB\" }\n",
            &["buffer.hot.max", "buffer.hot.ttl", "rules.use_shipped"],
            &["buffer.hot.max", "buffer.hot.ttl"],
        );
        let hook = "[[notify.webhook]]\nname = \"w\"\nurl = \"https://hooks.example/T0/secret\"\n";
        check(
            "",
            hook,
            &[
                "notify.webhook[0].clears",
                "notify.webhook[0].format",
                "notify.webhook[0].min_priority",
                "notify.webhook[0].name",
                "notify.webhook[0].url",
            ],
            &[],
        );
        check(
            "[bridge]\nurls = [\"nats://a\"]\n",
            "[bridge]\nurls = [\"nats://b\"]\n",
            &["bridge.urls"],
            &["bridge.urls"],
        );
        check(
            "[admin]\ntoken_file = \"/a\"\n",
            "",
            &["admin.token_file"],
            &[],
        );
    }

    #[test]
    fn a_certificate_is_taken_only_where_a_listener_uses_one() {
        let tls = |cert: &str| {
            format!("[mqtt.tls]\nlisten = [\"127.0.0.1:8883\"]\ncert = \"{cert}\"\nkey = \"/k\"\n")
        };
        check(&tls("/a"), &tls("/b"), &["mqtt.tls.cert"], &[]);
        let all = ["mqtt.tls.cert", "mqtt.tls.key", "mqtt.tls.listen"];
        check("", &tls("/a"), &all, &all);
        check(&tls("/a"), "", &all, &all);
    }

    #[test]
    fn values_come_without_secrets() {
        for (path, value, expected) in [
            ("bridge.urls", "nats://me:secret@a:4222", "nats://…@a:4222"),
            ("bridge.urls", "nats://a:4222", "nats://a:4222"),
            (
                "buffer.cold.url",
                "s3://bucket/prefix",
                "s3://bucket/prefix",
            ),
            (
                "notify.webhook[0].url",
                "https://hooks.example/T0/secret",
                "https://hooks.example/…",
            ),
            (
                "notify.webhook.url",
                "https://hooks.example?token=secret",
                "https://hooks.example/…",
            ),
            ("log.filter", "info", "info"),
        ] {
            let mut value = Value::String(value.to_owned());
            redact(path, &mut value);
            assert_eq!(value.as_str(), Some(expected), "{path}");
        }
    }

    #[test]
    fn the_example_with_all_its_keys_survives_the_way_through_a_table() {
        let text = include_str!("../../examples/sparkgate.toml").to_owned();
        let source = Source {
            file: "a.toml".into(),
            text,
        };
        let config = Config::from_sources(&[source]).unwrap().value;
        assert_eq!(between(&take(&config, &config), &config), []);
        let mut other = config.clone();
        other.writes.policy.push(crate::config::WritePolicy {
            matches: crate::config::WriteMatch::default(),
            allow: false,
            min: Some(-1.5),
            max: None,
        });
        assert_eq!(take(&config, &other).writes.policy, other.writes.policy);
    }
}
