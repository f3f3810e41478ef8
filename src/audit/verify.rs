//! Looks for removed and altered entries.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::log::files;
use super::{BadLine, Head, parse};

/// Problems that are told one by one; the rest is counted.
const MOST_PROBLEMS: usize = 100;

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Problem {
    /// A line that is no entry.
    Unreadable {
        /// File name.
        file: String,
        /// Line, from 1.
        line: usize,
    },
    /// An entry whose bytes do not fit its hash.
    Altered {
        /// File name.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The number it gives.
        seq: u64,
    },
    /// Entries that are not there.
    Missing {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// An entry that does not follow on the one before it: one of both was exchanged.
    Unchained {
        /// File name.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Its number.
        seq: u64,
    },
    /// The newest entry that the gateway knows is not there or another one.
    Tail {
        /// Its number.
        seq: u64,
        /// Its hash.
        hash: String,
    },
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable { file, line } => write!(f, "{file}:{line}: not an entry"),
            Self::Altered { file, line, seq } => {
                write!(f, "{file}:{line}: entry {seq} was altered")
            }
            Self::Missing { from, to } if from == to => write!(f, "entry {from} was removed"),
            Self::Missing { from, to } => write!(f, "entries {from} to {to} were removed"),
            Self::Unchained { file, line, seq } => {
                write!(
                    f,
                    "{file}:{line}: entry {seq} does not follow on the one before it"
                )
            }
            Self::Tail { seq, hash } => write!(
                f,
                "the end of the log was removed or exchanged: the gateway wrote entry {seq} with hash {hash}"
            ),
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Good entries.
    pub entries: u64,
    /// Number of the first entry, 0 for none.
    pub first: u64,
    /// Number of the last entry, 0 for none.
    pub last: u64,
    /// Hash of the last entry.
    pub hash: String,
    /// A last line that a crash tore; the gateway cuts it at its next start.
    pub torn: bool,
    /// All that is wrong, the first hundred.
    pub problems: Vec<Problem>,
    /// How many there are.
    pub problem_count: u64,
}

impl Report {
    fn add(&mut self, problem: Problem) {
        self.problem_count += 1;
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

/// Checks all files of a folder against their own chain and against `head`, the newest entry that the gateway knows.
///
/// # Errors
/// A file can't be read.
pub fn verify(folder: &Path, head: Option<&Head>) -> io::Result<Report> {
    let mut report = Report {
        hash: Head::default().hash,
        ..Report::default()
    };
    // Trim entries vouch for what went before: number and hash of the last entry removed.
    let mut vouched: BTreeMap<u64, String> = BTreeMap::new();
    let mut start: Option<(u64, String)> = None;
    let mut head_found = head.is_none_or(|head| head.seq == 0);
    let all = files(folder)?;
    for path in &all {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let bytes = std::fs::read(path)?;
        let mut lines = bytes.split(|byte| *byte == b'\n').enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            let at = index + 1;
            if lines.peek().is_none() {
                // Behind the last line feed: nothing, or what a crash tore.
                report.torn |= !line.is_empty() && Some(path) == all.last();
                if !line.is_empty() && Some(path) != all.last() {
                    report.add(Problem::Unreadable {
                        file: name.clone(),
                        line: at,
                    });
                }
                break;
            }
            let stored = match parse(line) {
                Ok(stored) => stored,
                Err(BadLine::Unreadable) => {
                    report.add(Problem::Unreadable {
                        file: name.clone(),
                        line: at,
                    });
                    continue;
                }
                Err(BadLine::Altered(seq)) => {
                    report.add(Problem::Altered {
                        file: name.clone(),
                        line: at,
                        seq,
                    });
                    continue;
                }
            };
            if start.is_none() {
                start = Some((stored.seq, stored.prev.clone()));
                report.first = stored.seq;
            } else if stored.seq > report.last + 1 {
                report.add(Problem::Missing {
                    from: report.last + 1,
                    to: stored.seq - 1,
                });
            } else if stored.seq != report.last + 1 || stored.prev != report.hash {
                report.add(Problem::Unchained {
                    file: name.clone(),
                    line: at,
                    seq: stored.seq,
                });
            }
            if stored.what == "trim"
                && let (Some(seq), Some(hash)) = (
                    stored
                        .body
                        .get("removed_to")
                        .and_then(serde_json::Value::as_u64),
                    stored.body.get("hash").and_then(serde_json::Value::as_str),
                )
            {
                vouched.insert(seq, hash.to_owned());
            }
            head_found |=
                head.is_some_and(|head| head.seq == stored.seq && head.hash == stored.hash);
            report.entries += 1;
            report.last = report.last.max(stored.seq);
            report.hash = stored.hash;
        }
    }
    if let Some((first, prev)) = start {
        let whole = first == 1 && prev == Head::default().hash;
        if !whole && vouched.get(&(first - 1)) != Some(&prev) {
            let from = vouched.keys().next_back().map_or(1, |seq| seq + 1);
            report.add(Problem::Missing {
                from: from.min(first - 1),
                to: first - 1,
            });
        }
    }
    if let Some(head) = head.filter(|_| !head_found) {
        report.add(Problem::Tail {
            seq: head.seq,
            hash: head.hash.clone(),
        });
    }
    Ok(report)
}
