//! A seeded simulation: the drain against a model of JetStream that loses acknowledgements, delivers what
//! broken connections still held, restarts, rolls back, purges, is deleted, fills up, refuses, calls
//! fresh messages duplicates, and takes messages of others; while the gateway is killed in between.
//!
//! `SPARKGATE_SIM_SEEDS=A..B` replays or widens the sweep.

use std::collections::{HashMap, VecDeque};

use super::resume::{Mark, Stored};
use super::*;
use crate::backoff::Jitter;
use crate::bridge::classify::Refusal;

const RECORDS: u64 = 400;

/// Which hostilities a run has.
#[derive(Clone, Copy, Debug)]
struct Hostile {
    purge: bool,
    rollback: bool,
    recreate: bool,
    foreign: bool,
    phantom: bool,
    full: bool,
    refuse_record: bool,
    filter: bool,
    retention: bool,
    batch: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Body {
    Ours { mark: Mark, content: Content },
    Foreign,
}

#[derive(Clone, Debug)]
struct Message {
    body: Body,
    id: Option<(u64, u32)>,
    visible: bool,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    created: u64,
    messages: Vec<Message>,
}

#[derive(Clone, Debug)]
enum Request {
    Publish(Publish),
    Inspect,
    LookUp(u64),
}

#[derive(Clone, Debug)]
enum Reply {
    Stored {
        token: u64,
        seq: u64,
        duplicate: bool,
    },
    Refused {
        token: u64,
        refusal: Refusal,
    },
    Inspected(resume::Inspection),
    NoStream,
    LookedUp(Stored),
}

#[derive(Default, Debug)]
struct Connection {
    to_server: VecDeque<Request>,
    to_client: VecDeque<Reply>,
}

struct Server {
    stream: Stream,
    snapshots: Vec<Stream>,
    ids: HashMap<(u64, u32), (u64, Duration)>,
    dedupe: Duration,
    full: bool,
    busy: bool,
    missing: bool,
    poisoned: Option<u64>,
    /// What is poisoned is refused for a reason that nobody knows.
    strange: bool,
    /// Everything is refused so.
    deny: bool,
    pending_batch: Vec<Publish>,
}

fn refused(token: u64, code: u16, err_code: u32) -> Reply {
    Reply::Refused {
        token,
        refusal: Refusal {
            code,
            err_code,
            description: format!("{err_code}"),
        },
    }
}

impl Server {
    fn last_seq(&self) -> u64 {
        self.stream.messages.len() as u64
    }

    fn stored(&self, seq: u64) -> Stored {
        match self.stream.messages.get((seq.wrapping_sub(1)) as usize) {
            Some(message) if message.visible => match message.body {
                Body::Ours { mark, .. } => Stored::Ours(mark),
                Body::Foreign => Stored::Foreign,
            },
            _ => Stored::Missing,
        }
    }

    fn handle(&mut self, now: Duration, request: Request) -> Option<Reply> {
        Some(match request {
            Request::Inspect if self.missing => Reply::NoStream,
            Request::Inspect => Reply::Inspected(resume::Inspection {
                created: self.stream.created,
                last_seq: self.last_seq(),
                tail: self.stored(self.last_seq()),
            }),
            Request::LookUp(seq) => Reply::LookedUp(self.stored(seq)),
            Request::Publish(publish) => return self.publish(now, publish),
        })
    }

    fn publish(&mut self, now: Duration, publish: Publish) -> Option<Reply> {
        let token = publish.token;
        let Some(place) = publish.batch else {
            return Some(self.store(now, &[publish]));
        };
        if place.sequence == 1 {
            self.pending_batch.clear();
        }
        self.pending_batch.push(publish);
        if !place.commit {
            return None;
        }
        let batch = std::mem::take(&mut self.pending_batch);
        if batch.len() as u32 != place.sequence
            || batch.iter().any(|p| p.batch.unwrap().id != place.id)
        {
            return Some(refused(token, 400, 10176));
        }
        Some(self.store(now, &batch))
    }

    /// In the server's own order: duplicate, expected sequence, limits, store.
    fn store(&mut self, now: Duration, messages: &[Publish]) -> Reply {
        let (first, last) = (messages[0], messages[messages.len() - 1]);
        let id = (first.mark.record, first.mark.part);
        if self.deny {
            return refused(last.token, 400, 10999);
        }
        if self.missing {
            return Reply::Refused {
                token: last.token,
                refusal: Refusal::no_responders(),
            };
        }
        if first.msg_id
            && let Some((seq, at)) = self.ids.get(&id)
            && now - *at < self.dedupe
        {
            return Reply::Stored {
                token: last.token,
                seq: *seq,
                duplicate: true,
            };
        }
        if first.expected_last != self.last_seq() {
            return refused(last.token, 400, 10071);
        }
        let last_id = self.stream.messages.last().and_then(|message| message.id);
        if let Some(before) = first.follows
            && last_id != Some((before.record, before.part))
        {
            return refused(last.token, 400, 10070);
        }
        if self.busy {
            return refused(last.token, 503, 10008);
        }
        if self.full {
            return refused(last.token, 503, 10077);
        }
        if messages
            .iter()
            .any(|m| Some(m.mark.record) == self.poisoned && m.content == Content::Part)
        {
            let code = if self.strange { 10999 } else { 10054 };
            return refused(last.token, 400, code);
        }
        for message in messages {
            self.stream.messages.push(Message {
                body: Body::Ours {
                    mark: message.mark,
                    content: message.content,
                },
                id: message
                    .msg_id
                    .then_some((message.mark.record, message.mark.part)),
                visible: true,
            });
            if message.msg_id {
                self.ids.insert(
                    (message.mark.record, message.mark.part),
                    (self.last_seq(), now),
                );
            }
        }
        Reply::Stored {
            token: last.token,
            seq: self.last_seq(),
            duplicate: false,
        }
    }
}

struct Sim {
    rng: Jitter,
    hostile: Hostile,
    now: Duration,
    drain: Drain,
    limits: Limits,
    server: Server,
    connection: Option<Connection>,
    zombies: Vec<Connection>,
    head: u64,
    oldest_kept: u64,
    persisted: VecDeque<(Option<Checkpoint>, u64)>,
    published: u64,
    filtered: u64,
    unsendable: u64,
    reads: Option<(u64, u64, u64)>,
    holes: bool,
    trace: Vec<String>,
}

fn parts(record: u64) -> u32 {
    if record.is_multiple_of(17) { 3 } else { 1 }
}

impl Sim {
    fn new(seed: u64, hostile: Hostile) -> Self {
        let mut rng = Jitter::new(seed);
        let limits = Limits {
            window: 1 + (rng.next_u64() % 40) as usize,
            min_window: 4,
            read_records: 1 + (rng.next_u64() % 50) as usize,
            batch: hostile.batch.then_some(10),
            backfill_rate: rng.next_u64().is_multiple_of(3).then_some(200.0),
            ..Limits::default()
        };
        let poisoned = hostile.refuse_record.then(|| 1 + rng.next_u64() % RECORDS);
        let dedupe = if rng.next_u64().is_multiple_of(2) {
            1
        } else {
            120
        };
        Self {
            drain: Drain::new(limits.clone(), None, 0, 0, seed, Duration::ZERO),
            rng,
            hostile,
            now: Duration::ZERO,
            limits,
            server: Server {
                stream: Stream {
                    created: 1,
                    messages: Vec::new(),
                },
                snapshots: Vec::new(),
                ids: HashMap::new(),
                dedupe: Duration::from_secs(dedupe),
                full: false,
                busy: false,
                missing: false,
                poisoned,
                strange: false,
                deny: false,
                pending_batch: Vec::new(),
            },
            connection: None,
            zombies: Vec::new(),
            head: 0,
            oldest_kept: 1,
            persisted: VecDeque::from([(None, 0)]),
            published: 0,
            filtered: 0,
            unsendable: 0,
            reads: None,
            holes: false,
            trace: Vec::new(),
        }
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.rng.next_u64() % 1000 < per_mille
    }

    fn is_filtered(&self, record: u64) -> bool {
        self.hostile.filter && record % 5 == 2
    }

    fn unit(&self, record: u64) -> Unit {
        Unit {
            record,
            lane_prev: record - 1,
            explains_gap: false,
            work: if self.is_filtered(record) {
                Work::Filtered
            } else {
                Work::Send {
                    parts: parts(record),
                }
            },
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.drain.poll_action(self.now) {
            self.trace.push(format!("{:?} {action:?}", self.now));
            match action {
                Action::Connect => {
                    if self.hostile_now() && self.chance(200) {
                        self.drain
                            .handle_connect_failed(self.now, UplinkState::Refused, "refused");
                    } else {
                        self.connection = Some(Connection::default());
                        self.drain.handle_connected(self.now);
                    }
                }
                Action::Disconnect => self.cut(),
                Action::Inspect => self.send(Request::Inspect),
                Action::LookUp { stream_seq } => self.send(Request::LookUp(stream_seq)),
                Action::Read { after, ticket, .. } => {
                    // The reading looks now; what it found is known later.
                    self.reads = Some((after, ticket, self.head));
                }
                Action::Publish(publish) => self.send(Request::Publish(publish)),
                Action::Keep(checkpoint) => {
                    let acked = self.persisted.back().unwrap().1;
                    self.persisted.clear();
                    self.persisted.push_back((Some(checkpoint), acked));
                }
                Action::Ack {
                    up_to,
                    published,
                    filtered,
                    unsendable,
                    checkpoint,
                } => {
                    let acked = self.persisted.back().unwrap().1;
                    assert!(up_to > acked, "the cursor never goes back");
                    assert_eq!(
                        u64::from(published + filtered + unsendable),
                        up_to - acked,
                        "each record is counted once"
                    );
                    self.published += u64::from(published);
                    self.filtered += u64::from(filtered);
                    self.unsendable += u64::from(unsendable);
                    self.persisted.push_back((Some(checkpoint), up_to));
                }
                Action::Event(event) => {
                    if matches!(event, Event::Hole { .. }) {
                        assert!(
                            self.hostile.retention,
                            "a hole where all is kept: {event:?}"
                        );
                        self.holes = true;
                    }
                    if let Event::Ahead { .. } = event {
                        panic!("ahead of a whole journal");
                    }
                }
            }
        }
    }

    fn hostile_now(&self) -> bool {
        self.head < RECORDS
    }

    fn send(&mut self, request: Request) {
        if let Some(connection) = self.connection.as_mut() {
            connection.to_server.push_back(request);
        }
    }

    fn cut(&mut self) {
        if let Some(connection) = self.connection.take() {
            // What it still held may reach the server later.
            self.zombies.push(connection);
        }
    }

    fn serve(&mut self) {
        let Some(connection) = self.connection.as_mut() else {
            return;
        };
        if let Some(request) = connection.to_server.pop_front()
            && let Some(reply) = self.server.handle(self.now, request)
        {
            connection.to_client.push_back(reply);
        }
    }

    fn deliver(&mut self) {
        let Some(reply) = self
            .connection
            .as_mut()
            .and_then(|c| c.to_client.pop_front())
        else {
            return;
        };
        self.trace.push(format!("{:?} <- {reply:?}", self.now));
        match reply {
            Reply::Stored {
                token,
                seq,
                duplicate,
            } => self.drain.handle_stored(self.now, token, seq, duplicate),
            Reply::Refused { token, refusal } => {
                self.drain.handle_refused(self.now, token, &refusal);
            }
            Reply::Inspected(seen) => self.drain.handle_inspected(self.now, seen),
            Reply::NoStream => self.drain.handle_inspect_failed(
                self.now,
                &Refusal {
                    code: 404,
                    err_code: 10059,
                    description: "stream not found".to_owned(),
                },
            ),
            Reply::LookedUp(stored) => self.drain.handle_looked_up(self.now, stored),
        }
    }

    fn read(&mut self) {
        let Some((after, ticket, head)) = self.reads.take() else {
            return;
        };
        let from = (after + 1).max(self.oldest_kept);
        let to = head.min(from + self.limits.read_records as u64);
        let units: Vec<_> = (from..=to).map(|id| self.unit(id)).collect();
        let more = units.last().is_some_and(|last| last.record < head);
        self.drain.handle_units(ticket, &units, more);
    }

    /// kill -9: the journal has its cursor and checkpoint, maybe not the newest.
    fn restart_gateway(&mut self) {
        self.cut();
        let forget = (self.rng.next_u64() % 3) as usize;
        for _ in 0..forget {
            if self.persisted.len() > 1 {
                self.persisted.pop_back();
            }
        }
        let (checkpoint, acked) = *self.persisted.back().unwrap();
        self.reads = None;
        let seed = self.rng.next_u64();
        self.drain = Drain::new(
            self.limits.clone(),
            checkpoint,
            acked,
            self.head,
            seed,
            self.now,
        );
        // Counts come from the journal's cursor.
        let kept = (1..=acked).filter(|id| self.is_filtered(*id)).count() as u64;
        self.filtered = kept;
        self.unsendable = 0;
        self.published = acked - kept;
        self.trace
            .push(format!("restart at {acked} {checkpoint:?}"));
    }

    fn disturb(&mut self) {
        let hostile = self.hostile;
        match self.rng.next_u64() % 12 {
            0 if self.chance(300) => {
                self.cut();
                self.drain.handle_disconnected(self.now, "reset");
            }
            1 => {
                // The connection lies dead: nothing comes back.
                if self.chance(100)
                    && let Some(connection) = self.connection.as_mut()
                {
                    connection.to_client.clear();
                    connection.to_server.clear();
                }
            }
            2 => self.server.busy = self.chance(200),
            3 if hostile.full => self.server.full = self.chance(300),
            4 if self.chance(100) => self.restart_gateway(),
            5 if hostile.purge && self.chance(100) => {
                let told = self.persisted.back().unwrap().0;
                if told.is_some_and(|point| point.created == self.server.stream.created) {
                    self.trace.push("purge".to_owned());
                    for message in &mut self.server.stream.messages {
                        message.visible = false;
                    }
                }
            }
            6 if hostile.rollback => {
                if self.chance(300) {
                    self.server.snapshots.push(self.server.stream.clone());
                } else if self.chance(50)
                    && let Some(older) = self.server.snapshots.pop()
                {
                    self.trace
                        .push(format!("rollback to {}", older.messages.len()));
                    self.cut();
                    self.zombies.clear();
                    self.drain.handle_disconnected(self.now, "restart");
                    self.server.snapshots.clear();
                    self.server.ids = older
                        .messages
                        .iter()
                        .enumerate()
                        .filter_map(|(i, m)| Some((m.id?, (i as u64 + 1, self.now))))
                        .collect();
                    self.server.stream = older;
                }
            }
            7 if hostile.recreate && self.chance(50) => {
                self.trace.push("recreate".to_owned());
                self.server.missing = true;
                self.server.stream = Stream {
                    created: self.server.stream.created + 1,
                    messages: Vec::new(),
                };
                self.server.ids.clear();
                self.server.snapshots.clear();
            }
            8 => self.server.missing = false,
            9 if hostile.foreign && self.chance(60) && !self.server.missing => {
                self.trace.push("foreign".to_owned());
                self.server.stream.messages.push(Message {
                    body: Body::Foreign,
                    id: None,
                    visible: true,
                });
            }
            10 if hostile.phantom && self.chance(100) => {
                let record = self.drain.acked() + 1 + self.rng.next_u64() % 20;
                let at = self.now;
                self.server.ids.entry((record, 1)).or_insert((1, at));
            }
            11 if hostile.retention && self.chance(100) => {
                let acked = self.persisted.front().unwrap().1;
                self.oldest_kept = self.oldest_kept.max(acked.saturating_sub(30));
            }
            _ => {}
        }
        while self.persisted.len() > 3 {
            self.persisted.pop_front();
        }
        if self.chance(300)
            && let Some(index) = self.zombies.len().checked_sub(1)
        {
            let server = &mut self.server;
            let zombie = &mut self.zombies[index];
            match zombie.to_server.pop_front() {
                Some(request) => drop(server.handle(self.now, request)),
                None => drop(self.zombies.pop()),
            }
        }
    }

    fn step(&mut self) {
        match self.rng.next_u64() % 8 {
            0 => {
                if self.head < RECORDS {
                    self.head += 1 + self.rng.next_u64() % 5;
                    self.drain.handle_appended(self.head);
                }
            }
            1 | 2 => self.serve(),
            3 | 4 => self.deliver(),
            5 => self.read(),
            6 => self.now += Duration::from_millis(self.rng.next_u64() % 50),
            _ => {
                if self.hostile_now() {
                    self.disturb();
                }
            }
        }
        self.drain.handle_timeout(self.now);
        self.act();
    }

    /// What can move, moves; else time goes on to the next thing that is due.
    fn turn(&mut self) {
        let moved = self.reads.is_some()
            || self
                .connection
                .as_ref()
                .is_some_and(|c| !c.to_server.is_empty() || !c.to_client.is_empty());
        self.serve();
        self.deliver();
        self.read();
        self.act();
        if !moved {
            self.now = match self.drain.poll_timeout() {
                Some(at) => at.max(self.now),
                None => {
                    // A request to the API went unanswered: the shell's time limit.
                    self.cut();
                    self.drain.handle_disconnected(self.now, "no answer");
                    self.now
                }
            };
        }
        self.drain.handle_timeout(self.now);
        self.act();
    }

    /// Peace: everything works again; the lane must come to rest.
    fn heal(&mut self) {
        self.server.busy = false;
        self.server.full = false;
        self.server.missing = false;
        for _ in 0..200_000 {
            if self.drain.is_idle() && self.drain.acked() == self.head {
                return;
            }
            self.turn();
        }
        panic!("never came to rest: {:?}", self.drain);
    }

    fn check(&self) {
        let mut prev = 0;
        let mut done = vec![false; self.head as usize + 1];
        let mut open: Option<Mark> = None;
        for (index, message) in self.server.stream.messages.iter().enumerate() {
            let Body::Ours { mark, content } = &message.body else {
                continue;
            };
            assert_eq!(mark.prev, prev, "Sparkgate-Prev at {}", index + 1);
            match content {
                Content::Part => {
                    assert_eq!(mark.parts, parts(mark.record));
                    match open {
                        Some(before) => {
                            assert_eq!((mark.record, mark.part), (before.record, before.part + 1));
                        }
                        None => {
                            assert_eq!(mark.part, 1);
                            assert!(mark.record > prev);
                        }
                    }
                }
                Content::Unsendable => assert_eq!(Some(mark.record), self.server.poisoned),
                Content::Hole { from } => {
                    assert!(self.holes);
                    for id in *from..mark.record {
                        done[id as usize] = true;
                    }
                }
            }
            open = (mark.part < mark.parts).then_some(*mark);
            if open.is_none() {
                assert!(!done[mark.record as usize], "{} twice", mark.record);
                done[mark.record as usize] = true;
                prev = mark.record;
            }
        }
        for id in 1..=self.head {
            assert_eq!(done[id as usize], !self.is_filtered(id), "record {id}");
        }
        assert_eq!(self.published + self.filtered + self.unsendable, self.head);
    }
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    std::env::var("SPARKGATE_SIM_SEEDS")
        .ok()
        .and_then(|text| {
            let (from, to) = text.split_once("..")?;
            Some(from.parse().ok()?..to.parse().ok()?)
        })
        .unwrap_or(0..default)
}

fn run(seed: u64, hostile: Hostile) -> Counters {
    let mut sim = Sim::new(seed, hostile);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..6000 {
            sim.step();
        }
        sim.head = sim.head.max(RECORDS);
        sim.drain.handle_appended(sim.head);
        sim.heal();
        sim.check();
        sim.drain.counters()
    }));
    outcome.unwrap_or_else(|panic| {
        let lines = std::env::var("SPARKGATE_SIM_LINES")
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(80);
        for line in sim.trace.iter().rev().take(lines).rev() {
            println!("{line}");
        }
        println!("seed {seed} with {hostile:?}");
        std::panic::resume_unwind(panic)
    })
}

const CALM: Hostile = Hostile {
    purge: false,
    rollback: false,
    recreate: false,
    foreign: false,
    phantom: false,
    full: false,
    refuse_record: false,
    filter: false,
    retention: false,
    batch: false,
};

fn sweep(count: u64, hostile: Hostile) {
    for seed in seeds(count) {
        run(seed, hostile);
    }
}

#[test]
fn lost_acks_cuts_and_kills_leave_each_record_once_in_order() {
    sweep(150, CALM);
}

#[test]
fn filters_refusals_and_a_full_stream_change_nothing_for_the_rest() {
    sweep(
        100,
        Hostile {
            filter: true,
            full: true,
            refuse_record: true,
            ..CALM
        },
    );
}

#[test]
fn a_way_that_is_open_is_taken_at_once() {
    let mut now = Duration::ZERO;
    let mut drain = Drain::new(Limits::default(), None, 0, 0, 1, now);
    while drain
        .poll_timeout()
        .is_none_or(|at| at < now + Duration::from_secs(10))
    {
        now = drain.poll_timeout().unwrap_or(now);
        drain.handle_timeout(now);
        assert_eq!(drain.poll_action(now), Some(Action::Connect));
        drain.handle_connect_failed(now, UplinkState::Refused, "");
    }
    drain.handle_reachable(now);
    drain.handle_timeout(now);
    assert_eq!(drain.poll_action(now), Some(Action::Connect));
    // While one is being made, and when it stands, there is nothing to hurry.
    drain.handle_reachable(now);
    assert_eq!((drain.poll_action(now), drain.poll_timeout()), (None, None));
}

#[test]
fn a_first_record_that_is_refused_for_no_known_reason_gives_way_to_a_gap() {
    for seed in seeds(30) {
        let mut sim = Sim::new(seed, CALM);
        (sim.server.poisoned, sim.server.strange) = (Some(1), true);
        sim.head = RECORDS;
        sim.drain.handle_appended(sim.head);
        sim.heal();
        sim.check();
        assert_eq!(sim.unsendable, 1);
    }
}

#[test]
fn where_everything_is_refused_nothing_is_thrown_away() {
    for seed in seeds(30) {
        let mut sim = Sim::new(seed, CALM);
        sim.server.deny = true;
        sim.head = RECORDS;
        sim.drain.handle_appended(sim.head);
        let mut trials = 0;
        for _ in 0..20_000 {
            let on_trial = sim.drain.trial.is_some();
            sim.turn();
            trials += u32::from(on_trial && sim.drain.trial.is_none());
            if trials == 3 {
                break;
            }
        }
        assert_eq!(trials, 3, "a gap was tried and refused");
        sim.server.deny = false;
        sim.heal();
        sim.check();
        assert_eq!((sim.unsendable, sim.published), (0, RECORDS));
    }
}

#[test]
fn a_purged_stream_goes_on_where_it_was() {
    sweep(
        100,
        Hostile {
            purge: true,
            ..CALM
        },
    );
}

#[test]
fn a_stream_that_rolled_back_is_filled_again() {
    sweep(
        100,
        Hostile {
            rollback: true,
            ..CALM
        },
    );
}

#[test]
fn a_recreated_stream_is_filled_again() {
    sweep(
        100,
        Hostile {
            recreate: true,
            rollback: true,
            filter: true,
            ..CALM
        },
    );
}

#[test]
fn what_is_no_longer_kept_is_told_as_a_hole() {
    sweep(
        100,
        Hostile {
            recreate: true,
            retention: true,
            ..CALM
        },
    );
}

#[test]
fn another_publisher_fences_and_is_survived() {
    sweep(
        100,
        Hostile {
            foreign: true,
            ..CALM
        },
    );
}

#[test]
fn false_duplicates_are_not_taken_on_faith() {
    sweep(
        100,
        Hostile {
            phantom: true,
            full: true,
            ..CALM
        },
    );
}

#[test]
fn atomic_batches_are_whole_or_absent() {
    sweep(
        100,
        Hostile {
            batch: true,
            full: true,
            filter: true,
            ..CALM
        },
    );
}
