//! Asking the caller's conditions, each as seldom as possible.

use super::path::Path;
use super::plan::Test;
use super::spec::CondId;

/// Gives condition numbers their meaning.
///
/// A condition must be pure: how often it is asked, and for which partial matches, is not specified.
pub trait Evaluator<E> {
    /// Whether `event` satisfies the condition, for a partial match that holds `held` so far. The
    /// event is not among them.
    fn eval(&self, condition: CondId, event: &E, held: Path<'_, E>) -> bool;
}

impl<E, F: Fn(CondId, &E, Path<'_, E>) -> bool> Evaluator<E> for F {
    fn eval(&self, condition: CondId, event: &E, held: Path<'_, E>) -> bool {
        self(condition, event, held)
    }
}

/// Results for one event. Bit n belongs to condition n; conditions from 64 up are asked each time.
pub(super) struct Memo<'a, E, V> {
    evaluator: &'a V,
    event: &'a E,
    /// Conditions whose result holds for every partial match.
    stateless: u64,
    known: u64,
    value: u64,
}

impl<'a, E, V: Evaluator<E>> Memo<'a, E, V> {
    pub(super) fn new(evaluator: &'a V, event: &'a E, stateless: u64) -> Self {
        Self {
            evaluator,
            event,
            stateless,
            known: 0,
            value: 0,
        }
    }

    pub(super) fn event(&self) -> &'a E {
        self.event
    }

    /// Forgets what only held for the partial match before.
    pub(super) fn next_partial(&mut self) {
        self.known &= self.stateless;
    }

    pub(super) fn ask(&mut self, condition: CondId, held: Path<'_, E>) -> bool {
        let bit = 1u64.checked_shl(u32::from(condition.0)).unwrap_or(0);
        if self.known & bit != 0 {
            return self.value & bit != 0;
        }
        let value = self.evaluator.eval(condition, self.event, held);
        self.known |= bit;
        if value {
            self.value |= bit;
        } else {
            self.value &= !bit;
        }
        value
    }

    pub(super) fn test(&mut self, test: &Test, held: Path<'_, E>) -> bool {
        match test {
            Test::Always => true,
            Test::Is(condition) => self.ask(*condition, held),
            Test::Not(inner) => !self.test(inner, held),
            Test::And(both) => {
                let [a, b] = &**both;
                self.test(a, held) && self.test(b, held)
            }
        }
    }
}
