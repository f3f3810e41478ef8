//! Everything that is judged before a write leaves.

use sparkplug::value::Value;

use super::fight::Claim;
use super::run::Running;
use super::{Actuation, Gate, Refusal};

impl Actuation {
    /// Judges the current write of a plan at the moment of sending. Returns the value before it.
    ///
    /// `tell`: a fight over the metric becomes a notice; a dry run only asks.
    ///
    /// An undo has no deadline and no interlock: it takes back what went out. Everything else holds for it as well.
    pub(super) fn judge(
        &mut self,
        now_ms: u64,
        running: &Running,
        gate: &mut dyn Gate,
        tell: bool,
    ) -> Result<Option<Value>, Refusal> {
        let Some(write) = running.current() else {
            return Ok(None);
        };
        let plan = &running.plan;
        if self.limits.read_only {
            return Err(Refusal::passing(
                "read_only: this gateway writes nothing ([writes] read_only)",
            ));
        }
        if !running.undoing && now_ms > running.send_by_ms() {
            return Err(Refusal::expired());
        }
        if let Some(hold) = self.holds.covering(&write.target, now_ms) {
            return Err(Refusal::passing(format!(
                "held: {} holds {}",
                hold.by, write.target
            )));
        }
        self.limits
            .policy
            .judge(&write.target, &write.metric, &write.value, &plan.by)?;
        if let Some((second, count)) = self.rate.get(&write.target)
            && *second == now_ms / 1000
            && *count >= self.limits.max_per_second
        {
            return Err(Refusal::passing(
                "rate_limit: too many writes to this target in a second",
            ));
        }
        let claim = Claim {
            target: &write.target,
            metric: &write.metric,
            by: &plan.by,
            priority: plan.priority,
            value: &write.value,
        };
        self.owners
            .judge(now_ms, self.limits.hold_off_ms, claim, tell)?;
        let previous = gate.check(write)?;
        if let Some(interlock) = &write.allow_when
            && !running.undoing
        {
            match gate.allowed(interlock) {
                Ok(true) => {}
                Ok(false) => {
                    return Err(Refusal::rejected("interlock: allow_when does not hold"));
                }
                Err(reason) => return Err(Refusal::rejected(format!("interlock: {reason}"))),
            }
        }
        Ok(previous)
    }
}
