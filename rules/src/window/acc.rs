//! Aggregates that can be merged: each window keeps one, not its samples.

use crate::lang::expr::{Aggregate, to_f64};
use crate::snapshot::{Corrupt, Reader, Writer};
use crate::value::Value;

/// One sample of a window: its time (ms, of the rule's clock) and value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub(crate) ts: i64,
    pub(crate) value: Value,
}

impl Item {
    /// The number it counts as: booleans are 0 and 1. `None` for texts, which have none.
    pub(crate) fn number(&self) -> Option<f64> {
        match &self.value {
            Value::Bool(v) => Some(f64::from(u8::from(*v))),
            other => other.as_f64(),
        }
    }
}

/// The aggregates of some samples in time order. Adding and merging keep the mean and the sum of
/// squared differences (Chan, Golub, LeVeque 1979), so that no precision goes where values are large
/// and their spread is small.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Acc {
    count: u64,
    numbers: u64,
    sum: f64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
    first: Option<Item>,
    last: Option<Item>,
}

impl Acc {
    pub(crate) fn add(&mut self, item: &Item) {
        self.merge(&Self::one(item));
    }

    fn one(item: &Item) -> Self {
        let number = item.number();
        let v = number.unwrap_or(0.0);
        Self {
            count: 1,
            numbers: u64::from(number.is_some()),
            sum: v,
            mean: v,
            squares: 0.0,
            min: v,
            max: v,
            first: Some(item.clone()),
            last: Some(item.clone()),
        }
    }

    /// Appends what came later.
    pub(crate) fn merge(&mut self, later: &Self) {
        if later.count == 0 {
            return;
        }
        if self.count == 0 {
            self.clone_from(later);
            return;
        }
        self.count += later.count;
        self.last.clone_from(&later.last);
        if later.numbers == 0 {
            return;
        }
        if self.numbers == 0 {
            (self.numbers, self.sum) = (later.numbers, later.sum);
            (self.mean, self.squares) = (later.mean, later.squares);
            (self.min, self.max) = (later.min, later.max);
            return;
        }
        let (a, b) = (to_f64(self.numbers.into()), to_f64(later.numbers.into()));
        let apart = later.mean - self.mean;
        self.numbers += later.numbers;
        self.sum += later.sum;
        self.mean += apart * b / (a + b);
        self.squares += later.squares + apart * apart * a * b / (a + b);
        self.min = self.min.min(later.min);
        self.max = self.max.max(later.max);
    }

    /// One result. `sorted` are the numbers in order, where a percentile is asked for. Over nothing
    /// `count` is 0, `sum` 0, and everything else null.
    pub(crate) fn result(&self, aggregate: Aggregate, sorted: &[f64]) -> Value {
        let number = |v: f64| {
            if self.numbers == 0 {
                Value::Null
            } else {
                Value::Double(v)
            }
        };
        match aggregate {
            Aggregate::Count => Value::UInt(self.count),
            Aggregate::Sum => Value::Double(if self.numbers == 0 { 0.0 } else { self.sum }),
            Aggregate::Avg => number(self.mean),
            Aggregate::Min => number(self.min),
            Aggregate::Max => number(self.max),
            Aggregate::Stddev => {
                if self.numbers < 2 {
                    return Value::Null;
                }
                let degrees = to_f64(i128::from(self.numbers) - 1);
                Value::Double((self.squares.max(0.0) / degrees).sqrt())
            }
            Aggregate::Percentile(p) => percentile(sorted, p),
            Aggregate::Rate => self.rate(),
            Aggregate::First => edge(self.first.as_ref()),
            Aggregate::Last => edge(self.last.as_ref()),
        }
    }

    /// Change a second from the first to the last sample.
    fn rate(&self) -> Value {
        let (Some(first), Some(last)) = (&self.first, &self.last) else {
            return Value::Null;
        };
        let span = last.ts.saturating_sub(first.ts);
        match (first.number(), last.number()) {
            (Some(a), Some(b)) if span > 0 => {
                Value::Double((b - a) / (to_f64(i128::from(span)) / 1e3))
            }
            _ => Value::Null,
        }
    }

    pub(crate) fn encode(&self, to: &mut Writer) {
        to.number(self.count);
        if self.count == 0 {
            return;
        }
        to.number(self.numbers);
        for v in [self.sum, self.mean, self.squares, self.min, self.max] {
            to.double(v);
        }
        to.option(self.first.as_ref(), |to, item| item.encode(to));
        to.option(self.last.as_ref(), |to, item| item.encode(to));
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let count = from.number()?;
        if count == 0 {
            return Ok(Self::default());
        }
        Ok(Self {
            count,
            numbers: from.number()?,
            sum: from.double()?,
            mean: from.double()?,
            squares: from.double()?,
            min: from.double()?,
            max: from.double()?,
            first: from.option(Item::decode)?,
            last: from.option(Item::decode)?,
        })
    }
}

impl Item {
    pub(crate) fn encode(&self, to: &mut Writer) {
        to.signed(self.ts);
        to.value(&self.value);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        Ok(Self {
            ts: from.signed()?,
            value: from.value()?,
        })
    }
}

fn edge(item: Option<&Item>) -> Value {
    item.map_or(Value::Null, |item| item.value.clone())
}

/// Linear interpolation between the two nearest ranks (Hyndman and Fan's type 7, what numpy and
/// spreadsheets do).
fn percentile(sorted: &[f64], p: f64) -> Value {
    let Some(top) = sorted.len().checked_sub(1) else {
        return Value::Null;
    };
    let place = to_f64(i128::try_from(top).unwrap_or(i128::MAX)) * p / 100.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "p is from 0 to 100, so this is from 0 to top"
    )]
    let below = (place.floor() as usize).min(top);
    let above = (below + 1).min(top);
    match (sorted.get(below), sorted.get(above)) {
        (Some(a), Some(b)) => Value::Double(a + (b - a) * (place - place.floor())),
        _ => Value::Null,
    }
}
