//! What `top` has read and what is chosen in it.

use std::collections::VecDeque;

use serde_json::Value;

use crate::cli::online::{name_of, short_time};
use crate::cli::table;

/// Readings that the rate's curve remembers.
const CURVE: usize = 120;

/// One listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Tab {
    /// Health alone.
    #[default]
    Overview,
    Devices,
    Alarms,
    Rules,
    Models,
    Writes,
}

impl Tab {
    pub(super) const ALL: [Self; 6] = [
        Self::Overview,
        Self::Devices,
        Self::Alarms,
        Self::Rules,
        Self::Models,
        Self::Writes,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Devices => "Devices",
            Self::Alarms => "Alarms",
            Self::Rules => "Rules",
            Self::Models => "Models",
            Self::Writes => "Writes",
        }
    }

    /// What is asked for it beside the status.
    pub(super) fn path(self) -> Option<&'static str> {
        match self {
            Self::Overview => None,
            Self::Devices => Some("/api/devices"),
            Self::Alarms => Some("/api/alarms"),
            Self::Rules => Some("/api/rules"),
            Self::Models => Some("/api/models"),
            Self::Writes => Some("/api/commands"),
        }
    }

    /// Headings, each with the share of the width that its column gets.
    pub(super) fn columns(self) -> &'static [(&'static str, u16)] {
        match self {
            Self::Overview => &[],
            Self::Devices => &[
                ("DEVICE", 40),
                ("STATE", 10),
                ("SINCE", 14),
                ("BIRTHS", 8),
                ("STALE", 8),
                ("LAST REBIRTH CAUSE", 20),
            ],
            Self::Alarms => &[
                ("STATE", 14),
                ("PRIORITY", 10),
                ("DEVICE", 24),
                ("SINCE", 12),
                ("MESSAGE", 40),
            ],
            Self::Rules => &[
                ("RULE", 32),
                ("PACK", 22),
                ("KIND", 10),
                ("STATE", 10),
                ("FIRES", 10),
                ("LAST", 16),
            ],
            Self::Models => &[
                ("MODEL", 26),
                ("VERSION", 10),
                ("BACKEND", 14),
                ("RUNS", 12),
                ("P95", 12),
                ("OBJECTIVE", 12),
                ("LIGHTER", 14),
            ],
            Self::Writes => &[
                ("STATUS", 12),
                ("TARGET", 26),
                ("METRIC", 20),
                ("VALUE", 10),
                ("BY", 18),
                ("REASON", 14),
            ],
        }
    }
}

/// A line of a listing: what acts on it, whether it needs a look, and its cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) id: String,
    pub(super) bad: bool,
    pub(super) cells: Vec<String>,
}

/// The whole of it.
#[derive(Debug, Default)]
pub(super) struct Top {
    tab: Tab,
    status: Value,
    lines: Vec<Line>,
    selected: usize,
    said: Option<(String, bool)>,
    /// Messages a second of the last readings.
    rates: VecDeque<u64>,
    last: Option<(u64, u64)>,
}

impl Top {
    pub(super) fn tab(&self) -> Tab {
        self.tab
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(super) fn selected(&self) -> usize {
        self.selected
    }

    /// What the last action or failed reading said, and whether it is a failure.
    pub(super) fn message(&self) -> Option<&(String, bool)> {
        self.said.as_ref()
    }

    pub(super) fn rates(&self) -> &VecDeque<u64> {
        &self.rates
    }

    /// A cell of the status by JSON pointer.
    pub(super) fn at(&self, path: &str) -> String {
        table::cell(self.status.pointer(path))
    }

    /// A number of the status; 0 where there is none.
    pub(super) fn number(&self, path: &str) -> u64 {
        self.status
            .pointer(path)
            .and_then(Value::as_u64)
            .unwrap_or(0)
    }

    /// The status itself.
    pub(super) fn health(&self) -> &Value {
        &self.status
    }

    pub(super) fn status(&mut self, status: Value) {
        let number = |key: &str| status.get(key).and_then(Value::as_u64).unwrap_or(0);
        let now = (number("time"), number("messages"));
        if let Some((then, messages)) = self.last
            && now.0 > then
        {
            if self.rates.len() == CURVE {
                self.rates.pop_front();
            }
            let rate = now.1.saturating_sub(messages).saturating_mul(1000) / (now.0 - then);
            self.rates.push_back(rate);
        }
        self.last = Some(now);
        self.status = status;
        if self.said.as_ref().is_some_and(|(_, failed)| *failed) {
            self.said = None;
        }
    }

    pub(super) fn lost(&mut self, error: String) {
        self.said = Some((error, true));
    }

    pub(super) fn said(&mut self, text: String) {
        self.said = Some((text, false));
    }

    /// Takes the answer to the chosen tab's path; the chosen line stays chosen while it is there.
    pub(super) fn list(&mut self, answer: &Value) {
        let chosen = self.chosen();
        let items = answer.as_array().map(Vec::as_slice).unwrap_or_default();
        self.lines = items.iter().map(|item| line(self.tab, item)).collect();
        if self.tab == Tab::Writes {
            self.lines.reverse();
        }
        let kept =
            chosen.and_then(|id| self.lines.iter().position(|l| l.id == id && !id.is_empty()));
        self.selected = kept
            .unwrap_or(self.selected)
            .min(self.lines.len().saturating_sub(1));
    }

    pub(super) fn chosen(&self) -> Option<String> {
        self.lines.get(self.selected).map(|line| line.id.clone())
    }

    pub(super) fn move_by(&mut self, by: isize) {
        self.selected = self
            .selected
            .saturating_add_signed(by)
            .min(self.lines.len().saturating_sub(1));
    }

    fn open(&mut self, tab: Tab) {
        if tab != self.tab {
            self.tab = tab;
            self.lines.clear();
            self.selected = 0;
        }
    }

    /// The tab of a digit key.
    pub(super) fn show(&mut self, digit: char) {
        let index = digit.to_digit(10).unwrap_or(0) as usize;
        if let Some(tab) = index.checked_sub(1).and_then(|i| Tab::ALL.get(i)) {
            self.open(*tab);
        }
    }

    /// The next tab, or the one before.
    pub(super) fn turn(&mut self, by: isize) {
        let count = Tab::ALL.len();
        let at = Tab::ALL.iter().position(|t| *t == self.tab).unwrap_or(0);
        let to = (at + count).saturating_add_signed(by) % count;
        if let Some(tab) = Tab::ALL.get(to) {
            self.open(*tab);
        }
    }
}

fn line(tab: Tab, item: &Value) -> Line {
    let at = |key: &str| table::cell(item.get(key));
    let number = |key: &str| item.get(key).and_then(Value::as_u64).unwrap_or(0);
    let yes = |key: &str| item.get(key).and_then(Value::as_bool).unwrap_or(false);
    let micros = |key: &str| match number(key) {
        us @ 0..10_000 => format!("{us} µs"),
        us => format!("{} ms", us / 1000),
    };
    let (id, bad, cells) = match tab {
        Tab::Overview => (String::new(), false, Vec::new()),
        Tab::Devices => (
            name_of(item),
            !yes("online") || number("stale_metrics") > 0,
            vec![
                name_of(item),
                if yes("online") { "online" } else { "offline" }.to_owned(),
                short_time(item.get("since")),
                at("births"),
                at("stale_metrics"),
                at("last_rebirth_cause"),
            ],
        ),
        Tab::Alarms => (
            at("id"),
            at("state").contains("unack"),
            vec![
                at("state"),
                at("priority"),
                name_of(item),
                short_time(item.get("timestamp")),
                at("message"),
            ],
        ),
        Tab::Rules => {
            let state = match (yes("enabled"), yes("dry_run")) {
                (true, false) => "live",
                (true, true) => "dry run",
                (false, _) => "disabled",
            };
            (
                at("id"),
                number("errors") > 0,
                vec![
                    at("id"),
                    format!("{} {}", at("pack"), at("version")),
                    at("kind"),
                    state.to_owned(),
                    at("fires"),
                    short_time(item.get("last_fire_ms")),
                ],
            )
        }
        Tab::Models => (
            at("model"),
            yes("fallback_active") || item.get("backend").is_none_or(Value::is_null),
            vec![
                at("model"),
                at("version"),
                at("backend"),
                at("runs"),
                micros("p95_us"),
                micros("objective_us"),
                if yes("fallback_active") {
                    format!("runs {}", at("lighter"))
                } else {
                    at("lighter")
                },
            ],
        ),
        Tab::Writes => (
            at("id"),
            !matches!(at("status").as_str(), "confirmed" | "sent"),
            vec![
                at("status"),
                item.get("target").map(name_of).unwrap_or_default(),
                at("metric"),
                at("value"),
                at("by"),
                at("reason"),
            ],
        ),
    };
    Line { id, bad, cells }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_rate_is_of_the_gateways_own_clock() {
        let mut top = Top::default();
        top.status(json!({"time": 10_000, "messages": 100}));
        top.status(json!({"time": 12_000, "messages": 500}));
        assert_eq!(top.rates(), &[200]);
        // A restarted gateway counts from 0: no rate below nothing.
        top.status(json!({"time": 13_000, "messages": 3}));
        assert_eq!(top.rates().back(), Some(&0));
    }

    #[test]
    fn the_chosen_alarm_stays_chosen_when_others_come() {
        let alarm = |id: &str| json!({"id": id, "state": "unack", "group": "g", "node": "n"});
        let mut top = Top::default();
        top.show('3');
        top.list(&json!([alarm("a"), alarm("b")]));
        top.move_by(1);
        top.list(&json!([alarm("new"), alarm("a"), alarm("b")]));
        assert_eq!(top.chosen().as_deref(), Some("b"));
        top.list(&json!([]));
        assert_eq!(top.chosen(), None);
    }

    #[test]
    fn tabs_turn_around_and_moves_stay_inside() {
        let mut top = Top::default();
        top.turn(-1);
        assert_eq!(top.tab(), Tab::Writes);
        top.turn(1);
        assert_eq!(top.tab(), Tab::Overview);
        top.show('2');
        top.list(&json!([{"group": "g", "node": "n", "online": true}]));
        for by in [isize::MAX, 20, isize::MIN] {
            top.move_by(by);
            assert_eq!(top.selected(), 0);
        }
    }
}
