//! The resume rule: from what the stream's end looks like to the record that goes next.
//!
//! The stream itself is the witness. Its last message names the record it carries, so what follows that
//! record is what is missing. Only when that message is gone (purged, expired) or is not ours does local
//! memory decide: the checkpoint, and what was in flight when the acknowledgements stopped.

use crate::buffer::record::RecordId;

/// What this lane remembers of its stream: where it stood when its content was last certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Identity of the stream: a hash of the server's word on when it was created.
    pub created: u64,
    /// Its last sequence then.
    pub stream_seq: u64,
    /// Everything up to this record was stored.
    pub record: RecordId,
    /// `Sparkgate-Prev` of what comes next.
    pub prev: RecordId,
    /// Parts of the next record that were stored, and of how many.
    pub parts: Option<(u32, u32)>,
}

impl Checkpoint {
    /// Goes on where the checkpoint is, behind `skip` messages more.
    fn resume(&self, skip: u64, expected: u64) -> Resume {
        Resume {
            after: self.record,
            follows: self.parts.is_none().then_some(self.record),
            parts_stored: self.parts,
            prev: self.prev,
            skip,
            expected,
        }
    }
}

/// One message of the stream, by its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// No such message: never there, purged or expired.
    Missing,
    /// Written by this gateway in this epoch.
    Ours(Mark),
    /// Written by this gateway's id in another epoch of its journal.
    OtherEpoch,
    /// Anything else.
    Foreign,
}

/// What one of our messages says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// `Sparkgate-Record`.
    pub record: RecordId,
    /// `Sparkgate-Prev`.
    pub prev: RecordId,
    /// Which part of the record, from 1.
    pub part: u32,
    /// Of how many; 1 for a whole record.
    pub parts: u32,
}

/// The end of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inspection {
    /// Identity of the stream.
    pub created: u64,
    /// Stream sequence of the last message ever stored; 0 for a new stream.
    pub last_seq: u64,
    /// That message.
    pub tail: Stored,
}

/// A message that was in flight when the flow broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspect {
    /// Where it lies if it was stored.
    pub stream_seq: u64,
    /// What it says about itself.
    pub mark: Mark,
}

/// All that this side knows.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The last acknowledgement, if there was one in this epoch.
    pub checkpoint: Option<Checkpoint>,
    /// The journal's own cursor of the lane.
    pub cursor: RecordId,
    /// The journal's newest record in any lane.
    pub head: RecordId,
    /// What was in flight.
    pub suspects: &'a [Suspect],
}

/// Where the flow goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// Read the journal after this record.
    pub after: RecordId,
    /// The record that the first one read must follow, when that is known: anything else is a hole.
    pub follows: Option<RecordId>,
    /// Parts of the first record read that are stored already, and of how many; `None` for a clean start.
    pub parts_stored: Option<(u32, u32)>,
    /// `Sparkgate-Prev` of the first message.
    pub prev: RecordId,
    /// Messages that are known to be stored though they can't be seen: passed over without sending.
    pub skip: u64,
    /// The stream's last sequence.
    pub expected: u64,
}

/// The rule's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Resume(Resume),
    /// Go on, but the stream lost what it had acknowledged: people must know.
    Rewind(Resume, Loss),
    /// Somebody else wrote the stream's end.
    Fenced,
    /// The stream holds records of this epoch that this journal never made: a copy of this gateway runs
    /// elsewhere, or the journal was restored from an older copy.
    Ahead {
        /// The record at the stream's end.
        record: RecordId,
    },
}

/// How a stream lost acknowledged messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its last sequence went backwards: the server came back with an older store.
    RolledBack {
        /// Last sequence that we saw acknowledged.
        from_seq: u64,
        /// Last sequence now.
        to_seq: u64,
    },
    /// It was deleted and created again.
    Recreated {
        /// Last sequence that we saw acknowledged in the old one.
        from_seq: u64,
    },
}

/// Applies the rule.
#[must_use]
pub fn decide(known: Known<'_>, seen: Inspection) -> Verdict {
    let loss = known.checkpoint.and_then(|point| loss(point, seen));
    let resume = match seen.tail {
        Stored::Ours(mark) => {
            if mark.record > known.head {
                return Verdict::Ahead {
                    record: mark.record,
                };
            }
            after_mark(mark, seen.last_seq)
        }
        Stored::Missing => match (known.checkpoint, loss) {
            // Replay all that is still kept; the hole before it, if any, is told in its place.
            (Some(_), Some(_)) => Resume {
                after: 0,
                follows: Some(0),
                parts_stored: None,
                prev: 0,
                skip: 0,
                expected: seen.last_seq,
            },
            (Some(point), None) => unseen_tail(point, known.suspects, seen.last_seq),
            (None, _) => Resume {
                after: known.cursor,
                follows: None,
                parts_stored: None,
                prev: known.cursor,
                skip: 0,
                expected: seen.last_seq,
            },
        },
        // A rebuilt journal starts a new epoch: nothing of it is in the stream yet.
        Stored::OtherEpoch if known.checkpoint.is_none() => Resume {
            after: known.cursor,
            follows: None,
            parts_stored: None,
            prev: 0,
            skip: 0,
            expected: seen.last_seq,
        },
        Stored::OtherEpoch | Stored::Foreign => return Verdict::Fenced,
    };
    match loss {
        Some(loss) => Verdict::Rewind(resume, loss),
        None => Verdict::Resume(resume),
    }
}

fn loss(point: Checkpoint, seen: Inspection) -> Option<Loss> {
    if point.created != seen.created {
        return Some(Loss::Recreated {
            from_seq: point.stream_seq,
        });
    }
    (seen.last_seq < point.stream_seq).then_some(Loss::RolledBack {
        from_seq: point.stream_seq,
        to_seq: seen.last_seq,
    })
}

/// Behind a message of ours that was seen in the stream.
#[must_use]
pub fn after_mark(mark: Mark, expected: u64) -> Resume {
    if mark.part < mark.parts {
        // The rest of a record that was cut short between its parts.
        return Resume {
            after: mark.record.saturating_sub(1),
            follows: None,
            parts_stored: Some((mark.part, mark.parts)),
            prev: mark.prev,
            skip: 0,
            expected,
        };
    }
    Resume {
        after: mark.record,
        follows: Some(mark.record),
        parts_stored: None,
        prev: mark.record,
        skip: 0,
        expected,
    }
}

/// The last message is gone. Publishes carry the sequence they expect, so messages stored after the
/// checkpoint are exactly those that were in flight after it, in order and without a hole.
fn unseen_tail(point: Checkpoint, suspects: &[Suspect], last_seq: u64) -> Resume {
    if let Some(suspect) = suspects.iter().find(|s| s.stream_seq == last_seq) {
        return after_mark(suspect.mark, last_seq);
    }
    point.resume(last_seq.saturating_sub(point.stream_seq), last_seq)
}

/// Behind a foreign message: all that was certain, and what of ours was seen behind it.
#[must_use]
pub fn take_over(
    checkpoint: Option<Checkpoint>,
    acked: RecordId,
    found: Option<Mark>,
    expected: u64,
) -> Resume {
    match (found, checkpoint) {
        (Some(mark), _) => after_mark(mark, expected),
        (None, Some(point)) => point.resume(0, expected),
        (None, None) => Resume {
            after: acked,
            follows: None,
            parts_stored: None,
            prev: acked,
            skip: 0,
            expected,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATED: u64 = 7;

    fn mark(record: u64, part: u32, parts: u32) -> Mark {
        Mark {
            record,
            prev: record - 1,
            part,
            parts,
        }
    }

    fn check(checkpoint: Option<(u64, u64)>, created: u64, last_seq: u64, tail: Stored) -> Verdict {
        let suspects = [Suspect {
            stream_seq: 12,
            mark: mark(112, 1, 1),
        }];
        decide(
            Known {
                checkpoint: checkpoint.map(|(record, stream_seq)| Checkpoint {
                    created: CREATED,
                    stream_seq,
                    record,
                    prev: record,
                    parts: None,
                }),
                cursor: 50,
                head: 1000,
                suspects: &suspects,
            },
            Inspection {
                created,
                last_seq,
                tail,
            },
        )
    }

    fn resumed(verdict: Verdict) -> (u64, u64, u64) {
        match verdict {
            Verdict::Resume(r) | Verdict::Rewind(r, _) => (r.after, r.skip, r.expected),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_streams_own_last_message_decides() {
        let seen = check(Some((100, 10)), CREATED, 14, Stored::Ours(mark(114, 1, 1)));
        assert_eq!(resumed(seen), (114, 0, 14));
        assert!(matches!(seen, Verdict::Resume(_)));
        let fresh = check(None, CREATED, 14, Stored::Ours(mark(114, 1, 1)));
        assert_eq!(resumed(fresh), (114, 0, 14));
    }

    #[test]
    fn a_record_cut_between_its_parts_goes_on_with_the_next_part() {
        let seen = check(Some((100, 10)), CREATED, 12, Stored::Ours(mark(101, 2, 5)));
        let Verdict::Resume(resume) = seen else {
            panic!("{seen:?}")
        };
        assert_eq!((resume.after, resume.parts_stored), (100, Some((2, 5))));
        assert_eq!(resume.prev, 100);
    }

    #[test]
    fn a_purged_tail_is_found_by_the_checkpoint_or_by_what_was_in_flight() {
        assert_eq!(
            resumed(check(Some((100, 10)), CREATED, 10, Stored::Missing)),
            (100, 0, 10)
        );
        assert_eq!(
            resumed(check(Some((100, 10)), CREATED, 12, Stored::Missing)),
            (112, 0, 12)
        );
        assert_eq!(
            resumed(check(Some((100, 10)), CREATED, 11, Stored::Missing)),
            (100, 1, 11)
        );
        assert_eq!(
            resumed(check(None, CREATED, 11, Stored::Missing)),
            (50, 0, 11)
        );
    }

    #[test]
    fn a_stream_that_went_backwards_is_filled_again_and_people_hear_of_it() {
        let seen = check(Some((100, 10)), CREATED, 4, Stored::Ours(mark(94, 1, 1)));
        assert_eq!(resumed(seen), (94, 0, 4));
        assert!(matches!(
            seen,
            Verdict::Rewind(
                _,
                Loss::RolledBack {
                    from_seq: 10,
                    to_seq: 4
                }
            )
        ));
        let seen = check(Some((100, 10)), 8, 0, Stored::Missing);
        assert_eq!(resumed(seen), (0, 0, 0));
        assert!(matches!(
            seen,
            Verdict::Rewind(_, Loss::Recreated { from_seq: 10 })
        ));
    }

    #[test]
    fn anothers_message_at_the_end_fences() {
        assert_eq!(
            check(Some((100, 10)), CREATED, 11, Stored::Foreign),
            Verdict::Fenced
        );
        assert_eq!(
            check(Some((100, 10)), CREATED, 11, Stored::OtherEpoch),
            Verdict::Fenced
        );
        assert_eq!(
            resumed(check(None, CREATED, 11, Stored::OtherEpoch)),
            (50, 0, 11)
        );
        assert_eq!(
            check(None, CREATED, 11, Stored::Ours(mark(1001, 1, 1))),
            Verdict::Ahead { record: 1001 }
        );
    }
}
