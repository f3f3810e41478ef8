//! The conditions of recorded cases.

use std::cmp::Ordering;
use std::sync::Arc;

use rules::pattern::Path;
use serde_json::Value;

use super::case::{Event, array, field, text};

#[derive(Debug)]
pub(crate) enum Test {
    Const(bool),
    All(Vec<Test>),
    Any(Vec<Test>),
    Not(Box<Test>),
    Compare(Op, Expr, Expr),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Eq,
    Ne,
    Gt,
    Ge,
    Lt,
    Le,
}

#[derive(Debug)]
pub(crate) enum Expr {
    Number(f64),
    Text(String),
    Field(String),
    Add(Vec<Expr>),
    Aggregate {
        function: String,
        stage: String,
        of_ts: bool,
    },
}

/// Value of an expression; `None` is null.
#[derive(Debug)]
enum Operand<'a> {
    Number(f64),
    Text(&'a str),
}

impl Test {
    pub(crate) fn parse(json: &Value) -> Result<Self, String> {
        let args = || -> Result<Vec<Test>, String> {
            array(json, "args")?.iter().map(Self::parse).collect()
        };
        let compare = |op| -> Result<Self, String> {
            let left = Expr::parse(field(json, "left")?)?;
            let right = Expr::parse(field(json, "right")?)?;
            Ok(Self::Compare(op, left, right))
        };
        match text(json, "op")? {
            "true" => Ok(Self::Const(true)),
            "false" => Ok(Self::Const(false)),
            "and" => Ok(Self::All(args()?)),
            "or" => Ok(Self::Any(args()?)),
            "not" => Ok(Self::Not(Box::new(Self::parse(field(json, "arg")?)?))),
            "eq" => compare(Op::Eq),
            "ne" => compare(Op::Ne),
            "gt" => compare(Op::Gt),
            "ge" => compare(Op::Ge),
            "lt" => compare(Op::Lt),
            "le" => compare(Op::Le),
            other => Err(format!("condition {other}")),
        }
    }

    /// Whether it looks at events taken before.
    pub(crate) fn is_iterative(&self) -> bool {
        match self {
            Self::Const(_) => false,
            Self::All(tests) | Self::Any(tests) => tests.iter().any(Self::is_iterative),
            Self::Not(test) => test.is_iterative(),
            Self::Compare(_, left, right) => left.is_iterative() || right.is_iterative(),
        }
    }
}

impl Expr {
    fn parse(json: &Value) -> Result<Self, String> {
        if let Some(value) = json.get("const") {
            return match (value.as_f64(), value.as_str()) {
                (Some(number), _) => Ok(Self::Number(number)),
                (_, Some(text)) => Ok(Self::Text(text.to_owned())),
                _ => Err("constant".to_owned()),
            };
        }
        if json.get("field").is_some() {
            return Ok(Self::Field(text(json, "field")?.to_owned()));
        }
        if json.get("add").is_some() {
            let terms: Result<Vec<Self>, String> =
                array(json, "add")?.iter().map(Self::parse).collect();
            return Ok(Self::Add(terms?));
        }
        Ok(Self::Aggregate {
            function: text(json, "agg")?.to_owned(),
            stage: text(json, "stage")?.to_owned(),
            of_ts: json.get("of").and_then(Value::as_str) == Some("ts"),
        })
    }

    fn is_iterative(&self) -> bool {
        match self {
            Self::Aggregate { .. } => true,
            Self::Add(terms) => terms.iter().any(Self::is_iterative),
            Self::Number(_) | Self::Text(_) | Self::Field(_) => false,
        }
    }
}

pub(crate) fn holds(
    test: &Test,
    event: &Event,
    held: Path<'_, Arc<Event>>,
    names: &[String],
) -> bool {
    match test {
        Test::Const(value) => *value,
        Test::All(tests) => tests.iter().all(|t| holds(t, event, held, names)),
        Test::Any(tests) => tests.iter().any(|t| holds(t, event, held, names)),
        Test::Not(test) => !holds(test, event, held, names),
        Test::Compare(op, left, right) => {
            let left = evaluate(left, event, held, names);
            let right = evaluate(right, event, held, names);
            let (Some(left), Some(right)) = (left, right) else {
                return false;
            };
            let order = match (&left, &right) {
                (Operand::Number(a), Operand::Number(b)) => a.partial_cmp(b),
                // Java compares UTF-16 code units.
                (Operand::Text(a), Operand::Text(b)) => {
                    Some(a.encode_utf16().cmp(b.encode_utf16()))
                }
                _ => None,
            };
            match op {
                Op::Eq => order == Some(Ordering::Equal),
                Op::Ne => order != Some(Ordering::Equal),
                Op::Gt => order == Some(Ordering::Greater),
                Op::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
                Op::Lt => order == Some(Ordering::Less),
                Op::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            }
        }
    }
}

fn evaluate<'a>(
    expr: &'a Expr,
    event: &'a Event,
    held: Path<'_, Arc<Event>>,
    names: &[String],
) -> Option<Operand<'a>> {
    match expr {
        Expr::Number(value) => Some(Operand::Number(*value)),
        Expr::Text(value) => Some(Operand::Text(value)),
        Expr::Field(name) => Some(match name.as_str() {
            "value" => Operand::Number(event.value),
            "ts" => Operand::Number(event.ts as f64),
            "seq" => Operand::Number(event.seq as f64),
            "type" => Operand::Text(&event.kind),
            "key" => Operand::Text(&event.key),
            _ => return None,
        }),
        Expr::Add(terms) => {
            let mut sum = 0.0;
            for term in terms {
                match evaluate(term, event, held, names)? {
                    Operand::Number(value) => sum += value,
                    Operand::Text(_) => return None,
                }
            }
            Some(Operand::Number(sum))
        }
        Expr::Aggregate {
            function,
            stage,
            of_ts,
        } => aggregate(function, stage, *of_ts, held, names).map(Operand::Number),
    }
}

fn aggregate(
    function: &str,
    stage: &str,
    of_ts: bool,
    held: Path<'_, Arc<Event>>,
    names: &[String],
) -> Option<f64> {
    let of = |event: &Arc<Event>| if of_ts { event.ts as f64 } else { event.value };
    let wanted = names.iter().position(|name| name == stage);
    let values: Vec<f64> = held
        .forward()
        .filter(|(stage, _)| Some(usize::from(stage.0)) == wanted)
        .map(|(_, event)| of(event))
        .collect();
    let count = values.len() as f64;
    let sum = || values.iter().sum::<f64>() + 0.0;
    match function {
        "count" => Some(count),
        "sum" => Some(sum()),
        "first" => values.first().copied(),
        "last" => values.last().copied(),
        "avg" => (!values.is_empty()).then(|| sum() / count),
        "min" => values.iter().copied().reduce(f64::min),
        "max" => values.iter().copied().reduce(f64::max),
        _ => None,
    }
}
