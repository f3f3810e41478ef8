//! Functions: over stages, over windows, over the event, and CEL's own on texts and numbers.

use std::ops::Range;
use std::sync::Arc;

use cel::common::ast::{CallExpr, Expr as Tree, IdedExpr};

use super::compile::{Compiler, Eval, Node, Subject, Type, Want};
use super::leaf::{Read, stage_field};
use super::names::{AGGREGATES, Aggregate, FUNCTIONS, Place};
use super::value::to_f64;
use super::{EvalError, ExprProblem, Scope, Val};
use crate::event::SampleKind;
use crate::lang::{duration, nearest::nearest};
use crate::value::Value;

impl Compiler<'_> {
    pub(super) fn function(&mut self, call: &CallExpr, range: Range<usize>) -> Node {
        let name = call.func_name.as_str();
        if self.names.place == Place::Column && AGGREGATES.contains(&name) {
            return self.window_aggregate(name, &call.args, range);
        }
        match name {
            "first" | "last" | "count" | "sum" | "avg" | "min" | "max" if self.on_event() => {
                self.stage_aggregate(name, &call.args, range)
            }
            "current" if self.on_event() || self.names.place == Place::Key => {
                self.current(&call.args, range)
            }
            "score" if self.on_event() => self.score(&call.args, range),
            "similar" if self.on_event() => self.similar(&call.args, range),
            "duration" => self.duration(&call.args, range),
            "abs" => self.numeric("abs", &call.args, range, f64::abs),
            "sqrt" => self.numeric("sqrt", &call.args, range, f64::sqrt),
            "floor" => self.numeric("floor", &call.args, range, f64::floor),
            "ceil" => self.numeric("ceil", &call.args, range, f64::ceil),
            "round" => self.numeric("round", &call.args, range, f64::round),
            "double" => self.convert(name, &call.args, range),
            "int" => self.convert(name, &call.args, range),
            "string" => self.convert(name, &call.args, range),
            "size" => self.size(&call.args, range),
            _ => self.unknown_function(name, range),
        }
    }

    fn unknown_function(&mut self, name: &str, range: Range<usize>) -> Node {
        let known: &[&str] = match self.names.place {
            Place::Column => &AGGREGATES,
            Place::Event | Place::Columns | Place::Key => &FUNCTIONS,
        };
        let nearest = nearest(name, known.iter().copied());
        let name = name.to_owned();
        self.refuse(range, ExprProblem::UnknownFunction { name, nearest })
    }

    fn arguments(&mut self, function: &str, needed: &'static str, range: Range<usize>) -> Node {
        let function = function.to_owned();
        self.refuse(range, ExprProblem::Arguments { function, needed })
    }

    /// A text that must be written out, since it is needed before the rule runs.
    fn literal(&mut self, arg: &IdedExpr) -> Option<Arc<str>> {
        match self.node(arg).literal {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    fn window_aggregate(&mut self, name: &str, args: &[IdedExpr], range: Range<usize>) -> Node {
        let (value, rest) = match args.split_first() {
            Some((value, rest)) => (Some(value), rest),
            None => (None, args),
        };
        let on_value = value.is_none_or(|v| matches!(&v.expr, Tree::Ident(n) if n == "value"));
        let aggregate = match (name, value, rest) {
            ("count", _, []) => Some(Aggregate::Count),
            ("sum", Some(_), []) => Some(Aggregate::Sum),
            ("avg", Some(_), []) => Some(Aggregate::Avg),
            ("min", Some(_), []) => Some(Aggregate::Min),
            ("max", Some(_), []) => Some(Aggregate::Max),
            ("stddev", Some(_), []) => Some(Aggregate::Stddev),
            ("rate", Some(_), []) => Some(Aggregate::Rate),
            ("first", Some(_), []) => Some(Aggregate::First),
            ("last", Some(_), []) => Some(Aggregate::Last),
            ("percentile", Some(_), [p]) => {
                let p = self.node(p).literal.and_then(|p| p.as_f64());
                p.filter(|p| (0.0..=100.0).contains(p))
                    .map(Aggregate::Percentile)
            }
            _ => None,
        };
        let Some(aggregate) = aggregate.filter(|_| on_value) else {
            let needed = match name {
                "count" => "nothing, or `value`",
                "percentile" => "`value` and a number from 0 to 100",
                _ => "`value`, the value of the window's metric",
            };
            return self.arguments(name, needed, range);
        };
        let known = self.uses.aggregates.iter().position(|a| *a == aggregate);
        let number = known.unwrap_or_else(|| {
            self.uses.aggregates.push(aggregate);
            self.uses.aggregates.len() - 1
        });
        Node::new(
            Type::Any,
            range,
            Box::new(move |s| Ok(s.results.get(number).map_or(Val::Null, Val::from))),
        )
    }

    fn stage_aggregate(&mut self, name: &str, args: &[IdedExpr], range: Range<usize>) -> Node {
        let [arg] = args else {
            return self.arguments(name, "one `stage.value`", range);
        };
        let (stage, field) = match &arg.expr {
            Tree::Select(select) => match &select.operand.expr {
                Tree::Ident(stage) => (stage, select.field.as_str()),
                _ => return self.arguments(name, "one `stage.value`", range),
            },
            Tree::Ident(stage) if name == "count" => (stage, "value"),
            _ => return self.arguments(name, "one `stage.value`", range),
        };
        let Some(number) = self.names.stage(stage) else {
            let nearest = nearest(stage, self.names.stages.iter().map(String::as_str));
            let range = self.range(arg.id);
            let name = stage.clone();
            return self.refuse(range, ExprProblem::UnknownName { name, nearest });
        };
        let Some((ty, read)) = stage_field(field) else {
            let nearest = nearest(field, super::names::FIELDS);
            let field = field.to_owned();
            return self.refuse(range, ExprProblem::UnknownField { field, nearest });
        };
        self.uses.stages.insert(number);
        let subject = (field == "value").then_some(Subject::Stage(number));
        if let (Some(subject), "sum" | "avg" | "min" | "max") = (&subject, name) {
            self.wants.push(Want {
                subject: subject.clone(),
                needed: Type::Number.word(),
            });
        }
        let (ty, eval): (Type, Eval) = match name {
            "first" => (
                ty,
                Box::new(move |s| Ok(s.stages.first(number).map_or(Val::Null, read))),
            ),
            "last" => (
                ty,
                Box::new(move |s| Ok(s.stages.last(number).map_or(Val::Null, read))),
            ),
            "count" => (
                Type::Number,
                Box::new(move |s| {
                    let count = i128::try_from(s.stages.count(number)).unwrap_or(i128::MAX);
                    Ok(Val::Int(count))
                }),
            ),
            "sum" => (
                Type::Number,
                Box::new(move |s| Ok(Val::Double(fold(s, number, read)?.sum))),
            ),
            "avg" => (
                Type::Number,
                Box::new(move |s| {
                    let fold = fold(s, number, read)?;
                    Ok(fold.mean().map_or(Val::Null, Val::Double))
                }),
            ),
            "min" => (
                Type::Number,
                Box::new(move |s| {
                    let fold = fold(s, number, read)?;
                    Ok(fold.min.map_or(Val::Null, Val::Double))
                }),
            ),
            _ => (
                Type::Number,
                Box::new(move |s| {
                    let fold = fold(s, number, read)?;
                    Ok(fold.max.map_or(Val::Null, Val::Double))
                }),
            ),
        };
        Node {
            subject: subject.filter(|_| matches!(name, "first" | "last")),
            ..Node::new(ty, range, eval)
        }
    }

    fn current(&mut self, args: &[IdedExpr], range: Range<usize>) -> Node {
        const NEEDED: &str = "a metric and, if it must not be older, a duration, as in \
                              `current(\"Mode\", \"30s\")`";
        let [metric, rest @ ..] = args else {
            return self.arguments("current", NEEDED, range);
        };
        let (Some(metric), true) = (self.literal(metric), rest.len() <= 1) else {
            return self.arguments("current", NEEDED, range);
        };
        let mut max_age = None;
        if let Some(age) = rest.first() {
            let at = self.range(age.id);
            let Some(text) = self.literal(age) else {
                return self.arguments("current", NEEDED, range);
            };
            max_age = duration::parse(&text);
            if max_age.is_none() {
                let text = text.to_string();
                return self.refuse(at, ExprProblem::Duration { text });
            }
        }
        self.uses.current.insert(metric.clone());
        let subject = Subject::Metrics([metric.clone()].into());
        let node = Node::new(
            Type::Any,
            range,
            Box::new(move |s| {
                let value = s.world.current(&metric, max_age);
                Ok(value.map_or(Val::Null, Val::from))
            }),
        );
        Node {
            subject: Some(subject),
            ..node
        }
    }

    fn score(&mut self, args: &[IdedExpr], range: Range<usize>) -> Node {
        let Some(model) = (match args {
            [model] => self.literal(model),
            _ => None,
        }) else {
            return self.arguments("score", "the name of a model", range);
        };
        self.uses.models.insert(model.clone());
        Node::new(
            Type::Number,
            range,
            Box::new(move |s| {
                let score = s
                    .event
                    .filter(|e| e.kind == SampleKind::Score && *e.metric == *model);
                Ok(score.map_or(Val::Null, |e| Val::from(&e.value)))
            }),
        )
    }

    fn similar(&mut self, args: &[IdedExpr], range: Range<usize>) -> Node {
        let Some(phrase) = (match args {
            [phrase] => self.literal(phrase),
            _ => None,
        }) else {
            return self.arguments("similar", "a phrase", range);
        };
        self.uses.phrases.insert(phrase.clone());
        Node::new(
            Type::Number,
            range,
            Box::new(move |s| {
                let Some(SampleKind::Embedding(vector)) = s.event.map(|e| &e.kind) else {
                    return Ok(Val::Null);
                };
                let cosine = s.world.phrase(&phrase).and_then(|p| cosine(vector, p));
                Ok(cosine.map_or(Val::Null, Val::Double))
            }),
        )
    }

    fn duration(&mut self, args: &[IdedExpr], range: Range<usize>) -> Node {
        let Some(text) = (match args {
            [text] => self.literal(text),
            _ => None,
        }) else {
            return self.arguments("duration", "a text, as in `duration(\"30s\")`", range);
        };
        let Some(ms) = duration::parse(&text) else {
            let text = text.to_string();
            return self.refuse(range, ExprProblem::Duration { text });
        };
        let eval: Eval = Box::new(move |_| Ok(Val::Int(i128::from(ms))));
        Node::new(Type::Number, range, eval)
    }

    fn numeric(
        &mut self,
        name: &'static str,
        args: &[IdedExpr],
        range: Range<usize>,
        f: fn(f64) -> f64,
    ) -> Node {
        let [arg] = args else {
            return self.arguments(name, "one number", range);
        };
        let arg = self.node(arg);
        self.expect(name, &arg, Type::Number);
        let arg = arg.eval;
        let eval: Eval = Box::new(move |s| match arg(s)? {
            Val::Null => Ok(Val::Null),
            Val::Int(v) if name != "sqrt" => {
                Ok(Val::Int(if name == "abs" { v.saturating_abs() } else { v }))
            }
            other => match other.number() {
                Some(v) => Ok(Val::Double(f(v))),
                None => Err(EvalError::WrongType {
                    operation: name,
                    needed: "number",
                    found: other.kind(),
                }),
            },
        });
        Node::new(Type::Number, range, eval)
    }

    fn convert(&mut self, name: &str, args: &[IdedExpr], range: Range<usize>) -> Node {
        let [arg] = args else {
            return self.arguments(name, "one value", range);
        };
        let arg = self.node(arg).eval;
        let (ty, eval): (Type, Eval) = match name {
            "double" => (Type::Number, Box::new(move |s| to_double(&arg(s)?))),
            "int" => (Type::Number, Box::new(move |s| to_int(&arg(s)?))),
            _ => (
                Type::Text,
                Box::new(move |s| {
                    Ok(match arg(s)? {
                        Val::Null => Val::Null,
                        text @ (Val::Str(_) | Val::Text(_)) => text,
                        other => Val::Text(other.into_value().to_string().into()),
                    })
                }),
            ),
        };
        Node::new(ty, range, eval)
    }

    fn size(&mut self, args: &[IdedExpr], range: Range<usize>) -> Node {
        let [arg] = args else {
            return self.arguments("size", "one text", range);
        };
        self.size_of(arg, range)
    }

    fn size_of(&mut self, arg: &IdedExpr, range: Range<usize>) -> Node {
        let arg = self.node(arg);
        self.expect("size", &arg, Type::Text);
        let arg = arg.eval;
        let eval: Eval = Box::new(move |s| match arg(s)? {
            Val::Null => Ok(Val::Null),
            other => match other.text() {
                Some(text) => {
                    let size = i128::try_from(text.chars().count()).unwrap_or(i128::MAX);
                    Ok(Val::Int(size))
                }
                None => Err(EvalError::WrongType {
                    operation: "size",
                    needed: "string",
                    found: other.kind(),
                }),
            },
        });
        Node::new(Type::Number, range, eval)
    }

    /// Functions written behind a dot.
    pub(super) fn method(
        &mut self,
        call: &CallExpr,
        target: &IdedExpr,
        range: Range<usize>,
    ) -> Node {
        let test: (&'static str, fn(&str, &str) -> bool) = match call.func_name.as_str() {
            "startsWith" => ("startsWith", |a, b| a.starts_with(b)),
            "endsWith" => ("endsWith", |a, b| a.ends_with(b)),
            "contains" => ("contains", |a, b| a.contains(b)),
            "size" if call.args.is_empty() => return self.size_of(target, range),
            name => return self.unknown_function(name, range),
        };
        let (name, test) = test;
        let [arg] = call.args.as_slice() else {
            return self.arguments(name, "one text", range);
        };
        let both = self.operands(name, std::slice::from_ref(target), Type::Text);
        let arg = self.operands(name, std::slice::from_ref(arg), Type::Text);
        let (Some(target), Some(arg)) = (both.into_iter().next(), arg.into_iter().next()) else {
            return self.dead(range);
        };
        let (target, arg) = (target.eval, arg.eval);
        let eval: Eval = Box::new(move |s| {
            let (a, b) = (target(s)?, arg(s)?);
            if let (Val::Null, _) | (_, Val::Null) = (&a, &b) {
                return Ok(Val::Bool(false));
            }
            match (a.text(), b.text()) {
                (Some(a), Some(b)) => Ok(Val::Bool(test(a, b))),
                _ => Err(EvalError::WrongTypes {
                    operation: name,
                    left: a.kind(),
                    right: b.kind(),
                }),
            }
        });
        Node::new(Type::Bool, range, eval)
    }
}

/// Sum, extremes and number of the numbers in a stage; null and NaN are passed over.
#[derive(Default)]
struct Fold {
    sum: f64,
    count: u64,
    min: Option<f64>,
    max: Option<f64>,
}

impl Fold {
    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / to_f64(i128::from(self.count)))
    }
}

fn fold(scope: &Scope<'_>, stage: u16, read: Read) -> Result<Fold, EvalError> {
    let mut fold = Fold::default();
    let mut wrong = None;
    scope.stages.each(stage, &mut |sample| match read(sample) {
        Val::Null => {}
        other => match other.number() {
            Some(v) if v.is_nan() => {}
            Some(v) => {
                fold.sum += v;
                fold.count += 1;
                fold.min = Some(fold.min.map_or(v, |m| m.min(v)));
                fold.max = Some(fold.max.map_or(v, |m| m.max(v)));
            }
            None => wrong = Some(other.kind()),
        },
    });
    match wrong {
        None => Ok(fold),
        Some(found) => Err(EvalError::WrongType {
            operation: "aggregate",
            needed: "number",
            found,
        }),
    }
}

/// Cosine of two vectors; `None` where the lengths differ or one is zero.
fn cosine(a: &[f32], b: &[f32]) -> Option<f64> {
    if a.len() != b.len() {
        return None;
    }
    let (mut dot, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (f64::from(*a), f64::from(*b));
        dot += a * b;
        aa += a * a;
        bb += b * b;
    }
    let norm = (aa * bb).sqrt();
    (norm > 0.0).then(|| dot / norm)
}

fn not_a_number(text: &str) -> EvalError {
    EvalError::NotANumber {
        text: text.chars().take(40).collect(),
    }
}

fn to_double<'a>(value: &Val<'a>) -> Result<Val<'a>, EvalError> {
    match value {
        Val::Null => Ok(Val::Null),
        Val::Bool(v) => Ok(Val::Double(f64::from(u8::from(*v)))),
        other => match (other.number(), other.text()) {
            (Some(v), _) => Ok(Val::Double(v)),
            (None, Some(text)) => {
                let number = text.trim().parse().map_err(|_| not_a_number(text))?;
                Ok(Val::Double(number))
            }
            (None, None) => Err(EvalError::WrongType {
                operation: "double",
                needed: "number",
                found: other.kind(),
            }),
        },
    }
}

fn to_int<'a>(value: &Val<'a>) -> Result<Val<'a>, EvalError> {
    match value {
        Val::Null => Ok(Val::Null),
        Val::Int(v) => Ok(Val::Int(*v)),
        Val::Bool(v) => Ok(Val::Int(i128::from(*v))),
        Val::Double(v) if v.is_finite() && v.abs() < 1.7e38 =>
        {
            #[expect(clippy::cast_possible_truncation, reason = "range checked just above")]
            Ok(Val::Int(v.trunc() as i128))
        }
        other => match other.text() {
            Some(text) => {
                let number: i64 = text.trim().parse().map_err(|_| not_a_number(text))?;
                Ok(Val::Int(i128::from(number)))
            }
            None => Err(EvalError::WrongType {
                operation: "int",
                needed: "number",
                found: other.kind(),
            }),
        },
    }
}
