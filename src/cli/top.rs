//! `sparkgate top`: the page's story in a terminal, over the same API.
//!
//! [`state`] is what was read and what is chosen, [`view`] draws it; neither knows a terminal or a gateway. This file
//! is the loop: read, draw, wait for a key or for the next reading.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::bail;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::json;

use super::client::Client;
use super::{Reach, online};
use crate::config::quantity::Span;
use crate::telemetry::chain;

mod state;
mod view;

use state::{Tab, Top};

/// Shortest time between two readings: a person sees no more, and each costs the gateway a question.
const SHORTEST: Duration = Duration::from_millis(200);

/// What a key does.
enum Wish {
    Nothing,
    Read,
    Acknowledge(String),
    Leave,
}

/// Runs until `q`, Esc or Ctrl-C.
pub(super) fn top(reach: &Reach, every: Span) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        bail!("top needs a terminal; `sparkgate status -o json` is for programs");
    }
    let client = Client::new(reach)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let every = Duration::from_millis(every.as_millis()).max(SHORTEST);
    let mut top = Top::default();
    // The first answer comes before the screen is taken over: "no gateway answers" belongs on the plain terminal.
    top.status(runtime.block_on(client.get("/api/status"))?);
    let mut terminal = ratatui::try_init()?;
    let done = (|| -> anyhow::Result<()> {
        loop {
            read(&runtime, &client, &mut top);
            let next = Instant::now() + every;
            loop {
                terminal.draw(|frame| view::draw(frame, &top))?;
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() || !event::poll(left)? {
                    break;
                }
                match wish(&mut top, &event::read()?) {
                    Wish::Nothing => {}
                    Wish::Read => break,
                    Wish::Acknowledge(id) => {
                        let path = format!("/api/alarms/{}/ack", online::encode(&id));
                        let said = runtime.block_on(client.post(&path, &json!({"note": ""})));
                        top.said(match said {
                            Ok(_) => format!("{id} acknowledged"),
                            Err(error) => chain(error.as_ref()),
                        });
                        break;
                    }
                    Wish::Leave => return Ok(()),
                }
            }
        }
    })();
    ratatui::try_restore()?;
    done
}

/// Reads health and the chosen tab's listing. A gateway that is gone is shown, and asked again.
fn read(runtime: &tokio::runtime::Runtime, client: &Client, top: &mut Top) {
    let answer = runtime.block_on(async {
        let status = client.get("/api/status").await?;
        let list = match top.tab().path() {
            Some(path) => Some(client.get(path).await?),
            None => None,
        };
        anyhow::Ok((status, list))
    });
    match answer {
        Ok((status, list)) => {
            top.status(status);
            if let Some(list) = list {
                top.list(&list);
            }
        }
        Err(error) => top.lost(chain(error.as_ref())),
    }
}

fn wish(top: &mut Top, event: &Event) -> Wish {
    let Event::Key(key) = event else {
        return Wish::Nothing;
    };
    if key.kind == KeyEventKind::Release {
        return Wish::Nothing;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Wish::Leave,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Leave,
        KeyCode::Tab | KeyCode::Right => top.turn(1),
        KeyCode::BackTab | KeyCode::Left => top.turn(-1),
        KeyCode::Char(digit @ '1'..='6') => top.show(digit),
        KeyCode::Down | KeyCode::Char('j') => return moved(top, 1),
        KeyCode::Up | KeyCode::Char('k') => return moved(top, -1),
        KeyCode::PageDown => return moved(top, 20),
        KeyCode::PageUp => return moved(top, -20),
        KeyCode::Home => return moved(top, isize::MIN),
        KeyCode::End => return moved(top, isize::MAX),
        KeyCode::Char('a') if top.tab() == Tab::Alarms => {
            return top.chosen().map_or(Wish::Nothing, Wish::Acknowledge);
        }
        _ => return Wish::Nothing,
    }
    Wish::Read
}

fn moved(top: &mut Top, by: isize) -> Wish {
    top.move_by(by);
    Wish::Nothing
}
