//! A payload read in place: header fields first, metrics one by one afterwards, nothing copied.

use super::{DecodeError, Limits};
use crate::wire::{Reader, Wire, WireError, expect};

/// The header of a payload and where its metrics lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawPayload<'a> {
    bytes: &'a [u8],
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
        while let Some((field, wire)) = reader.field()? {
            match field {
                1 => {
                    expect(1, wire, Wire::Varint)?;
                    self.timestamp = Some(reader.varint()?);
                }
                2 => {
                    expect(2, wire, Wire::Bytes)?;
                    reader.bytes()?;
                    self.metric_count += 1;
                    if self.metric_count > limits.max_metrics {
                        return Err(Fault::Metrics);
                    }
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
        Ok(())
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

impl<'a> Iterator for RawMetrics<'a> {
    type Item = Result<RawMetric<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // The framing was checked by `RawPayload::parse`, so that an error here cannot happen; it would end
            // the iteration.
            let (field, wire) = self.0.field().ok()??;
            if field == 2 && wire == Wire::Bytes {
                let bytes = self.0.bytes().ok()?;
                return Some(RawMetric::parse(bytes));
            }
            self.0.skip(wire).ok()?;
        }
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

/// Field of [`RawMetric::mark`]. The schema leaves it undefined, so that other readers skip it.
pub(crate) const MARK: u32 = 100;

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
    #[inline]
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
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let mut metric = Self::default();
        while let Some((field, wire)) = reader.field()? {
            match field {
                1 => {
                    expect(field, wire, Wire::Bytes)?;
                    metric.name = Some(reader.text(field)?);
                }
                2 => {
                    expect(field, wire, Wire::Varint)?;
                    metric.alias = Some(reader.varint()?);
                }
                3 => {
                    expect(field, wire, Wire::Varint)?;
                    metric.timestamp = Some(reader.varint()?);
                }
                4 => {
                    expect(field, wire, Wire::Varint)?;
                    // tck-id-payloads-metric-datatype-value-type: a uint32
                    metric.datatype = Some(u32::try_from(reader.varint()?).unwrap_or(u32::MAX));
                }
                5 => {
                    expect(field, wire, Wire::Varint)?;
                    metric.historical = reader.varint()? != 0;
                }
                6 => {
                    expect(field, wire, Wire::Varint)?;
                    metric.transient = reader.varint()? != 0;
                }
                7 => {
                    expect(field, wire, Wire::Varint)?;
                    metric.null = reader.varint()? != 0;
                }
                8 => {
                    expect(field, wire, Wire::Bytes)?;
                    metric.metadata = Some(reader.bytes()?);
                }
                9 => {
                    expect(field, wire, Wire::Bytes)?;
                    metric.properties = Some(reader.bytes()?);
                }
                10..=15 => metric.arm = Arm::basic(&mut reader, field, wire, field - 10)?,
                16..=19 => {
                    expect(field, wire, Wire::Bytes)?;
                    let bytes = reader.bytes()?;
                    metric.arm = match field {
                        16 => Arm::Bytes(bytes),
                        17 => Arm::DataSet(bytes),
                        18 => Arm::Template(bytes),
                        _ => Arm::Extension,
                    };
                }
                MARK if wire == Wire::Varint => metric.mark = reader.varint()?,
                _ => reader.skip(wire)?,
            }
        }
        Ok(metric)
    }
}
