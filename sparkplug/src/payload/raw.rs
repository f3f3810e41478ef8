//! A payload read in place: header fields first, metrics one by one afterwards, nothing copied.

use super::{DecodeError, Limits};
use crate::datatype::DataType;
use crate::wire::{Reader, Wire, WireError, expect, split, tag};

/// The header of a payload and where its metrics lie.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RawPayload<'a> {
    /// All of it.
    pub(crate) bytes: &'a [u8],
    /// Field 1.
    pub(crate) timestamp: Option<u64>,
    /// Field 3.
    pub(crate) seq: Option<u64>,
    /// Field 4.
    pub(crate) uuid: Option<&'a str>,
    /// Field 5.
    pub(crate) body: Option<&'a [u8]>,
    /// How often field 2 occurs.
    pub(crate) metric_count: usize,
}

impl<'a> RawPayload<'a> {
    /// Walks the top level only: framing errors show here, errors inside of a metric when it is read.
    pub(crate) fn parse(bytes: &'a [u8], limits: &Limits) -> Result<Self, DecodeError> {
        let mut payload = Self {
            bytes,
            timestamp: None,
            seq: None,
            uuid: None,
            body: None,
            metric_count: 0,
        };
        let mut reader = Reader::new(bytes);
        payload.walk(&mut reader, limits).map_err(|fault| {
            let offset = bytes.len() - reader.remaining();
            match fault {
                Fault::Wire(source) => DecodeError::Wire { offset, source },
                Fault::Metrics => DecodeError::TooManyMetrics {
                    limit: limits.max_metrics,
                },
            }
        })?;
        Ok(payload)
    }

    fn walk(&mut self, reader: &mut Reader<'a>, limits: &Limits) -> Result<(), Fault> {
        loop {
            self.metric_count += reader.skip_short(METRIC);
            if self.metric_count > limits.max_metrics {
                return Err(Fault::Metrics);
            }
            let Some((field, wire)) = reader.field()? else {
                return Ok(());
            };
            match field {
                1 => {
                    expect(1, wire, Wire::Varint)?;
                    self.timestamp = Some(reader.varint()?);
                }
                2 => {
                    expect(2, wire, Wire::Bytes)?;
                    reader.bytes()?;
                    self.metric_count += 1;
                }
                3 => {
                    expect(3, wire, Wire::Varint)?;
                    self.seq = Some(reader.varint()?);
                }
                4 => {
                    expect(4, wire, Wire::Bytes)?;
                    self.uuid = Some(reader.text(4)?);
                }
                5 => {
                    expect(5, wire, Wire::Bytes)?;
                    self.body = Some(reader.bytes()?);
                }
                _ => reader.skip(wire)?,
            }
        }
    }

    /// The metrics, in order.
    pub(crate) fn metrics(&self) -> RawMetrics<'a> {
        RawMetrics(Reader::new(self.bytes))
    }

    /// Varints of a packed field, or of one that is repeated; extensions of the journal's form.
    pub(crate) fn extension(&self, field: u32) -> Result<Vec<u64>, WireError> {
        let mut reader = Reader::new(self.bytes);
        let mut found = Vec::new();
        while let Some((number, wire)) = reader.field()? {
            match (number == field, wire) {
                (true, Wire::Varint) => found.push(reader.varint()?),
                (true, Wire::Bytes) => {
                    let mut packed = Reader::new(reader.bytes()?);
                    while packed.remaining() > 0 {
                        found.push(packed.varint()?);
                    }
                }
                _ => reader.skip(wire)?,
            }
        }
        Ok(found)
    }
}

enum Fault {
    Wire(WireError),
    Metrics,
}

impl From<WireError> for Fault {
    fn from(source: WireError) -> Self {
        Self::Wire(source)
    }
}

/// Iterator over the metrics of a payload. One that cannot be read is an `Err` in its place; the rest goes on.
#[derive(Debug, Clone)]
pub(crate) struct RawMetrics<'a>(Reader<'a>);

impl<'a> RawMetrics<'a> {
    /// The bytes of the next metric. For the loops that read it in place with [`RawMetric::read`].
    #[inline(always)]
    pub(crate) fn next_bytes(&mut self) -> Option<&'a [u8]> {
        loop {
            // The framing was checked by `RawPayload::parse`, so that an error here cannot happen; it would end
            // the iteration.
            let key = self.0.key().ok()??;
            if key == u64::from(METRIC) {
                return self.0.bytes().ok();
            }
            let (_, wire) = split(key).ok()?;
            self.0.skip(wire).ok()?;
        }
    }
}

impl<'a> Iterator for RawMetrics<'a> {
    type Item = Result<RawMetric<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.next_bytes()?;
        Some(RawMetric::parse(bytes))
    }
}

/// A metric as it lies in the payload.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RawMetric<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) alias: Option<u64>,
    pub(crate) timestamp: Option<u64>,
    pub(crate) datatype: Option<u32>,
    pub(crate) historical: bool,
    pub(crate) transient: bool,
    pub(crate) null: bool,
    pub(crate) metadata: Option<&'a [u8]>,
    pub(crate) properties: Option<&'a [u8]>,
    pub(crate) arm: Arm<'a>,
    /// Our own remark in the journal's form; never trusted from outside.
    pub(crate) mark: u64,
}

const NAME: u64 = tag(1, Wire::Bytes);
const ALIAS: u64 = tag(2, Wire::Varint);
const TIMESTAMP: u64 = tag(3, Wire::Varint);
const DATATYPE: u64 = tag(4, Wire::Varint);
const HISTORICAL: u64 = tag(5, Wire::Varint);
const TRANSIENT: u64 = tag(6, Wire::Varint);
const NULL: u64 = tag(7, Wire::Varint);
const INT: u64 = tag(10, Wire::Varint);
const LONG: u64 = tag(11, Wire::Varint);
const FLOAT: u64 = tag(12, Wire::Fixed32);
const DOUBLE: u64 = tag(13, Wire::Fixed64);
const BOOLEAN: u64 = tag(14, Wire::Varint);
const TEXT: u64 = tag(15, Wire::Bytes);

/// The one-byte tag of a metric in a payload.
const METRIC: u8 = tag(2, Wire::Bytes) as u8;

/// Field of [`RawMetric::mark`]. The schema leaves it undefined, so that other readers skip it.
pub(crate) const MARK: u32 = 100;

/// Alias, time and a number, in this order and nothing else: what nearly every data metric is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample<'a> {
    pub(crate) alias: u64,
    pub(crate) timestamp: u64,
    pub(crate) arm: Arm<'a>,
}

impl<'a> Sample<'a> {
    /// `None` for whatever is not exactly that; [`RawMetric::read`] then says what it is.
    #[inline(always)]
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.key().ok()?? != ALIAS {
            return None;
        }
        let alias = reader.varint().ok()?;
        if reader.key().ok()?? != TIMESTAMP {
            return None;
        }
        let timestamp = reader.varint().ok()?;
        let arm = match reader.key().ok()?? {
            DOUBLE => Arm::Double(f64::from_le_bytes(reader.fixed64().ok()?)),
            FLOAT => Arm::Float(f32::from_le_bytes(reader.fixed32().ok()?)),
            INT => Arm::Int(reader.varint().ok()? as u32),
            LONG => Arm::Long(reader.varint().ok()?),
            BOOLEAN => Arm::Bool(reader.varint().ok()? != 0),
            _ => return None,
        };
        (reader.remaining() == 0).then_some(Self {
            alias,
            timestamp,
            arm,
        })
    }
}

/// The value field that a metric, property, cell or parameter has.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Arm<'a> {
    #[default]
    None,
    Int(u32),
    Long(u64),
    Float(f32),
    Double(f64),
    Bool(bool),
    Text(&'a str),
    Bytes(&'a [u8]),
    DataSet(&'a [u8]),
    Template(&'a [u8]),
    PropertySet(&'a [u8]),
    PropertySetList(&'a [u8]),
    /// A vendor's extension: nothing that we can read.
    Extension,
}

impl<'a> Arm<'a> {
    /// Reads one of the six fields that every value has; `index` counts from `int_value`.
    #[inline(always)]
    pub(crate) fn basic(
        reader: &mut Reader<'a>,
        field: u32,
        wire: Wire,
        index: u32,
    ) -> Result<Self, WireError> {
        Ok(match index {
            0 => {
                expect(field, wire, Wire::Varint)?;
                // A negative Int32 that was written as ten bytes is cut to its low 32 bits.
                #[allow(clippy::cast_possible_truncation)]
                Self::Int(reader.varint()? as u32)
            }
            1 => {
                expect(field, wire, Wire::Varint)?;
                Self::Long(reader.varint()?)
            }
            2 => {
                expect(field, wire, Wire::Fixed32)?;
                Self::Float(f32::from_le_bytes(reader.fixed32()?))
            }
            3 => {
                expect(field, wire, Wire::Fixed64)?;
                Self::Double(f64::from_le_bytes(reader.fixed64()?))
            }
            4 => {
                expect(field, wire, Wire::Varint)?;
                Self::Bool(reader.varint()? != 0)
            }
            _ => {
                expect(field, wire, Wire::Bytes)?;
                Self::Text(reader.text(field)?)
            }
        })
    }
}

impl<'a> RawMetric<'a> {
    /// Whether it is a value and nothing else, as far as a birth that says `datatype` is concerned.
    #[inline(always)]
    pub(crate) fn is_plain(&self, datatype: DataType) -> bool {
        !self.null
            && self.properties.is_none()
            && self.metadata.is_none()
            && self.datatype.is_none_or(|code| code == datatype.code())
    }

    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut metric = Self::default();
        metric.read(bytes)?;
        Ok(metric)
    }

    #[cold]
    fn read_rare(&mut self, reader: &mut Reader<'a>, key: u64) -> Result<(), WireError> {
        let (field, wire) = split(key)?;
        match field {
            8 | 9 | 16..=19 => {
                expect(field, wire, Wire::Bytes)?;
                let bytes = reader.bytes()?;
                match field {
                    8 => self.metadata = Some(bytes),
                    9 => self.properties = Some(bytes),
                    16 => self.arm = Arm::Bytes(bytes),
                    17 => self.arm = Arm::DataSet(bytes),
                    18 => self.arm = Arm::Template(bytes),
                    _ => self.arm = Arm::Extension,
                }
            }
            1..=15 => return Err(WireError::Type(field)),
            MARK if wire == Wire::Varint => self.mark = reader.varint()?,
            _ => reader.skip(wire)?,
        }
        Ok(())
    }

    /// Reads the fields into an empty metric, which the caller keeps where it is: moving it costs as much as
    /// reading it.
    #[inline]
    pub(crate) fn read(&mut self, bytes: &'a [u8]) -> Result<(), WireError> {
        let mut reader = Reader::new(bytes);
        // One match on the whole tag; what it does not know, or knows with another wire type, is rare.
        while let Some(key) = reader.key()? {
            match key {
                NAME => self.name = Some(reader.text(1)?),
                ALIAS => self.alias = Some(reader.varint()?),
                TIMESTAMP => self.timestamp = Some(reader.varint()?),
                // tck-id-payloads-metric-datatype-value-type: a uint32
                DATATYPE => {
                    self.datatype = Some(u32::try_from(reader.varint()?).unwrap_or(u32::MAX));
                }
                HISTORICAL => self.historical = reader.varint()? != 0,
                TRANSIENT => self.transient = reader.varint()? != 0,
                NULL => self.null = reader.varint()? != 0,
                // A negative Int32 that was written as ten bytes is cut to its low 32 bits.
                INT => self.arm = Arm::Int(reader.varint()? as u32),
                LONG => self.arm = Arm::Long(reader.varint()?),
                FLOAT => self.arm = Arm::Float(f32::from_le_bytes(reader.fixed32()?)),
                DOUBLE => self.arm = Arm::Double(f64::from_le_bytes(reader.fixed64()?)),
                BOOLEAN => self.arm = Arm::Bool(reader.varint()? != 0),
                TEXT => self.arm = Arm::Text(reader.text(15)?),
                _ => self.read_rare(&mut reader, key)?,
            }
        }
        Ok(())
    }
}
