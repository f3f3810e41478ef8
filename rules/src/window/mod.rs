//! Windows over the values of one metric of one key.
//!
//! A window's time is the rule's: engine time, or event time behind the watermark. Tumbling and
//! hopping windows begin at multiples of their step since 0 of that time; in engine time they are
//! put out by timer, empty ones too while the device lives, so that "nothing came" can be a
//! condition. A sliding window is put out at each sample; when its samples grow old, only its
//! condition is looked at again. A session ends when nothing came for its gap.

mod acc;
mod panes;
mod sliding;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

pub(crate) use acc::{Acc, Item};

use panes::Panes;
use sliding::Queue;

use crate::lang::def::WindowKind;
use crate::lang::expr::Aggregate;
use crate::snapshot::{Corrupt, Reader, Writer};
use crate::value::Value;

/// What a window has to say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Emission {
    /// Time it is true for, ms of the rule's clock: end of the window, or the sample.
    pub(crate) ts: i64,
    /// By number of the aggregate.
    pub(crate) results: Vec<Value>,
    /// False when only the condition is to be looked at: samples left a sliding window.
    pub(crate) full: bool,
}

/// How a window is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'d> {
    pub(crate) kind: WindowKind,
    pub(crate) aggregates: &'d [Aggregate],
    /// Empty windows are put out too.
    pub(crate) empty: bool,
    /// How long a window stays open for late samples after its end, ms.
    pub(crate) lateness: u64,
    /// Most samples that are kept.
    pub(crate) most: usize,
}

impl Setting<'_> {
    /// Whether the numbers themselves are needed, not only their sums.
    fn sorted(&self) -> bool {
        let percentile = |a: &Aggregate| matches!(a, Aggregate::Percentile(_));
        self.aggregates.iter().any(percentile)
    }
}

/// What one key remembers of a window rule.
#[derive(Clone, Debug)]
pub(crate) enum Window {
    Panes(Panes),
    Sliding(Queue),
    Session {
        queue: Queue,
    },
    Count {
        queue: Queue,
        /// Samples since the last emission.
        since: u32,
    },
}

impl Window {
    pub(crate) fn new(kind: WindowKind) -> Self {
        match kind {
            WindowKind::Tumbling { .. } | WindowKind::Hopping { .. } => {
                Self::Panes(Panes::default())
            }
            WindowKind::Sliding { .. } => Self::Sliding(Queue::default()),
            WindowKind::Session { .. } => Self::Session {
                queue: Queue::default(),
            },
            WindowKind::Count { .. } => Self::Count {
                queue: Queue::default(),
                since: 0,
            },
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::Panes(panes) => panes.is_idle(),
            Self::Sliding(queue) | Self::Session { queue } => queue.is_empty(),
            Self::Count { queue, since } => queue.is_empty() && *since == 0,
        }
    }

    /// Number of samples or panes that are kept.
    pub(crate) fn held(&self) -> usize {
        match self {
            Self::Panes(panes) => panes.held(),
            Self::Sliding(queue) | Self::Session { queue } | Self::Count { queue, .. } => {
                queue.len()
            }
        }
    }

    /// Takes a sample; returns how many older ones had to go because of the limit.
    pub(crate) fn add(&mut self, set: &Setting<'_>, item: Item, out: &mut Vec<Emission>) -> u64 {
        let ts = item.ts;
        self.advance(set, ts, out);
        let mut gone = 0;
        match (self, set.kind) {
            (Self::Panes(panes), _) => gone = panes.add(set, &item, out),
            (Self::Sliding(queue), _) => {
                queue.push(item);
                while queue.len() > set.most && queue.pop().is_some() {
                    gone += 1;
                }
                out.push(emission(set, queue, ts, true));
            }
            (Self::Session { queue }, _) => {
                queue.push(item);
                while queue.len() > set.most && queue.pop().is_some() {
                    gone += 1;
                }
            }
            (Self::Count { queue, since }, WindowKind::Count { size, every }) => {
                queue.push(item);
                while queue.len() > size as usize {
                    queue.pop();
                }
                *since = since.saturating_add(1);
                if queue.len() == size as usize && *since >= every {
                    *since = 0;
                    out.push(emission(set, queue, ts, true));
                    if every >= size {
                        *queue = Queue::default();
                    }
                }
            }
            (Self::Count { .. }, _) => {}
        }
        gone
    }

    /// Time has come to `ts`: windows that ended are put out.
    pub(crate) fn advance(&mut self, set: &Setting<'_>, ts: i64, out: &mut Vec<Emission>) {
        match (self, set.kind) {
            (Self::Panes(panes), _) => panes.advance(set, ts, out),
            (Self::Sliding(queue), WindowKind::Sliding { size }) => {
                let end = |item: &Item| item.ts.saturating_add_unsigned(size);
                while let Some(at) = queue.front().map(end).filter(|at| *at <= ts) {
                    while queue.front().is_some_and(|item| end(item) <= at) {
                        queue.pop();
                    }
                    out.push(emission(set, queue, at, false));
                }
            }
            (Self::Session { queue }, WindowKind::Session { gap }) => {
                let last = queue.items().last().map(|item| item.ts);
                let end = last.map(|last| last.saturating_add_unsigned(gap));
                if let Some(end) = end.filter(|end| *end <= ts) {
                    out.push(emission(set, queue, end, true));
                    *queue = Queue::default();
                }
            }
            (Self::Sliding(_) | Self::Session { .. } | Self::Count { .. }, _) => {}
        }
    }

    /// When [`advance`](Self::advance) does something next, ms of the rule's clock.
    pub(crate) fn deadline(&self, set: &Setting<'_>) -> Option<i64> {
        match (self, set.kind) {
            (Self::Panes(panes), _) => panes.deadline(set),
            (Self::Sliding(queue), WindowKind::Sliding { size }) => {
                let front = queue.front()?;
                Some(front.ts.saturating_add_unsigned(size))
            }
            (Self::Session { queue }, WindowKind::Session { gap }) => {
                let last = queue.items().last()?;
                Some(last.ts.saturating_add_unsigned(gap))
            }
            (Self::Sliding(_) | Self::Session { .. } | Self::Count { .. }, _) => None,
        }
    }

    /// The device died: windows that it has begun are put out at their end, no empty ones follow.
    pub(crate) fn stop(&mut self) {
        if let Self::Panes(panes) = self {
            panes.stop();
        }
    }

    pub(crate) fn encode(&self, to: &mut Writer) {
        match self {
            Self::Panes(panes) => {
                to.byte(0);
                panes.encode(to);
            }
            Self::Sliding(queue) => {
                to.byte(1);
                queue.encode(to);
            }
            Self::Session { queue } => {
                to.byte(2);
                queue.encode(to);
            }
            Self::Count { queue, since } => {
                to.byte(3);
                queue.encode(to);
                to.number(u64::from(*since));
            }
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        Ok(match from.byte()? {
            0 => Self::Panes(Panes::decode(from)?),
            1 => Self::Sliding(Queue::decode(from)?),
            2 => Self::Session {
                queue: Queue::decode(from)?,
            },
            3 => Self::Count {
                queue: Queue::decode(from)?,
                since: u32::try_from(from.number()?)
                    .map_err(|_| Corrupt::Wrong { what: "window" })?,
            },
            _ => return Err(Corrupt::Wrong { what: "window" }),
        })
    }
}

fn emission(set: &Setting<'_>, queue: &Queue, ts: i64, full: bool) -> Emission {
    let mut numbers = Vec::new();
    if set.sorted() {
        numbers = queue.items().filter_map(Item::number).collect();
        numbers.sort_unstable_by(order);
    }
    Emission {
        ts,
        results: results(set, &queue.total(), &numbers),
        full,
    }
}

fn results(set: &Setting<'_>, acc: &Acc, numbers: &[f64]) -> Vec<Value> {
    let one = |aggregate: &Aggregate| acc.result(*aggregate, numbers);
    set.aggregates.iter().map(one).collect()
}

fn order(a: &f64, b: &f64) -> Ordering {
    a.total_cmp(b)
}
