//! An alarm as bytes.

use super::{Acked, Alarm, Occurrence, Shelf};
use crate::output::Values;
use crate::snapshot::{Corrupt, Reader, Writer};

pub(crate) fn write_values(to: &mut Writer, values: &Values) {
    to.length(values.len());
    for (name, value) in values {
        to.text(name);
        to.value(value);
    }
}

pub(crate) fn read_values(from: &mut Reader<'_>) -> Result<Values, Corrupt> {
    let count = from.length()?;
    (0..count)
        .map(|_| Ok((from.arc()?, from.value()?)))
        .collect()
}

impl Occurrence {
    fn encode(&self, to: &mut Writer) {
        to.text(&self.id);
        to.text(&self.message);
        write_values(to, &self.values);
        to.number(self.cause.0);
        to.number(u64::from(self.cause.1));
        to.option(self.time_ms, Writer::signed);
        to.number(self.since);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        Ok(Self {
            id: from.arc()?,
            message: from.arc()?,
            values: read_values(from)?,
            cause: read_cause(from)?,
            time_ms: from.option(Reader::signed)?,
            since: from.number()?,
        })
    }
}

pub(crate) fn read_cause(from: &mut Reader<'_>) -> Result<(u64, u32), Corrupt> {
    let record = from.number()?;
    let index = u32::try_from(from.number()?).map_err(|_| Corrupt::Wrong { what: "cause" })?;
    Ok((record, index))
}

impl Alarm {
    pub(crate) fn encode(&self, to: &mut Writer) {
        to.option(self.occurrence.as_ref(), |to, o| o.encode(to));
        to.option(self.candidate.as_ref(), |to, o| o.encode(to));
        to.flags(&[
            self.active,
            self.latched,
            self.unacked,
            self.condition,
            self.suppressed,
            self.out_of_service,
            self.stale,
        ]);
        to.option(self.acked.as_ref(), |to, acked| {
            to.text(&acked.by);
            to.text(&acked.note);
            to.number(acked.at);
        });
        to.option(self.due, Writer::number);
        to.option(self.shelf.as_ref(), |to, shelf| {
            to.option(shelf.until, Writer::number);
            to.text(&shelf.by);
        });
        to.length(self.raises.len());
        self.raises.iter().for_each(|at| to.number(*at));
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let occurrence = from.option(Occurrence::decode)?;
        let candidate = from.option(Occurrence::decode)?;
        let [
            active,
            latched,
            unacked,
            condition,
            suppressed,
            out_of_service,
            stale,
        ] = from.flags()?;
        let acked = from.option(|from| {
            Ok(Acked {
                by: from.arc()?,
                note: from.arc()?,
                at: from.number()?,
            })
        })?;
        let due = from.option(Reader::number)?;
        let shelf = from.option(|from| {
            Ok(Shelf {
                until: from.option(Reader::number)?,
                by: from.arc()?,
            })
        })?;
        let count = from.length()?;
        Ok(Self {
            occurrence,
            candidate,
            active,
            latched,
            unacked,
            acked,
            due,
            condition,
            shelf,
            suppressed,
            out_of_service,
            stale,
            raises: (0..count)
                .map(|_| from.number())
                .collect::<Result<_, _>>()?,
        })
    }
}
