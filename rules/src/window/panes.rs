//! Tumbling and hopping windows: one aggregate for each window that is open.

use std::collections::VecDeque;

use super::acc::{Acc, Item};
use super::{Emission, Setting, order, results};
use crate::lang::def::WindowKind;
use crate::snapshot::{Corrupt, Reader, Writer};

/// After a leap in time no more empty windows than this are put out; those before are left out.
const MOST_EMPTY: i64 = 1_000;

#[derive(Clone, Debug, Default)]
struct Pane {
    start: i64,
    acc: Acc,
    /// In order; only where a percentile is asked for.
    numbers: Vec<f64>,
    /// Its end has passed, and it was put out.
    closed: bool,
}

/// Open windows by start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Panes {
    panes: VecDeque<Pane>,
    /// Start of the first window that was not put out yet, where empty ones are; `None` before the
    /// first sample, and after the device's death.
    next: Option<i64>,
}

/// Length and step of windows, ms.
fn measure(kind: WindowKind) -> (i64, i64) {
    let ms = |v: u64| i64::try_from(v).unwrap_or(i64::MAX).max(1);
    match kind {
        WindowKind::Tumbling { size } => (ms(size), ms(size)),
        WindowKind::Hopping { size, every } => (ms(size), ms(every)),
        WindowKind::Sliding { size } => (ms(size), ms(size)),
        WindowKind::Session { gap } => (ms(gap), ms(gap)),
        WindowKind::Count { .. } => (1, 1),
    }
}

impl Panes {
    pub(crate) fn is_idle(&self) -> bool {
        self.panes.is_empty() && self.next.is_none()
    }

    pub(crate) fn held(&self) -> usize {
        self.panes.iter().map(|p| 1 + p.numbers.len()).sum()
    }

    /// Adds a sample to every window that it lies in; one that was put out already is put out
    /// again.
    pub(crate) fn add(&mut self, set: &Setting<'_>, item: &Item, out: &mut Vec<Emission>) -> u64 {
        let (size, step) = measure(set.kind);
        let newest = item.ts.div_euclid(step).saturating_mul(step);
        let oldest = item
            .ts
            .saturating_sub(size)
            .div_euclid(step)
            .saturating_add(1);
        let mut start = oldest.saturating_mul(step);
        if set.empty {
            // Still open at this sample, so it was not put out yet.
            self.next.get_or_insert(start);
        }
        let mut gone = 0;
        while start <= newest {
            let at = self.panes.partition_point(|p| p.start < start);
            if self.panes.get(at).is_none_or(|p| p.start != start) {
                self.panes.insert(at, Pane::new(start));
            }
            if let Some(pane) = self.panes.get_mut(at) {
                pane.acc.add(item);
                if let Some(v) = item.number().filter(|_| set.sorted()) {
                    if pane.numbers.len() < set.most {
                        let place = pane.numbers.partition_point(|n| order(n, &v).is_lt());
                        pane.numbers.insert(place, v);
                    } else {
                        gone += 1;
                    }
                }
                if pane.closed {
                    out.push(pane.emission(set, size));
                }
            }
            start = start.saturating_add(step);
        }
        gone
    }

    pub(crate) fn advance(&mut self, set: &Setting<'_>, ts: i64, out: &mut Vec<Emission>) {
        let (size, step) = measure(set.kind);
        // The first window that is still open at `ts`.
        let open = ts.saturating_sub(size).div_euclid(step).saturating_add(1);
        let open = open.saturating_mul(step);
        let floor = open.saturating_sub(MOST_EMPTY.saturating_mul(step));
        let empties = |from: i64, to: i64, out: &mut Vec<Emission>| {
            let mut start = from.max(floor);
            while start < to {
                out.push(Pane::new(start).emission(set, size));
                start = start.saturating_add(step);
            }
        };
        for pane in &mut self.panes {
            if pane.start >= open {
                break;
            }
            if pane.closed {
                continue;
            }
            if let Some(next) = &mut self.next {
                empties(*next, pane.start, out);
                *next = pane.start.saturating_add(step);
            }
            pane.closed = true;
            out.push(pane.emission(set, size));
        }
        if let Some(next) = &mut self.next {
            empties(*next, open, out);
            *next = open.max(*next);
        }
        let over = |p: &Pane| {
            let end = p.start.saturating_add(size);
            p.closed && end.saturating_add_unsigned(set.lateness) <= ts
        };
        while self.panes.front().is_some_and(over) {
            self.panes.pop_front();
        }
    }

    fn first_unclosed(&self) -> Option<i64> {
        self.panes.iter().find(|p| !p.closed).map(|p| p.start)
    }

    pub(crate) fn deadline(&self, set: &Setting<'_>) -> Option<i64> {
        let (size, _) = measure(set.kind);
        let next = self.first_unclosed().into_iter().chain(self.next).min();
        next.map(|start| start.saturating_add(size))
    }

    /// Leaves the windows that hold something; no empty ones follow.
    pub(crate) fn stop(&mut self) {
        self.next = None;
    }

    pub(crate) fn encode(&self, to: &mut Writer) {
        to.option(self.next, Writer::signed);
        to.length(self.panes.len());
        for pane in &self.panes {
            to.signed(pane.start);
            pane.acc.encode(to);
            to.length(pane.numbers.len());
            pane.numbers.iter().for_each(|v| to.double(*v));
            to.flags(&[pane.closed]);
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let next = from.option(Reader::signed)?;
        let count = from.length()?;
        let mut panes = VecDeque::new();
        for _ in 0..count {
            let start = from.signed()?;
            let acc = Acc::decode(from)?;
            let numbers = from.length()?;
            let numbers = (0..numbers)
                .map(|_| from.double())
                .collect::<Result<_, _>>()?;
            let [closed] = from.flags()?;
            panes.push_back(Pane {
                start,
                acc,
                numbers,
                closed,
            });
        }
        Ok(Self { panes, next })
    }
}

impl Pane {
    fn new(start: i64) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }

    fn emission(&self, set: &Setting<'_>, size: i64) -> Emission {
        Emission {
            ts: self.start.saturating_add(size),
            results: results(set, &self.acc, &self.numbers),
            full: true,
        }
    }
}
