//! Scenario files: when which nodes misbehave, and how.
//!
//! ```toml
//! [[fault]]
//! at = "5s"            # after the start
//! for = "10s"          # how long; left out for what happens once
//! node = "node-1*"     # glob, default *
//! kind = "drop"
//! share = 0.2          # of the messages; for drop, duplicate, reorder, corrupt
//! ```

use std::path::Path;

use serde::Deserialize;

use crate::codec::BdseqType;

/// A scenario.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What happens, in any order.
    #[serde(default, rename = "fault")]
    pub faults: Vec<Fault>,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When, ms after the start.
    #[serde(deserialize_with = "duration")]
    pub at: u64,
    /// How long, ms; `None`: to the end, or once.
    #[serde(default, rename = "for", deserialize_with = "some_duration")]
    pub period: Option<u64>,
    /// Which nodes, a glob.
    #[serde(default = "all")]
    pub node: String,
    /// Which devices, for `set` and `device-death`; a glob.
    #[serde(default = "all")]
    pub device: String,
    /// What.
    pub kind: Kind,
    /// Share of messages.
    #[serde(default)]
    pub share: Option<f64>,
    /// Clock skew, ms.
    #[serde(default, deserialize_with = "some_signed")]
    pub skew: Option<i64>,
    /// For `delay`, `late-message` and `slow-rebirth`, ms.
    #[serde(default, deserialize_with = "some_duration")]
    pub delay: Option<u64>,
    /// Metric for `set`.
    #[serde(default)]
    pub metric: Option<String>,
    /// For `clone`: with the node's client id.
    #[serde(default, rename = "take-over")]
    pub take_over: bool,
    /// Value for `set`, `bdseq-type` and `first-seq`.
    #[serde(default)]
    pub value: Option<toml::Value>,
}

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Messages come later by `delay`, in order.
    Delay,
    /// Messages are lost.
    Drop,
    /// Messages come twice.
    Duplicate,
    /// Messages change places.
    Reorder,
    /// A byte of the payload is wrong.
    Corrupt,
    /// The TCP connection breaks without DISCONNECT, so that the will is sent; the node connects again.
    Flap,
    /// All timestamps are off by `skew`.
    ClockSkew,
    /// One `seq` is left out.
    SkipSeq,
    /// Births are retained (trap 31).
    RetainBirths,
    /// The will's `bdSeq` is not the birth's (traps 7 to 9).
    WrongBdseq,
    /// Data with an alias that no birth gave (trap 18).
    UnknownAlias,
    /// Data before the births, at the next connection (trap 18).
    DataBeforeBirth,
    /// Data is kept back for `for`, then goes out at once as historical: many samples of one metric in a message.
    Historical,
    /// Rebirth requests are not answered.
    IgnoreRebirth,
    /// A rebirth begins with an NDEATH, as if the connection had gone, from now on.
    RebirthDeath,
    /// The devices that `device` covers die, each with a DDEATH; with `for`, they are born again after it.
    DeviceDeath,
    /// A rebirth is a new connection (trap 19).
    ReconnectRebirth,
    /// A rebirth raises `bdSeq` (traps 7 and 19).
    RaiseBdseq,
    /// A rebirth leaves the first device out (trap 13).
    ForgetDevice,
    /// Births come `delay` after the request for them, and data goes on in between (trap 20).
    SlowRebirth,
    /// `bdSeq` does not count connections (trap 7).
    StuckBdseq,
    /// `bdSeq` is written as `value` says: `UInt64`, `UInt8`, `untyped` or `absent` (traps 8 and 9).
    BdseqType,
    /// A node that leaves with its death also lets its will be sent (traps 9 and 11).
    DoubleDeath,
    /// Each device counts its own `seq` (trap 14).
    SeqPerDevice,
    /// Births begin with `seq` = `value` (trap 15).
    FirstSeq,
    /// Zeros are not on the wire (trap 16).
    Proto3,
    /// One data message comes `delay` late, behind others (trap 17).
    LateMessage,
    /// Nothing is said.
    Silence,
    /// A second client with the same identity speaks too (trap 12), for 3 s or as `for` says; it has a client id of its
    /// own, or the node's, which takes the node's session over, with `take-over = true`.
    Clone,
    /// The node connects again under another client id while its old socket stays open, for 2 s or as `for` says: the
    /// old will, with the old `bdSeq`, comes after the new births.
    LateWill,
    /// A metric stays at a value.
    Set,
    /// The node leaves on purpose, with its death, and stays away: to the end, or as long as `for` says.
    Stop,
}

/// Why a scenario can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file can't be read.
    #[error("{file}: {source}")]
    Read {
        /// Which.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is no scenario.
    #[error("{file}:{line}:{column}: {message}")]
    Parse {
        /// Which file.
        file: String,
        /// 1-based line.
        line: usize,
        /// 1-based column.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// An entry lacks what its kind needs.
    #[error("{file}: fault {number} ({kind:?}) needs `{needs}`")]
    Incomplete {
        /// Which file.
        file: String,
        /// 1-based number of the entry.
        number: usize,
        /// Its kind.
        kind: Kind,
        /// The missing key.
        needs: &'static str,
    },
}

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ScenarioError::Read {
            file: file.clone(),
            source,
        })?;
        Self::parse(&file, &text)
    }

    /// Reads a text; `file` is for messages.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let before = text.get(..at).unwrap_or("");
            ScenarioError::Parse {
                file: file.to_owned(),
                line: before.matches('\n').count() + 1,
                column: before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1,
                message: error.message().to_owned(),
            }
        })?;
        for (index, fault) in scenario.faults.iter().enumerate() {
            let needs = match fault.kind {
                Kind::Drop | Kind::Duplicate | Kind::Reorder | Kind::Corrupt
                    if fault.share.is_none() =>
                {
                    "share"
                }
                Kind::Delay | Kind::LateMessage | Kind::SlowRebirth if fault.delay.is_none() => {
                    "delay"
                }
                Kind::BdseqType if bdseq_type(fault.value.as_ref()).is_none() => {
                    "value = \"UInt64\", \"UInt8\", \"untyped\" or \"absent\""
                }
                Kind::FirstSeq if first_seq(fault.value.as_ref()).is_none() => "value = 0 to 255",
                Kind::Historical if fault.period.is_none() => "for",
                Kind::ClockSkew if fault.skew.is_none() => "skew",
                Kind::Set if fault.metric.is_none() => "metric",
                Kind::Set if fault.value.is_none() => "value",
                _ => continue,
            };
            return Err(ScenarioError::Incomplete {
                file: file.to_owned(),
                number: index + 1,
                kind: fault.kind,
                needs,
            });
        }
        Ok(scenario)
    }
}

/// The `bdSeq` form that an entry names.
#[must_use]
pub fn bdseq_type(value: Option<&toml::Value>) -> Option<BdseqType> {
    match value?.as_str()? {
        "UInt64" => Some(BdseqType::UInt64),
        "UInt8" => Some(BdseqType::UInt8),
        "untyped" => Some(BdseqType::Untyped),
        "absent" => Some(BdseqType::Absent),
        _ => None,
    }
}

/// The first `seq` that an entry names.
#[must_use]
pub fn first_seq(value: Option<&toml::Value>) -> Option<u8> {
    u8::try_from(value?.as_integer()?).ok()
}

/// Whether a glob of `*` and text covers a name.
#[must_use]
pub fn covers(glob: &str, name: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(first) = parts.next() else {
        return name.is_empty();
    };
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or(""),
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn all() -> String {
    "*".to_owned()
}

fn parse_ms(text: &str) -> Result<u64, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is no duration; write for example \"5s\""))?;
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(format!("`{text}` has no unit; write for example \"5s\"")),
    };
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("`{text}` is too long"))
}

fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    parse_ms(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

fn some_duration<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    duration(deserializer).map(Some)
}

fn some_signed<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let (sign, size) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.as_str()),
    };
    let ms = parse_ms(size).map_err(serde::de::Error::custom)?;
    Ok(Some(sign * i64::try_from(ms).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_reads() {
        let scenario = Scenario::parse(
            "x.toml",
            "[[fault]]\nat = \"5s\"\nfor = \"10s\"\nnode = \"node-1*\"\nkind = \"drop\"\nshare = 0.2\n[[fault]]\nat = \"1m\"\nkind = \"clock-skew\"\nskew = \"-2h\"\n",
        )
        .unwrap();
        assert_eq!(
            (scenario.faults[0].at, scenario.faults[0].period),
            (5_000, Some(10_000))
        );
        assert_eq!(scenario.faults[1].skew, Some(-7_200_000));
    }

    #[test]
    fn mistakes_have_a_place_and_a_remedy() {
        for (text, shown) in [
            ("[[fault]]\nat = 5\nkind = \"flap\"\n", "x.toml:2:6"),
            (
                "[[fault]]\nat = \"5\"\nkind = \"flap\"\n",
                "`5` has no unit",
            ),
            ("[[fault]]\nat = \"5s\"\nkind = \"flop\"\n", "x.toml:3:8"),
            (
                "[[fault]]\nat = \"5s\"\nkind = \"drop\"\n",
                "fault 1 (Drop) needs `share`",
            ),
            (
                "[[fault]]\nat = \"5s\"\nkind = \"flap\"\nwhen = 1\n",
                "x.toml:4:1",
            ),
        ] {
            let error = Scenario::parse("x.toml", text).unwrap_err().to_string();
            assert!(error.contains(shown), "{error}");
        }
    }

    #[test]
    fn globs() {
        for (glob, name, fine) in [
            ("*", "a", true),
            ("node-1*", "node-12", true),
            ("node-1*", "node-2", false),
            ("a*b*c", "axxbyyc", true),
            ("a", "ab", false),
            ("*z", "abz", true),
        ] {
            assert_eq!(covers(glob, name), fine, "{glob} {name}");
        }
    }

    #[test]
    fn the_shipped_scenarios_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut read = 0;
        for folder in [folder.join("traps"), folder] {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    let scenario = Scenario::read(&path).unwrap();
                    assert!(!scenario.faults.is_empty(), "{}", path.display());
                    read += 1;
                }
            }
        }
        assert!(read >= 10, "{read}");
    }

    #[test]
    fn every_trap_of_a_session_can_be_played() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/traps");
        let mut played = std::collections::BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let head = text.lines().next().unwrap();
            let Some((numbers, _)) = head.trim_start_matches("# Trap").split_once(':') else {
                continue;
            };
            let numbers: Vec<u32> = numbers
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|it| it.parse().ok())
                .collect();
            match (
                numbers[..].first(),
                numbers.last(),
                numbers_mean_range(head),
            ) {
                (Some(first), Some(last), true) => played.extend(*first..=*last),
                _ => played.extend(numbers),
            }
        }
        let missing: Vec<u32> = (7..=20).filter(|trap| !played.contains(trap)).collect();
        assert!(missing.is_empty(), "no scenario plays {missing:?}");
    }

    fn numbers_mean_range(head: &str) -> bool {
        head.split(':').next().is_some_and(|it| it.contains(" to "))
    }
}
