//! The leaves of an expression: literals and fields of a stage.

use std::ops::Range;

use cel::common::ast::LiteralValue;

use super::Val;
use super::compile::{Eval, Node, Type};
use super::names::{FIELDS, VARIABLES};
use crate::value::Value;

pub(super) fn literal_node(literal: &LiteralValue, range: Range<usize>) -> Node {
    let value = match literal {
        LiteralValue::Boolean(v) => Value::Bool(*v.inner()),
        LiteralValue::Double(v) => Value::Double(*v.inner()),
        LiteralValue::Int(v) => Value::Int(*v.inner()),
        LiteralValue::UInt(v) => Value::UInt(*v.inner()),
        LiteralValue::String(v) => Value::String(v.inner().into()),
        LiteralValue::Null => Value::Null,
        LiteralValue::Bytes(_) => Value::Other,
    };
    let ty = match &value {
        Value::Bool(_) => Type::Bool,
        Value::Int(_) | Value::UInt(_) | Value::Double(_) => Type::Number,
        Value::String(_) => Type::Text,
        Value::Null => Type::Null,
        Value::Other => Type::Any,
    };
    let kept = value.clone();
    let eval: Eval = match value {
        Value::String(text) => Box::new(move |_| Ok(Val::Text(text.clone()))),
        Value::Bool(v) => Box::new(move |_| Ok(Val::Bool(v))),
        Value::Double(v) => Box::new(move |_| Ok(Val::Double(v))),
        Value::Int(v) => Box::new(move |_| Ok(Val::Int(i128::from(v)))),
        Value::UInt(v) => Box::new(move |_| Ok(Val::Int(i128::from(v)))),
        Value::Null => Box::new(|_| Ok(Val::Null)),
        Value::Other => Box::new(|_| Ok(Val::Other)),
    };
    Node {
        literal: Some(kept),
        ..Node::new(ty, range, eval)
    }
}

pub(super) type Read = for<'a> fn(&'a crate::event::Sample) -> Val<'a>;

/// How a field of a stage's event is read.
pub(super) fn stage_field(field: &str) -> Option<(Type, Read)> {
    debug_assert!(VARIABLES.contains(&field) || !FIELDS.contains(&field));
    Some(match field {
        "value" => (Type::Any, |e| Val::from(&e.value)),
        "time" => (Type::Number, |e| Val::Int(i128::from(e.time_ms))),
        "metric" => (Type::Text, |e| Val::Str(&e.metric)),
        "type" => (Type::Text, |e| Val::Str(e.datatype)),
        "quality" => (Type::Number, |e| Val::Int(i128::from(e.quality))),
        "group" => (Type::Text, |e| Val::Str(&e.source.group)),
        "node" => (Type::Text, |e| Val::Str(&e.source.node)),
        "device" => (Type::Text, |e| Val::Str(e.source.device_name())),
        _ => return None,
    })
}
