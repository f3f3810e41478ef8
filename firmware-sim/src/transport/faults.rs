//! What a scenario does to a node and its connection.

use std::time::Duration;

use tokio::time::Instant;

use super::{CLONE_LIFE_MS, End, LATE_MS, Outcome, Runner, Tally, elapsed_ms, now_ms, send};
use crate::codec::BdseqType;
use crate::fault::{Rebirth, Way};
use crate::link::Heard;
use crate::scenario::{Fault, Kind, bdseq_type, covers, first_seq};

impl Runner {
    /// The faults of the way that are in force now.
    pub(super) fn way(&self, started: Instant) -> Way {
        let at = elapsed_ms(started);
        let mut way = Way::default();
        for fault in self
            .faults
            .iter()
            .filter(|f| f.at <= at && f.period.is_none_or(|p| at < f.at.saturating_add(p)))
        {
            let share = fault.share.unwrap_or(0.0);
            match fault.kind {
                Kind::Drop => way.drop = share,
                Kind::Duplicate => way.duplicate = share,
                Kind::Reorder => way.reorder = share,
                Kind::Corrupt => way.corrupt = share,
                Kind::Delay => way.delay_ms = fault.delay.unwrap_or(0),
                _ => {}
            }
        }
        way
    }

    /// Starts and ends the faults that are due; how the connection is to end, if it is.
    pub(super) fn begin_due(
        &mut self,
        started: Instant,
        pending: &mut Vec<Fault>,
        outcome: &mut Outcome,
        connecting: bool,
    ) -> Option<End> {
        let at = elapsed_ms(started);
        let over = |kind: Kind, faults: &[Fault]| {
            !faults.iter().any(|f| {
                f.kind == kind && f.at <= at && f.period.is_none_or(|p| at < f.at.saturating_add(p))
            })
        };
        let faults = self.faults.clone();
        if self.node.twist().skew_ms != 0 && over(Kind::ClockSkew, &faults) {
            self.node.twist().skew_ms = 0;
        }
        if self.node.twist().silent && over(Kind::Silence, &faults) {
            self.node.twist().silent = false;
        }
        if self.node.twist().store && over(Kind::Historical, &faults) {
            self.node.twist().store = false;
        }
        if self.node.twist().unknown_alias && over(Kind::UnknownAlias, &faults) {
            self.node.twist().unknown_alias = false;
        }
        let wrong = [
            (Rebirth::Ignore, Kind::IgnoreRebirth),
            (Rebirth::WithDeath, Kind::RebirthDeath),
            (Rebirth::Reconnect, Kind::ReconnectRebirth),
            (Rebirth::RaiseBdseq, Kind::RaiseBdseq),
            (Rebirth::Forget, Kind::ForgetDevice),
        ];
        for (rebirth, kind) in wrong {
            if self.node.twist().rebirth == rebirth && over(kind, &faults) {
                self.node.twist().rebirth = Rebirth::Answer;
            }
        }
        if matches!(self.node.twist().rebirth, Rebirth::Late(_)) && over(Kind::SlowRebirth, &faults)
        {
            self.node.twist().rebirth = Rebirth::Answer;
        }
        let twist = self.node.twist();
        twist.stuck_bdseq &= !over(Kind::StuckBdseq, &faults);
        twist.seq_per_device &= !over(Kind::SeqPerDevice, &faults);
        twist.proto3 &= !over(Kind::Proto3, &faults);
        if twist.first_seq != 0 && over(Kind::FirstSeq, &faults) {
            twist.first_seq = 0;
        }
        if over(Kind::BdseqType, &faults) {
            twist.bdseq_type = BdseqType::Int64;
        }
        let mut end = None;
        self.revived.retain(|(until, device)| {
            let due = *until <= at;
            if due {
                self.node.device_birth(device);
            }
            !due
        });
        let due: Vec<Fault> = pending.extract_if(.., |fault| fault.at <= at).collect();
        for fault in due {
            if !matches!(
                fault.kind,
                Kind::Drop | Kind::Duplicate | Kind::Reorder | Kind::Corrupt
            ) {
                outcome.faults += 1;
            }
            match fault.kind {
                Kind::ClockSkew => self.node.twist().skew_ms = fault.skew.unwrap_or(0),
                Kind::SkipSeq => self.node.twist().skip_seq = true,
                Kind::RetainBirths => self.node.twist().retain_births = true,
                Kind::WrongBdseq => self.node.twist().wrong_bdseq = true,
                Kind::Historical => self.node.twist().store = true,
                Kind::UnknownAlias => self.node.twist().unknown_alias = true,
                Kind::DataBeforeBirth => self.node.twist().data_before_birth = true,
                Kind::Silence => self.node.twist().silent = true,
                // A node that is not connected has no connection to lose.
                Kind::Flap | Kind::LateWill if connecting => {}
                Kind::Flap => end = Some(End::Broken),
                Kind::LateWill => end = Some(End::Replaced(fault.period.unwrap_or(LATE_MS))),
                Kind::Stop => end = Some(End::Away(fault.period)),
                Kind::IgnoreRebirth => self.node.twist().rebirth = Rebirth::Ignore,
                Kind::RebirthDeath => self.node.twist().rebirth = Rebirth::WithDeath,
                Kind::ReconnectRebirth => self.node.twist().rebirth = Rebirth::Reconnect,
                Kind::RaiseBdseq => self.node.twist().rebirth = Rebirth::RaiseBdseq,
                Kind::ForgetDevice => self.node.twist().rebirth = Rebirth::Forget,
                Kind::SlowRebirth => {
                    self.node.twist().rebirth = Rebirth::Late(fault.delay.unwrap_or(0));
                }
                Kind::StuckBdseq => self.node.twist().stuck_bdseq = true,
                Kind::BdseqType => {
                    self.node.twist().bdseq_type =
                        bdseq_type(fault.value.as_ref()).unwrap_or_default();
                }
                Kind::DoubleDeath => self.node.twist().double_death = true,
                Kind::SeqPerDevice => self.node.twist().seq_per_device = true,
                Kind::FirstSeq => {
                    self.node.twist().first_seq =
                        first_seq(fault.value.as_ref()).unwrap_or_default();
                }
                Kind::Proto3 => self.node.twist().proto3 = true,
                Kind::LateMessage => self.late = fault.delay,
                Kind::DeviceDeath => self.device_death(&fault),
                Kind::Clone => self.clone_identity(&fault),
                Kind::Set => self.set(&fault),
                Kind::Delay | Kind::Drop | Kind::Duplicate | Kind::Reorder | Kind::Corrupt => {}
            }
        }
        end
    }

    fn set(&mut self, fault: &Fault) {
        let value = match &fault.value {
            Some(toml::Value::Float(v)) => crate::codec::Value::Double(*v),
            #[expect(clippy::cast_precision_loss, reason = "a scenario's numbers are small")]
            Some(toml::Value::Integer(v)) => crate::codec::Value::Double(*v as f64),
            Some(toml::Value::Boolean(v)) => crate::codec::Value::Bool(*v),
            Some(toml::Value::String(v)) => crate::codec::Value::Text(v.clone()),
            _ => return,
        };
        let Some(metric) = &fault.metric else { return };
        let names: Vec<String> = self
            .node
            .devices()
            .iter()
            .map(|d| d.name.clone())
            .filter(|name| covers(&fault.device, name))
            .collect();
        for name in names {
            if let Some(device) = self.node.device_mut(&name) {
                device.force(metric, value.clone());
            }
        }
    }

    /// The devices say that they died; those with an end of it are born again then.
    fn device_death(&mut self, fault: &Fault) {
        let names: Vec<String> = self
            .node
            .devices()
            .iter()
            .map(|d| d.name.clone())
            .filter(|name| covers(&fault.device, name))
            .collect();
        for name in names {
            self.node.device_death(&name);
            if let Some(period) = fault.period {
                self.revived.push((fault.at.saturating_add(period), name));
            }
        }
    }

    /// A second client that says it is this node.
    fn clone_identity(&mut self, fault: &Fault) {
        let mut other = self.node.clone();
        let will = other.connect(now_ms());
        let id = if fault.take_over {
            self.client_id()
        } else {
            format!("{}-clone", self.client_id())
        };
        let mut link = self.connect_as(id, will);
        let period = self.period;
        let life = async move {
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            // A clone is a fault, so what it says is not the fleet's.
            let mut tally = Tally::default();
            let mut connected = false;
            loop {
                let messages = tokio::select! {
                    heard = link.poll() => match heard {
                        Ok(Heard::Connected) => {
                            connected = true;
                            other.ready(now_ms())
                        }
                        Ok(_) => continue,
                        Err(_) => return,
                    },
                    _ = ticks.tick(), if connected => other.step(period.as_secs_f64(), now_ms()),
                };
                for message in messages {
                    send(&link, message, &mut tally);
                }
            }
        };
        let most = Duration::from_millis(fault.period.unwrap_or(CLONE_LIFE_MS));
        self.others.spawn(async move {
            let _ = tokio::time::timeout(most, life).await;
        });
    }
}
