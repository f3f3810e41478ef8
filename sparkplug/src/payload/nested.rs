//! Metadata, property sets, DataSets and templates. Every part is paid for from the budget before it is made.

use std::sync::Arc;

use super::raw::{Arm, RawMetric};
use super::resolved;
use super::value::{Budget, DataSetFault, Hint, MetricError, fill, natural, of_arm};
use crate::dataset::DataSet;
use crate::datatype::DataType;
use crate::metric::{MetaData, Metric, MetricFlags, TimeSource};
use crate::property::{Property, PropertySet};
use crate::template::{Parameter, Template};
use crate::value::Value;
use crate::wire::{Reader, Wire, WireError, expect};

pub(super) fn metadata(bytes: &[u8]) -> Result<MetaData, WireError> {
    let mut reader = Reader::new(bytes);
    let mut metadata = MetaData::default();
    while let Some((field, wire)) = reader.field()? {
        match field {
            1 | 3 | 4 => {
                expect(field, wire, Wire::Varint)?;
                let number = reader.varint()?;
                match field {
                    1 => metadata.is_multi_part = Some(number != 0),
                    3 => metadata.size = Some(number),
                    _ => metadata.seq = Some(number),
                }
            }
            2 | 5..=8 => {
                expect(field, wire, Wire::Bytes)?;
                let text = Some(Arc::from(reader.text(field)?));
                match field {
                    2 => metadata.content_type = text,
                    5 => metadata.file_name = text,
                    6 => metadata.file_type = text,
                    7 => metadata.md5 = text,
                    _ => metadata.description = text,
                }
            }
            _ => reader.skip(wire)?,
        }
    }
    Ok(metadata)
}

/// `known`: the birth's properties, whose types fill in for those that data leaves out.
pub(super) fn property_set(
    bytes: &[u8],
    known: Option<&PropertySet>,
    budget: &mut Budget,
    depth: usize,
) -> Result<PropertySet, MetricError> {
    let depth = budget.enter(depth)?;
    let mut keys: Vec<&str> = Vec::new();
    let mut values: Vec<&[u8]> = Vec::new();
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.field()? {
        match field {
            1 => {
                expect(field, wire, Wire::Bytes)?;
                budget.element()?;
                keys.push(reader.text(field)?);
            }
            2 => {
                expect(field, wire, Wire::Bytes)?;
                budget.element()?;
                values.push(reader.bytes()?);
            }
            _ => reader.skip(wire)?,
        }
    }
    // tck-id-payloads-propertyset-keys-array-size, tck-id-payloads-propertyset-values-array-size
    if keys.len() != values.len() {
        return Err(MetricError::Properties {
            keys: keys.len(),
            values: values.len(),
        });
    }
    let mut entries = Vec::with_capacity(keys.len());
    for (key, value) in keys.into_iter().zip(values) {
        let known = known.and_then(|set| set.get(key));
        entries.push(property(key, value, known, budget, depth)?);
    }
    Ok(PropertySet { entries })
}

fn property(
    key: &str,
    bytes: &[u8],
    known: Option<&Property>,
    budget: &mut Budget,
    depth: usize,
) -> Result<Property, MetricError> {
    let mut datatype = None;
    let mut null = false;
    let mut arm = Arm::None;
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.field()? {
        match field {
            1 => {
                expect(field, wire, Wire::Varint)?;
                // tck-id-payloads-metric-propertyvalue-type-type
                datatype = Some(code(reader.varint()?)?);
            }
            2 => {
                expect(field, wire, Wire::Varint)?;
                null = reader.varint()? != 0;
            }
            3..=8 => arm = Arm::basic(&mut reader, field, wire, field - 3)?,
            9 | 10 => {
                expect(field, wire, Wire::Bytes)?;
                let bytes = reader.bytes()?;
                arm = if field == 9 {
                    Arm::PropertySet(bytes)
                } else {
                    Arm::PropertySetList(bytes)
                };
            }
            _ => reader.skip(wire)?,
        }
    }
    let datatype = datatype
        .or(known.map(|it| it.datatype))
        .unwrap_or_else(|| natural(&arm));
    // tck-id-payloads-metric-propertyvalue-type-value
    if !datatype.is_property() && datatype != DataType::Unknown {
        return Err(MetricError::Misplaced(datatype));
    }
    let value = if null {
        Value::Null
    } else {
        let hint = Hint {
            properties: known.and_then(|it| match &it.value {
                Value::PropertySet(set) => Some(&**set),
                _ => None,
            }),
            ..Hint::NONE
        };
        let mut flags = MetricFlags::NONE;
        of_arm(datatype, &arm, &hint, budget, depth, &mut flags)?
    };
    Ok(Property {
        key: key.into(),
        datatype,
        value,
    })
}

pub(super) fn property_set_list(
    bytes: &[u8],
    budget: &mut Budget,
    depth: usize,
) -> Result<Vec<PropertySet>, MetricError> {
    let depth = budget.enter(depth)?;
    let mut sets = Vec::new();
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.field()? {
        if field == 1 {
            expect(field, wire, Wire::Bytes)?;
            budget.element()?;
            sets.push(property_set(reader.bytes()?, None, budget, depth)?);
        } else {
            reader.skip(wire)?;
        }
    }
    Ok(sets)
}

fn code(varint: u64) -> Result<DataType, MetricError> {
    let code = u32::try_from(varint).unwrap_or(u32::MAX);
    DataType::try_from(code).map_err(|error| MetricError::DataType(error.0))
}

pub(super) fn dataset(bytes: &[u8], budget: &mut Budget) -> Result<DataSet, MetricError> {
    let mut stated = None;
    let mut columns: Vec<Arc<str>> = Vec::new();
    let mut types = Vec::new();
    let mut rows: Vec<&[u8]> = Vec::new();
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.field()? {
        match (field, wire) {
            (1, _) => {
                expect(field, wire, Wire::Varint)?;
                stated = Some(reader.varint()?);
            }
            (2, _) => {
                expect(field, wire, Wire::Bytes)?;
                budget.element()?;
                columns.push(reader.text(field)?.into());
            }
            // tck-id-payloads-dataset-types-def: packed and unpacked are both in use
            (3, Wire::Bytes) => {
                let mut packed = Reader::new(reader.bytes()?);
                while packed.remaining() > 0 {
                    budget.element()?;
                    types.push(column(packed.varint()?)?);
                }
            }
            (3, _) => {
                expect(field, wire, Wire::Varint)?;
                budget.element()?;
                types.push(column(reader.varint()?)?);
            }
            (4, _) => {
                expect(field, wire, Wire::Bytes)?;
                budget.element()?;
                rows.push(reader.bytes()?);
            }
            _ => reader.skip(wire)?,
        }
    }
    // tck-id-payloads-dataset-column-size, -column-num-headers, -types-num, -parameter-type-req
    if columns.len() != types.len() || stated.is_some_and(|it| it != columns.len() as u64) {
        return Err(MetricError::DataSet(DataSetFault::Columns));
    }
    let rows = rows
        .into_iter()
        .map(|row| cells(row, &types, budget))
        .collect::<Result<_, _>>()?;
    Ok(DataSet {
        columns,
        types,
        rows,
    })
}

/// Column types are basic ones; 0 is tolerated and read by the cell's own field.
// tck-id-payloads-dataset-types-value
fn column(varint: u64) -> Result<DataType, MetricError> {
    match code(varint) {
        Ok(datatype) if datatype.is_basic() || datatype == DataType::Unknown => Ok(datatype),
        _ => Err(MetricError::DataSet(DataSetFault::Type)),
    }
}

fn cells(bytes: &[u8], types: &[DataType], budget: &mut Budget) -> Result<Vec<Value>, MetricError> {
    let mut row = Vec::with_capacity(types.len());
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.field()? {
        if field != 1 {
            reader.skip(wire)?;
            continue;
        }
        expect(field, wire, Wire::Bytes)?;
        budget.element()?;
        let datatype = types
            .get(row.len())
            .ok_or(MetricError::DataSet(DataSetFault::Row))?;
        let arm = basic_arm(reader.bytes()?, 1)?;
        row.push(
            basic_value(*datatype, &arm, budget).map_err(|error| match error {
                MetricError::Arm(_) | MetricError::Range(_) => {
                    MetricError::DataSet(DataSetFault::Cell)
                }
                other => other,
            })?,
        );
    }
    if row.len() == types.len() {
        Ok(row)
    } else {
        Err(MetricError::DataSet(DataSetFault::Row))
    }
}

// tck-id-payloads-template-dataset-value: one of the six basic fields, counted from `first`
fn basic_arm(bytes: &[u8], first: u32) -> Result<Arm<'_>, WireError> {
    let mut arm = Arm::None;
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.field()? {
        match field.checked_sub(first) {
            Some(index @ 0..=5) => arm = Arm::basic(&mut reader, field, wire, index)?,
            _ => reader.skip(wire)?,
        }
    }
    Ok(arm)
}

/// Cells and parameters have no `is_null`: one without a value is null.
fn basic_value(
    datatype: DataType,
    arm: &Arm<'_>,
    budget: &mut Budget,
) -> Result<Value, MetricError> {
    if *arm == Arm::None {
        return Ok(Value::Null);
    }
    let mut flags = MetricFlags::NONE;
    of_arm(datatype, arm, &Hint::NONE, budget, 0, &mut flags)
}

pub(super) fn template(
    bytes: &[u8],
    hint: &Hint<'_>,
    budget: &mut Budget,
    depth: usize,
) -> Result<Template, MetricError> {
    let depth = budget.enter(depth)?;
    let mut template = Template::default();
    let mut members: Vec<&[u8]> = Vec::new();
    let mut parameters: Vec<&[u8]> = Vec::new();
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.field()? {
        match field {
            1 | 4 => {
                expect(field, wire, Wire::Bytes)?;
                // tck-id-payloads-template-version, tck-id-payloads-template-ref-instance
                let text = reader.text(field)?;
                if field == 1 {
                    template.version = Some(text.into());
                } else {
                    template.template_ref = Some(text.into());
                }
            }
            2 | 3 => {
                expect(field, wire, Wire::Bytes)?;
                budget.element()?;
                let part = reader.bytes()?;
                if field == 2 {
                    members.push(part);
                } else {
                    parameters.push(part);
                }
            }
            5 => {
                expect(field, wire, Wire::Varint)?;
                template.is_definition = reader.varint()? != 0;
            }
            _ => reader.skip(wire)?,
        }
    }
    // The last known instance knows more than the definition; either knows the members' types.
    let definition = template
        .template_ref
        .as_deref()
        .and_then(|name| hint.definitions?.definition(name));
    let known = hint.template.or(definition);
    for bytes in parameters {
        template.parameters.push(parameter(bytes, known, budget)?);
    }
    for bytes in members {
        let raw = RawMetric::parse(bytes)?;
        let name = match (raw.name, raw.alias) {
            (Some(name), _) => known
                .and_then(|it| it.member(name))
                .map_or_else(|| Arc::from(name), |it| it.name.clone()),
            (None, Some(alias)) => known
                .and_then(|it| it.metrics.iter().find(|it| it.alias == Some(alias)))
                .map(|it| it.name.clone())
                .ok_or(MetricError::Unnamed)?,
            (None, None) => return Err(MetricError::Unnamed),
        };
        template
            .metrics
            .push(member(&raw, name, known, hint, budget, depth)?);
    }
    Ok(template)
}

fn member(
    raw: &RawMetric<'_>,
    name: Arc<str>,
    known: Option<&Template>,
    outer: &Hint<'_>,
    budget: &mut Budget,
    depth: usize,
) -> Result<Metric, MetricError> {
    let before = known.and_then(|it| it.member(&name));
    let hint = Hint {
        datatype: before.map(|it| it.datatype),
        properties: before.and_then(|it| it.properties.as_deref()),
        template: before.and_then(|it| match &it.value {
            Value::Template(inner) => Some(&**inner),
            _ => None,
        }),
        definitions: outer.definitions,
    };
    // Members of a definition need no value.
    let mut raw = *raw;
    let absent = raw.arm == Arm::None && !raw.null;
    raw.null |= absent;
    let filled = fill(&raw, &hint, budget, depth)?;
    let (time_source, flags) = if budget.journal {
        (resolved::time_source(raw.mark), resolved::flags(raw.mark))
    } else {
        (TimeSource::Metric, filled.flags)
    };
    Ok(Metric {
        name,
        alias: raw.alias,
        datatype: filled.datatype,
        value: filled.value,
        timestamp: raw.timestamp,
        time_source,
        historical: raw.historical,
        transient: raw.transient,
        quality: filled.quality,
        properties: filled.properties,
        metadata: filled.metadata,
        flags,
    })
}

fn parameter(
    bytes: &[u8],
    known: Option<&Template>,
    budget: &mut Budget,
) -> Result<Parameter, MetricError> {
    let mut name = None;
    let mut datatype = None;
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.field()? {
        match field {
            1 => {
                expect(field, wire, Wire::Bytes)?;
                name = Some(reader.text(field)?);
            }
            2 => {
                expect(field, wire, Wire::Varint)?;
                datatype = Some(code(reader.varint()?)?);
            }
            _ => reader.skip(wire)?,
        }
    }
    let name = name.ok_or(MetricError::Unnamed)?;
    let arm = basic_arm(bytes, 3)?;
    let datatype = datatype
        .or_else(|| known?.parameter(name).map(|it| it.datatype))
        .unwrap_or_else(|| natural(&arm));
    if !datatype.is_basic() && datatype != DataType::Unknown {
        return Err(MetricError::Misplaced(datatype));
    }
    Ok(Parameter {
        name: name.into(),
        datatype,
        value: basic_value(datatype, &arm, budget)?,
    })
}
