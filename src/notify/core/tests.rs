use super::*;

fn now(engine_ms: u64) -> Now {
    // 2026-06-01T00:00:00Z at engine time 0.
    Now {
        engine_ms,
        wall_ms: 1_780_272_000_000 + engine_ms,
        trusted: true,
    }
}

fn settings() -> Settings {
    Settings {
        group_ms: 10_000,
        at_once: Priority::Critical,
        retry_max_ms: 8_000,
        give_up_ms: 100_000,
        quiet: None,
        min_priority: Priority::Low,
        clears: true,
    }
}

fn alarm(record: RecordId, id: &str, event: &str, priority: Priority) -> Option<Alarm> {
    Some(Alarm {
        record,
        id: id.into(),
        event: event.into(),
        priority,
        source: "g/n/d".into(),
        message: id.into(),
        body: Arc::new(serde_json::json!({"state": "unack"})),
    })
}

fn channel() -> Channel {
    Channel::new(settings(), Progress::default())
}

fn told(message: Option<Message>) -> Vec<String> {
    let entry = |entry: Entry| format!("{} {}", entry.alarm.id, entry.events.join("+"));
    message
        .into_iter()
        .flat_map(|m| m.entries)
        .map(entry)
        .collect()
}

#[test]
fn what_comes_together_is_one_message_most_urgent_first() {
    let mut channel = channel();
    channel.handle_alarm(now(0), 1, alarm(1, "a", "raise", Priority::Low));
    channel.handle_alarm(now(4_000), 2, alarm(2, "b", "raise", Priority::High));
    channel.handle_alarm(now(6_000), 3, alarm(3, "a", "clear", Priority::Low));
    channel.handle_alarm(now(6_000), 4, alarm(4, "a", "ack", Priority::Low));
    channel.handle_alarm(now(6_000), 5, alarm(5, "c", "raise", Priority::Diagnostic));
    assert_eq!(channel.poll_message(now(9_999)), None);
    assert_eq!(channel.poll_timeout(now(9_999)), Some(10_000));
    let message = channel.poll_message(now(10_000));
    assert_eq!(message.as_ref().map(|m| m.span), Some((1, 3)));
    assert_eq!(told(message), ["b raise", "a raise+clear"]);
    assert_eq!(channel.progress().start(), 0);
    channel.handle_sent();
    assert_eq!(
        channel.progress(),
        Progress {
            cursor: 5,
            ..Progress::default()
        }
    );
    assert_eq!(channel.poll_timeout(now(10_000)), None);
}

#[test]
fn an_urgent_alarm_takes_along_what_waits() {
    let mut channel = channel();
    channel.handle_alarm(now(0), 1, alarm(1, "a", "raise", Priority::Low));
    channel.handle_alarm(now(1), 2, alarm(2, "b", "raise", Priority::Critical));
    assert_eq!(told(channel.poll_message(now(1))), ["b raise", "a raise"]);
}

#[test]
fn a_failed_message_stays_the_same_waits_longer_each_time_and_is_given_up() {
    let mut channel = channel();
    channel.handle_alarm(now(0), 1, alarm(1, "a", "raise", Priority::Critical));
    let first = channel.poll_message(now(0));
    let mut at = 0;
    for wait in [1_000, 2_000, 4_000, 8_000, 8_000] {
        channel.handle_failed(now(at), Failure::Transient);
        channel.handle_alarm(now(at), 2, alarm(2, "b", "raise", Priority::High));
        assert_eq!(channel.poll_message(now(at + wait - 1)), None);
        at += wait;
        assert_eq!(channel.poll_timeout(now(at)), Some(at));
        assert_eq!(channel.poll_message(now(at)), first);
    }
    channel.handle_failed(now(at), Failure::Refused);
    assert_eq!(channel.poll_timeout(now(at)), Some(at + 8_000));
    channel.handle_timeout(now(99_999));
    assert_eq!(channel.counts().given_up, 0);
    channel.handle_timeout(now(100_000));
    assert_eq!((channel.counts().given_up, channel.counts().failed), (1, 6));
    // The next message says what is missing.
    let next = channel.poll_message(now(100_000)).unwrap();
    assert_eq!((next.left_out, next.span), (1, (2, 2)));
}

#[test]
fn quiet_hours_hold_back_what_is_not_urgent_until_their_end() {
    let quiet: Quiet =
        toml::from_str("from = \"23:00\"\nto = \"01:00\"\nexcept = \"high\"\nzone = \"UTC\"")
            .unwrap();
    let settings = Settings {
        quiet: Some(quiet),
        ..settings()
    };
    let mut channel = Channel::new(settings.clone(), Progress::default());
    channel.handle_alarm(now(0), 1, alarm(1, "a", "raise", Priority::Medium));
    channel.handle_alarm(now(0), 2, alarm(2, "b", "raise", Priority::High));
    assert_eq!(told(channel.poll_message(now(10_000))), ["b raise"]);
    channel.handle_sent();
    // A restart in between repeats nothing and forgets nothing.
    let progress = channel.progress();
    assert_eq!((progress.cursor, progress.start()), (2, 0));
    assert_eq!(progress.pending, BTreeSet::from([1]));
    let kept = Progress::decode(&progress.encode("e1"), "e1").unwrap();
    assert_eq!(kept, progress);
    assert_eq!(Progress::decode(&progress.encode("e1"), "e2"), None);
    let mut channel = Channel::new(settings, kept);
    channel.handle_alarm(now(20_000), 1, alarm(1, "a", "raise", Priority::Medium));
    channel.handle_alarm(now(20_000), 2, alarm(2, "b", "raise", Priority::High));
    let hour = 3_600_000;
    assert_eq!(channel.poll_message(now(hour - 1)), None);
    assert!(
        channel
            .poll_timeout(now(hour - 1))
            .is_some_and(|at| at < hour + LOOK_MS)
    );
    assert_eq!(told(channel.poll_message(now(hour))), ["a raise"]);
    channel.handle_sent();
    assert_eq!(
        channel.progress(),
        Progress {
            cursor: 2,
            ..Progress::default()
        }
    );
    // A clock that is not to be trusted keeps nobody waiting.
    channel.handle_alarm(now(0), 3, alarm(3, "c", "raise", Priority::Medium));
    let lost = Now {
        trusted: false,
        ..now(10_000)
    };
    assert_eq!(told(channel.poll_message(lost)), ["c raise"]);
}

#[test]
fn too_many_waiting_leave_out_the_oldest_of_the_least_urgent() {
    let mut channel = channel();
    for n in 1..=MOST_WAITING as u64 + 5 {
        let priority = if n <= 10 {
            Priority::High
        } else {
            Priority::Low
        };
        channel.handle_alarm(now(0), n, alarm(n, &format!("a{n}"), "raise", priority));
    }
    assert_eq!(
        (channel.pending(), channel.counts().left_out),
        (MOST_WAITING, 5)
    );
    let message = channel.poll_message(now(10_000)).unwrap();
    assert_eq!(
        (message.entries.len(), message.left_out),
        (MOST_IN_MESSAGE, 5)
    );
    assert_eq!(message.entries[0].alarm.priority, Priority::High);
    channel.handle_sent();
    assert!(
        channel.poll_message(now(10_000)).is_some(),
        "the rest follows at once"
    );
}

#[test]
fn what_somebody_put_aside_is_not_told() {
    let mut channel = channel();
    let mut shelved = alarm(1, "a", "raise", Priority::High).unwrap();
    shelved.body = Arc::new(serde_json::json!({"state": "shelved"}));
    channel.handle_alarm(now(0), 1, Some(shelved));
    channel.handle_alarm(now(0), 2, None);
    assert_eq!(channel.poll_message(now(60_000)), None);
    assert_eq!(channel.progress().cursor, 2);
}

#[test]
fn what_is_kept_is_bounded_by_what_may_wait() {
    let mut channel = channel();
    channel.handle_alarm(now(0), 1, alarm(1, "a", "raise", Priority::Critical));
    assert!(channel.poll_message(now(0)).is_some());
    channel.handle_failed(now(0), Failure::Transient);
    for n in 2..20_000 {
        channel.handle_alarm(now(0), n, alarm(n, &n.to_string(), "raise", Priority::Low));
    }
    let progress = channel.progress();
    assert_eq!((progress.cursor, progress.start()), (19_999, 0));
    assert_eq!(progress.pending.len(), MOST_WAITING);
    assert_eq!(progress.messages, [[1]]);
    assert_eq!(channel.counts().left_out, 18_998);
    // What was left out is not read again; what waits is.
    let mut again = Channel::new(settings(), progress);
    for n in 1..20_000 {
        again.handle_alarm(now(0), n, alarm(n, &n.to_string(), "raise", Priority::Low));
    }
    assert_eq!(again.pending(), MOST_WAITING + 1);
}

#[test]
fn a_restart_sends_the_very_message_that_was_tried() {
    let mut channel = channel();
    channel.handle_alarm(now(0), 1, alarm(1, "a", "raise", Priority::Low));
    channel.handle_alarm(now(0), 4, alarm(4, "b", "raise", Priority::Critical));
    let tried = channel.poll_message(now(0)).unwrap();
    channel.handle_alarm(now(1), 6, alarm(6, "c", "raise", Priority::Low));
    let kept = Progress::decode(&channel.progress().encode("e"), "e").unwrap();
    assert_eq!(kept, channel.progress());
    assert_eq!(kept.messages, [[1, 4]]);
    assert_eq!(kept.pending, BTreeSet::from([6]));
    // Read again, with something new behind it and other settings.
    let urgent = Settings {
        min_priority: Priority::High,
        ..settings()
    };
    let mut again = Channel::new(urgent, kept);
    again.handle_alarm(now(50), 1, alarm(1, "a", "raise", Priority::Low));
    assert_eq!(again.poll_message(now(50)), None, "it is not whole yet");
    assert_eq!(again.progress().messages, [[1, 4]]);
    for (n, id) in [(4, "b"), (5, "n"), (6, "c"), (7, "d")] {
        again.handle_alarm(now(50), n, alarm(n, id, "raise", Priority::Critical));
    }
    let sent = again.poll_message(now(50)).unwrap();
    assert_eq!(
        (sent.span, told(Some(sent))),
        (tried.span, told(Some(tried)))
    );
    again.handle_sent();
    assert_eq!(told(again.poll_message(now(50))), ["c raise", "d raise"]);
    again.handle_sent();
    assert_eq!(again.progress().start(), 7);
    // A record of it that does not come any more holds up nothing.
    let kept = Progress {
        cursor: 9,
        messages: vec![vec![3, 7], vec![4]],
        ..Progress::default()
    };
    let mut again = Channel::new(settings(), kept);
    again.handle_alarm(now(0), 7, alarm(7, "g", "raise", Priority::Low));
    assert_eq!(told(again.poll_message(now(0))), ["g raise"]);
    again.handle_sent();
    assert_eq!(again.progress().messages, Vec::<Vec<RecordId>>::new());
    let mut again = Channel::new(
        settings(),
        Progress {
            cursor: 9,
            messages: vec![vec![3, 8]],
            ..Progress::default()
        },
    );
    again.handle_lost(5, 2);
    again.handle_alarm(now(0), 8, alarm(8, "h", "raise", Priority::Low));
    assert_eq!(told(again.poll_message(now(0))), ["h raise"]);
}

#[test]
fn an_alarm_that_no_receiver_takes_is_found_and_holds_up_nothing() {
    let mut channel = channel();
    for n in 1..=9 {
        channel.handle_alarm(
            now(0),
            n,
            alarm(n, &format!("a{n}"), "raise", Priority::Low),
        );
    }
    channel.handle_alarm(now(0), 10, alarm(10, "a3", "clear", Priority::Low));
    let mut taken = Vec::new();
    let mut spans = BTreeSet::new();
    let mut at = 10_000;
    for _ in 0..12 {
        let Some(message) = channel.poll_message(now(at)) else {
            break;
        };
        spans.insert(message.span);
        let told = told(Some(message));
        // The third is what is wrong with it.
        if told.iter().any(|entry| entry.starts_with("a3 ")) {
            channel.handle_failed(now(at), Failure::Unfit);
        } else {
            channel.handle_sent();
            taken.extend(told);
        }
        at += 1;
    }
    assert_eq!(taken.len(), 8, "{taken:?}");
    assert_eq!(
        channel.progress().messages,
        [[3, 10]],
        "its events stay together"
    );
    assert_eq!(channel.pending(), 1);
    // What comes meanwhile goes out; it is tried again, seldom, and given up in the end.
    channel.handle_alarm(now(at), 11, alarm(11, "new", "raise", Priority::Critical));
    assert_eq!(told(channel.poll_message(now(at))), ["new raise"]);
    channel.handle_sent();
    let due = channel.poll_timeout(now(at)).unwrap();
    assert!(due > at && due <= at + 8_000);
    assert_eq!(told(channel.poll_message(now(due))), ["a3 raise+clear"]);
    channel.handle_failed(now(due), Failure::Unfit);
    channel.handle_timeout(now(110_000));
    assert_eq!(channel.counts().given_up, 1);
    assert_eq!(channel.poll_timeout(now(110_000)), None);
    assert_eq!(channel.progress().start(), 11);
}

#[test]
fn what_is_set_aside_is_bounded() {
    let mut channel = channel();
    for n in 1..=MOST_ASIDE as u64 + 3 {
        channel.handle_alarm(
            now(n),
            n,
            alarm(n, &n.to_string(), "raise", Priority::Critical),
        );
        assert!(channel.poll_message(now(n)).is_some());
        channel.handle_failed(now(n), Failure::Unfit);
    }
    assert_eq!(
        (channel.pending(), channel.counts().given_up),
        (MOST_ASIDE, 3)
    );
}

#[test]
fn an_urgent_alarm_ends_the_pause_of_what_failed() {
    let mut channel = channel();
    channel.handle_alarm(now(0), 1, alarm(1, "a", "raise", Priority::Critical));
    let first = channel.poll_message(now(0));
    channel.handle_failed(now(0), Failure::Refused);
    assert_eq!(channel.poll_message(now(10)), None);
    channel.handle_alarm(now(10), 2, alarm(2, "b", "raise", Priority::Critical));
    assert_eq!(channel.poll_message(now(10)), first);
    channel.handle_sent();
    assert_eq!(told(channel.poll_message(now(10))), ["b raise"]);
}

#[test]
fn alarms_that_left_the_disk_are_said() {
    let mut channel = channel();
    channel.handle_lost(7, 40);
    channel.handle_alarm(now(0), 8, alarm(8, "a", "raise", Priority::Critical));
    let message = channel.poll_message(now(0)).unwrap();
    assert_eq!((message.left_out, channel.counts().left_out), (40, 40));
}
