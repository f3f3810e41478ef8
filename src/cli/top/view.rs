//! Draws `top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table, TableState, Tabs};
use serde_json::Value;

use super::state::{Tab, Top};
use crate::cli::table;

/// One frame: headline, tabs, the chosen tab, keys.
pub(super) fn draw(frame: &mut Frame<'_>, top: &Top) {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(headline(top), head);
    let titles = Tab::ALL.iter().enumerate().map(|(i, tab)| {
        let count = match tab {
            Tab::Alarms => top.number("/alarms/unacknowledged"),
            _ => 0,
        };
        let mark = if count > 0 {
            format!(" ({count})")
        } else {
            String::new()
        };
        format!("{} {}{mark}", i + 1, tab.title())
    });
    let chosen = Tab::ALL.iter().position(|t| *t == top.tab()).unwrap_or(0);
    frame.render_widget(
        Tabs::new(titles)
            .select(chosen)
            .highlight_style(Style::new().add_modifier(Modifier::REVERSED)),
        tabs,
    );
    if top.tab() == Tab::Overview {
        overview(frame, body, top);
    } else {
        listing(frame, body, top);
    }
    let keys = match top.tab() {
        Tab::Overview => "tab or 1-6: view   q: leave",
        Tab::Alarms => "tab or 1-6: view   ↑ ↓: choose   a: acknowledge   q: leave",
        _ => "tab or 1-6: view   ↑ ↓: choose   q: leave",
    };
    let line = match top.message() {
        Some((text, true)) => Text::from(text.clone().red().bold()),
        Some((text, false)) => Text::from(text.clone().green()),
        None => Text::from(keys.dark_gray()),
    };
    frame.render_widget(line, foot);
}

fn headline(top: &Top) -> Text<'static> {
    let state = top.at("/uplink/state");
    let colour = match state.as_str() {
        "ok" => Color::Green,
        "none" => Color::DarkGray,
        _ => Color::Yellow,
    };
    Text::from(vec![
        Span::from(format!("{}  ", top.at("/gateway"))).bold(),
        Span::from(format!(
            "sparkgate {}  up {}  ",
            top.at("/version"),
            table::age(top.number("/uptime_s"))
        )),
        Span::from(format!("uplink {state}")).fg(colour),
    ])
}

/// A label and its value, the value in a warning colour where it asks for a look.
fn fact(label: &'static str, value: String, warn: bool) -> Text<'static> {
    let value = Span::from(value);
    Text::from(vec![
        Span::from(format!("{label:<14}")).dark_gray(),
        if warn { value.yellow().bold() } else { value },
    ])
}

fn overview(frame: &mut Frame<'_>, area: Rect, top: &Top) {
    let [facts, fill, curve] = Layout::vertical([
        Constraint::Min(11),
        Constraint::Length(3),
        Constraint::Length(5),
    ])
    .areas(area);
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(facts);
    let seconds = |path: &str| {
        top.health()
            .pointer(path)
            .and_then(Value::as_f64)
            .map_or_else(|| "–".to_owned(), |s| table::age(s.max(0.0) as u64))
    };
    let map = |path: &str| {
        top.health()
            .pointer(path)
            .and_then(Value::as_object)
            .filter(|m| !m.is_empty())
            .map_or_else(
                || "none".to_owned(),
                |m| {
                    let words: Vec<String> = m.iter().map(|(k, v)| format!("{k} {v}")).collect();
                    words.join(", ")
                },
            )
    };
    let of = |some: &str, all: &str| format!("{} of {}", top.at(some), top.at(all));
    let missing = top.number("/host/devices_online") < top.number("/host/devices")
        || top.number("/host/nodes_online") < top.number("/host/nodes");
    let failed: u64 = ["timeout", "rejected", "expired", "undone"]
        .iter()
        .map(|k| top.number(&format!("/commands/{k}")))
        .sum();
    // Half a narrow terminal has room for two of them.
    let stages = crate::cli::online::stages(|path| top.at(path));
    let stages: Vec<&str> = stages.split("  ").collect();
    let mut stages = stages.chunks(2).map(|pair| pair.join("  "));
    frame.render_widget(
        Paragraph::new(vec![
            fact("nodes", of("/host/nodes_online", "/host/nodes"), missing),
            fact(
                "devices",
                of("/host/devices_online", "/host/devices"),
                missing,
            ),
            fact(
                "alarms",
                format!(
                    "{} to acknowledge, {} active",
                    top.at("/alarms/unacknowledged"),
                    top.at("/alarms/active")
                ),
                top.number("/alarms/unacknowledged") > 0,
            ),
            fact(
                "rules",
                format!(
                    "{} rules, {} matches, {} errors",
                    top.at("/rules"),
                    top.at("/matches"),
                    top.at("/rule_errors")
                ),
                top.number("/rule_errors") > 0,
            ),
            fact(
                "decision",
                format!(
                    "p50 {} µs, p99 {} µs, {} measured",
                    top.at("/decision_us/p50"),
                    top.at("/decision_us/p99"),
                    top.at("/decision_us/count")
                ),
                false,
            ),
            fact("p50/p99 µs", stages.next().unwrap_or_default(), false),
            fact("", stages.next().unwrap_or_default(), false),
            fact(
                "writes",
                format!(
                    "{} confirmed, {failed} failed or undone",
                    top.number("/commands/confirmed")
                ),
                failed > 0,
            ),
            fact(
                "models",
                format!("{} results", top.at("/inferences")),
                false,
            ),
        ])
        .block(Block::bordered().title("Plant")),
        left,
    );
    frame.render_widget(
        Paragraph::new(vec![
            fact("received", top.at("/received"), false),
            fact("published", top.at("/published"), false),
            fact(
                "waiting",
                format!(
                    "{}, oldest {}, gone in {}",
                    top.at("/pending"),
                    seconds("/uplink/oldest_pending_s"),
                    seconds("/uplink/drain_eta_s")
                ),
                top.number("/pending") > 0 && top.at("/uplink/state") != "ok",
            ),
            fact("filtered", top.at("/filtered"), false),
            fact("dropped", map("/dropped"), map("/dropped") != "none"),
            fact("invalid", map("/invalid"), map("/invalid") != "none"),
            fact(
                "mqtt",
                format!(
                    "{} connections, {} sessions",
                    top.at("/mqtt/connections"),
                    top.at("/mqtt/sessions")
                ),
                false,
            ),
            fact(
                "buffer",
                format!(
                    "memory {}, cold {} objects, disk {}",
                    table::bytes(top.number("/buffer/hot_bytes")),
                    top.at("/buffer/cold_objects"),
                    top.at("/buffer/disk")
                ),
                top.at("/buffer/disk") != "ok",
            ),
        ])
        .block(Block::bordered().title("Records")),
        right,
    );
    let (used, room) = (
        top.number("/buffer/warm_bytes"),
        top.number("/buffer/warm_max_bytes"),
    );
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let share = (used as f64 / room.max(1) as f64).clamp(0.0, 1.0);
    frame.render_widget(
        Gauge::default()
            .block(Block::bordered().title("Journal on disk"))
            .ratio(share)
            .label(format!("{} of {}", table::bytes(used), table::bytes(room)))
            .gauge_style(if share > 0.9 {
                Color::Yellow
            } else {
                Color::Blue
            }),
        fill,
    );
    let rate = top.rates().back().copied().unwrap_or(0);
    let width = usize::from(curve.width.saturating_sub(2));
    let points: Vec<u64> = top
        .rates()
        .iter()
        .skip(top.rates().len().saturating_sub(width))
        .copied()
        .collect();
    frame.render_widget(
        Sparkline::default()
            .block(Block::bordered().title(format!("Messages a second: {rate}")))
            .data(&points)
            .style(Color::Blue),
        curve,
    );
}

fn listing(frame: &mut Frame<'_>, area: Rect, top: &Top) {
    let columns = top.tab().columns();
    let rows = top.lines().iter().map(|line| {
        let row = Row::new(line.cells.iter().map(String::as_str));
        if line.bad { row.yellow() } else { row }
    });
    let title = format!("{} ({})", top.tab().title(), top.lines().len());
    let widths = columns
        .iter()
        .map(|(_, share)| Constraint::Fill((*share).max(1)));
    let table = Table::new(rows, widths)
        .header(Row::new(columns.iter().map(|(name, _)| *name)).dark_gray())
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::bordered().title(title));
    let mut state = TableState::new();
    if !top.lines().is_empty() {
        state.select(Some(top.selected()));
    }
    frame.render_stateful_widget(table, area, &mut state);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    fn screen(top: &Top, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, top)).unwrap();
        terminal.backend().to_string()
    }

    fn status() -> Value {
        json!({
            "gateway": "site-a", "version": "1.2.3", "uptime_s": 3725, "time": 1, "messages": 5,
            "uplink": {"state": "refused", "oldest_pending_s": 61.0, "drain_eta_s": null},
            "pending": 42, "host": {"nodes": 2, "nodes_online": 1, "devices": 3, "devices_online": 3},
            "alarms": {"unacknowledged": 1, "active": 2}, "dropped": {"quota": 7},
            "buffer": {"warm_bytes": 1 << 20, "warm_max_bytes": 4 << 20, "hot_bytes": 0, "cold_objects": 0, "disk": "ok"},
        })
    }

    #[test]
    fn the_overview_tells_what_matters() {
        let mut top = Top::default();
        top.status(status());
        let shown = screen(&top, 100, 30);
        for part in [
            "site-a",
            "up 1h 2m",
            "uplink refused",
            "1 of 2",
            "1 to acknowledge, 2 active",
            "42, oldest 1m 1s, gone in –",
            "quota 7",
            "1.0 MiB of 4.0 MiB",
        ] {
            assert!(shown.contains(part), "{part} is missing in\n{shown}");
        }
    }

    #[test]
    fn a_listing_shows_rows_and_a_lost_gateway() {
        let mut top = Top::default();
        top.status(status());
        top.show('3');
        top.list(&json!([{"id": "x", "state": "unack", "priority": "high", "group": "g", "node": "n", "device": "press-1", "message": "too hot"}]));
        let shown = screen(&top, 120, 12);
        for part in ["Alarms (1)", "g/n/press-1", "too hot", "a: acknowledge"] {
            assert!(shown.contains(part), "{part} is missing in\n{shown}");
        }
        top.lost("no gateway answers".to_owned());
        assert!(screen(&top, 120, 12).contains("no gateway answers"));
    }

    #[test]
    fn no_size_of_a_terminal_is_too_small() {
        let mut top = Top::default();
        top.status(status());
        for digit in '1'..='6' {
            top.show(digit);
            for (width, height) in [(1, 1), (20, 5), (80, 24)] {
                screen(&top, width, height);
            }
        }
    }
}
