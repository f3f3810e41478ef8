//! The lanes' streams: what they are declared as, what the server has, and the requests between the two.
//!
//! Requests to the JetStream API are written as JSON here instead of through the client's types: servers from
//! 2.9 to today take the same few fields, and fields that this gateway does not know survive an update.

use serde_json::{Map, Value, json};

use super::config::{Config, Durability};
use crate::buffer::record::{Class, Lane};
use crate::pipeline::subject::ROOT;

/// How long a message id is remembered: more than any round trip, little enough to stay cheap.
const DUPLICATE_WINDOW_NS: u64 = 120_000_000_000;
/// Every class, in the order of the contract.
const CLASSES: [Class; 11] = [
    Class::Data,
    Class::Birth,
    Class::Death,
    Class::Schema,
    Class::Inference,
    Class::Embedding,
    Class::Gap,
    Class::Status,
    Class::Raw,
    Class::Alarm,
    Class::Command,
];

/// A stream as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// `SPARKGATE_<gateway>` or `SPARKGATE_<gateway>_ALARMS`.
    pub name: String,
    /// Subjects of just the lane's classes.
    pub subjects: Vec<String>,
    /// Replicas.
    pub replicas: u8,
    /// Bound in bytes; `None`: the server's.
    pub max_bytes: Option<u64>,
    /// Whether atomic batches must be allowed.
    pub atomic: bool,
}

/// One way in which a stream is not as declared.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The field of the stream's configuration.
    pub field: &'static str,
    /// What is there.
    pub actual: Value,
    /// What should be.
    pub declared: Value,
    /// Whether records may be lost, doubled or refused because of it.
    pub unsafe_now: bool,
}

/// Name of the stream of `lane`.
#[must_use]
pub fn name(gateway: &str, lane: Lane) -> String {
    match lane {
        Lane::Data => format!("SPARKGATE_{gateway}"),
        Lane::Alarms => format!("SPARKGATE_{gateway}_ALARMS"),
    }
}

/// The classes that go to the stream of `lane`.
pub(super) fn classes(lane: Lane) -> impl Iterator<Item = Class> {
    CLASSES
        .into_iter()
        .filter(move |class| class.lane() == lane)
}

impl Declared {
    /// The stream of `lane` by the configuration.
    #[must_use]
    pub fn of(config: &Config, gateway: &str, lane: Lane) -> Self {
        let class = |class: Class| format!("{ROOT}.{gateway}.{}.>", class.as_str());
        Self {
            name: name(gateway, lane),
            subjects: classes(lane).map(class).collect(),
            replicas: config.replicas,
            max_bytes: config.max_bytes.map(|bytes| bytes.0),
            atomic: config.durability == Durability::Strict,
        }
    }

    /// The request that creates it.
    #[must_use]
    pub fn create(&self) -> Value {
        let mut config = json!({
            "name": self.name,
            "description": "sparkgate: written by one gateway only",
            "subjects": self.subjects,
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": self.max_bytes.map_or(Value::from(-1), Value::from),
            "max_age": 0,
            "max_msg_size": -1,
            "num_replicas": self.replicas,
            "duplicate_window": DUPLICATE_WINDOW_NS,
            "allow_direct": true,
        });
        if let Some(config) = config.as_object_mut().filter(|_| self.atomic) {
            config.insert("allow_atomic".to_owned(), Value::Bool(true));
        }
        config
    }

    /// The request that makes `actual` (the server's `config`) as declared, all else kept; `None` when it is.
    /// Only what is written in the configuration is changed: a bound that an operator chose stays.
    #[must_use]
    pub fn update(&self, actual: &Value) -> Option<Value> {
        let mut config: Map<String, Value> = actual.as_object()?.clone();
        let before = config.clone();
        let mut set = |field: &str, value: Value| {
            if config.get(field) != Some(&value) {
                config.insert(field.to_owned(), value);
            }
        };
        if !same_subjects(actual, &self.subjects) {
            set("subjects", json!(self.subjects));
        }
        set("discard", json!("new"));
        set("num_replicas", json!(self.replicas));
        if let Some(bytes) = self.max_bytes {
            set("max_bytes", json!(bytes));
        }
        if self.atomic {
            set("allow_atomic", json!(true));
        }
        (config != before).then_some(Value::Object(config))
    }

    /// How `actual` (the server's `config`) differs.
    #[must_use]
    pub fn differences(&self, actual: &Value) -> Vec<Difference> {
        let mut differences = Vec::new();
        let mut expect = |field: &'static str, declared: Value, unsafe_now: bool| {
            let actual = actual.get(field).cloned().unwrap_or(Value::Null);
            if actual != declared {
                differences.push(Difference {
                    field,
                    actual,
                    declared,
                    unsafe_now,
                });
            }
        };
        if !same_subjects(actual, &self.subjects) {
            expect("subjects", json!(self.subjects), true);
        }
        expect("discard", json!("new"), true);
        expect("retention", json!("limits"), true);
        expect("storage", json!("file"), true);
        expect("num_replicas", json!(self.replicas), false);
        if let Some(bytes) = self.max_bytes {
            expect("max_bytes", json!(bytes), false);
        }
        if self.atomic {
            expect("allow_atomic", json!(true), true);
        }
        for field in ["no_ack", "sealed", "allow_rollup_hdrs"] {
            if actual.get(field) == Some(&Value::Bool(true)) {
                expect(field, json!(false), field != "allow_rollup_hdrs");
            }
        }
        let window = actual.get("duplicate_window").and_then(Value::as_u64);
        if window.is_some_and(|ns| ns < DUPLICATE_WINDOW_NS) {
            expect("duplicate_window", json!(DUPLICATE_WINDOW_NS), false);
        }
        for field in ["mirror", "sources", "subject_transform"] {
            // One writer: whatever else flows in breaks the predicted sequence.
            if actual.get(field).is_some_and(|value| !value.is_null()) {
                expect(field, Value::Null, true);
            }
        }
        differences
    }

    /// The `nats` command that creates it.
    #[must_use]
    pub fn create_command(&self) -> String {
        format!(
            "nats stream add {} --subjects '{}' --storage file --retention limits --discard new \
             --replicas {} --max-bytes={} --max-msgs=-1 --max-age=0 --max-msg-size=-1 --dupe-window 2m \
             --allow-direct{} --defaults",
            self.name,
            self.subjects.join(","),
            self.replicas,
            self.max_bytes
                .map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string()),
            if self.atomic { " --allow-batch" } else { "" },
        )
    }

    /// The `nats` command that mends a difference.
    #[must_use]
    pub fn mend_command(&self, difference: &Difference) -> String {
        let edit = |flags: String| format!("nats stream edit {} {flags} --force", self.name);
        match difference.field {
            "subjects" => edit(format!("--subjects '{}'", self.subjects.join(","))),
            "discard" => edit("--discard new".to_owned()),
            "num_replicas" => edit(format!("--replicas {}", self.replicas)),
            "max_bytes" => edit(format!(
                "--max-bytes {}",
                self.max_bytes.unwrap_or_default()
            )),
            "allow_atomic" => edit("--allow-batch".to_owned()),
            "duplicate_window" => edit("--dupe-window 2m".to_owned()),
            "allow_rollup_hdrs" => edit("--no-allow-rollup".to_owned()),
            // Fixed when a stream is made.
            _ => format!(
                "nats stream backup {0} ./{0} && nats stream rm {0} --force && {1}",
                self.name,
                self.create_command()
            ),
        }
    }
}

fn same_subjects(actual: &Value, declared: &[String]) -> bool {
    let mut there: Vec<&str> = actual
        .get("subjects")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let mut wanted: Vec<&str> = declared.iter().map(String::as_str).collect();
    there.sort_unstable();
    wanted.sort_unstable();
    there == wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::quantity::ByteSize;

    fn declared(lane: Lane) -> Declared {
        let config = Config {
            max_bytes: Some(ByteSize(1 << 30)),
            ..Config::default()
        };
        Declared::of(&config, "site-a", lane)
    }

    #[test]
    fn streams_take_just_their_lanes_classes() {
        let alarms = declared(Lane::Alarms);
        assert_eq!(alarms.name, "SPARKGATE_site-a_ALARMS");
        assert_eq!(
            alarms.subjects,
            ["sparkgate.site-a.alarm.>", "sparkgate.site-a.command.>"]
        );
        let data = declared(Lane::Data);
        assert_eq!(data.name, "SPARKGATE_site-a");
        assert_eq!(data.subjects.len(), 9);
    }

    #[test]
    fn what_was_created_is_as_declared() {
        let data = declared(Lane::Data);
        let actual = data.create();
        assert_eq!(data.differences(&actual), []);
        assert_eq!(data.update(&actual), None);
    }

    #[test]
    fn an_update_keeps_what_it_does_not_know() {
        let data = declared(Lane::Data);
        let mut actual = data.create();
        actual["metadata"] = json!({"owner": "ops"});
        actual["max_age"] = json!(5);
        actual["max_bytes"] = json!(7);
        actual["discard"] = json!("old");
        let update = data.update(&actual).unwrap();
        assert_eq!(update["metadata"]["owner"], "ops");
        assert_eq!(update["max_age"], 5);
        assert_eq!(update["max_bytes"], 1u64 << 30);
        let differences = data.differences(&actual);
        let fields: Vec<_> = differences.iter().map(|d| d.field).collect();
        assert_eq!(fields, ["discard", "max_bytes"]);
        assert!(differences[0].unsafe_now);
        assert!(data.mend_command(&differences[0]).contains("--discard new"));
    }

    #[test]
    fn a_bound_that_is_not_configured_is_the_operators() {
        let data = Declared::of(&Config::default(), "site-a", Lane::Data);
        let mut actual = data.create();
        actual["max_bytes"] = json!(123);
        assert_eq!(data.update(&actual), None);
        assert_eq!(data.differences(&actual), []);
    }
}
