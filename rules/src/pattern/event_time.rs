//! Event time: watermark, the buffer that puts events in order, and what is late.

/// The time up to which all events are taken to be there, following the largest time seen.
///
/// An event is late when its time is not after the watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    out_of_order: i64,
    latest: Option<i64>,
    current: i64,
}

impl Watermark {
    /// `out_of_order`: how far behind the largest time seen an event may come and still be in time,
    /// ms.
    pub fn new(out_of_order: i64) -> Self {
        Self {
            out_of_order: out_of_order.max(0),
            latest: None,
            current: i64::MIN,
        }
    }

    /// The current watermark, ms; `i64::MIN` before any event.
    pub fn current(&self) -> i64 {
        self.current
    }

    /// Notes the time of an event, ms. The watermark moves with [`advance`](Self::advance).
    pub fn observe(&mut self, ts: i64) {
        self.latest = Some(self.latest.map_or(ts, |latest| latest.max(ts)));
    }

    /// Moves the watermark to 1 ms before what the largest time seen allows for. Returns it if it
    /// moved.
    pub fn advance(&mut self) -> Option<i64> {
        let latest = self.latest?;
        self.advance_to(latest.saturating_sub(self.out_of_order).saturating_sub(1))
    }

    /// Moves the watermark to `ts`, never back. Returns it if it moved.
    pub fn advance_to(&mut self, ts: i64) -> Option<i64> {
        if ts <= self.current {
            return None;
        }
        self.current = ts;
        Some(ts)
    }

    /// Whether an event of this time is late.
    pub fn is_late(&self, ts: i64) -> bool {
        ts <= self.current
    }
}

/// A bounded buffer that gives items back in time order, equal times in order of arrival.
#[derive(Clone, Debug)]
pub struct Reorder<T> {
    items: Vec<(i64, T)>,
    /// Whether `items` is in order.
    sorted: bool,
    capacity: usize,
}

impl<T> Reorder<T> {
    /// `capacity`: most items at a time. When it is full, the newest item is refused.
    pub fn new(capacity: usize) -> Self {
        Self {
            items: Vec::new(),
            sorted: true,
            capacity,
        }
    }

    /// Number of items that wait.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<(i64, T)>()
    }

    /// Adds an item.
    ///
    /// # Errors
    /// The item, if the buffer is full.
    pub fn push(&mut self, ts: i64, item: T) -> Result<(), T> {
        if self.items.len() >= self.capacity {
            return Err(item);
        }
        self.sorted = self.sorted && self.items.last().is_none_or(|(last, _)| *last <= ts);
        self.items.push((ts, item));
        Ok(())
    }

    /// Takes out what is due at `watermark`: every item with a time up to it, in order.
    pub fn due(&mut self, watermark: i64) -> impl Iterator<Item = (i64, T)> {
        let count = self.settle(watermark);
        self.items.drain(..count)
    }

    /// The items that are due at `watermark`, in order, left where they are.
    pub(super) fn peek_due(&mut self, watermark: i64) -> &[(i64, T)] {
        let count = self.settle(watermark);
        self.items.get(..count).unwrap_or_default()
    }

    /// Puts the items in order and counts those that are due.
    fn settle(&mut self, watermark: i64) -> usize {
        if !self.sorted {
            self.items.sort_by_key(|(ts, _)| *ts);
            self.sorted = true;
        }
        match self.items.last() {
            Some((ts, _)) if *ts <= watermark => self.items.len(),
            _ => self.items.partition_point(|(ts, _)| *ts <= watermark),
        }
    }

    /// Items that wait, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &T)> {
        self.items.iter().map(|(ts, item)| (*ts, item))
    }
}

/// What became of an event that was given to an [`EventTime`].
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// It waits for the watermark.
    Buffered,
    /// It is behind the watermark, but within the allowed lateness: feed it now, as the latest event
    /// at the current watermark.
    Overdue(T),
    /// It is later than allowed and belongs in the late output.
    Late(T),
    /// The buffer is full; it was refused.
    Full(T),
}

/// Event time of one key: its own watermark, so that one device with a wrong clock holds up nobody
/// else.
#[derive(Clone, Debug)]
pub struct EventTime<T> {
    watermark: Watermark,
    lateness: i64,
    buffer: Reorder<T>,
}

impl<T> EventTime<T> {
    /// `out_of_order`: as for [`Watermark::new`]; `lateness`: how far behind the watermark an event
    /// is still used, ms; `capacity`: most events that wait.
    pub fn new(out_of_order: i64, lateness: i64, capacity: usize) -> Self {
        Self {
            watermark: Watermark::new(out_of_order),
            lateness: lateness.max(0),
            buffer: Reorder::new(capacity),
        }
    }

    /// The key's watermark.
    pub fn watermark(&self) -> i64 {
        self.watermark.current()
    }

    /// Number of events that wait.
    pub fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// Takes in an event of time `ts` (ms) and moves the watermark.
    pub fn push(&mut self, ts: i64, item: T) -> Admission<T> {
        if self.watermark.is_late(ts) {
            let limit = self.watermark.current().saturating_sub(self.lateness);
            return if ts > limit {
                Admission::Overdue(item)
            } else {
                Admission::Late(item)
            };
        }
        if let Err(item) = self.buffer.push(ts, item) {
            return Admission::Full(item);
        }
        self.watermark.observe(ts);
        self.watermark.advance();
        Admission::Buffered
    }

    /// Moves the watermark from outside, for instance when a device has been silent for long.
    pub fn advance_to(&mut self, ts: i64) -> Option<i64> {
        self.watermark.advance_to(ts)
    }

    /// Takes out the events that the watermark has passed, in order.
    pub fn due(&mut self) -> impl Iterator<Item = (i64, T)> {
        self.buffer.due(self.watermark.current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_event_at_the_watermark_is_late() {
        let mut time = EventTime::new(10, 0, 100);
        assert_eq!(time.push(100, 'a'), Admission::Buffered);
        assert_eq!(time.watermark(), 89);
        assert_eq!(time.push(89, 'b'), Admission::Late('b'));
        assert_eq!(time.push(90, 'c'), Admission::Buffered);
        assert_eq!(time.due().count(), 0);
        time.advance_to(99);
        assert_eq!(time.due().collect::<Vec<_>>(), [(90, 'c')]);
        assert_eq!(time.advance_to(50), None);
    }

    #[test]
    fn lateness_keeps_an_event_in_use() {
        let mut time = EventTime::new(0, 5, 100);
        time.push(100, 'a');
        assert_eq!(time.push(95, 'b'), Admission::Overdue('b'));
        assert_eq!(time.push(94, 'c'), Admission::Late('c'));
    }

    #[test]
    fn a_full_buffer_refuses_the_newest() {
        let mut time = EventTime::new(1000, 0, 2);
        time.push(1, 'a');
        time.push(2, 'b');
        assert_eq!(time.push(3, 'c'), Admission::Full('c'));
        assert_eq!(time.waiting(), 2);
    }

    proptest! {
        #[test]
        fn comes_out_stably_sorted(
            arrivals in proptest::collection::vec((-20i64..20, -20i64..20), 0..60)
        ) {
            let mut buffer = Reorder::new(usize::MAX);
            let mut out = Vec::new();
            let mut watermark = i64::MIN;
            for (n, (ts, wm)) in arrivals.iter().enumerate() {
                if *ts > watermark {
                    buffer.push(*ts, n).unwrap();
                }
                watermark = watermark.max(*wm);
                out.extend(buffer.due(watermark));
            }
            out.extend(buffer.due(i64::MAX));
            prop_assert!(out.is_sorted());
        }
    }
}
