//! From the syntax tree to closures.

use std::ops::Range;
use std::sync::Arc;

use cel::common::ast::{CallExpr, Expr as Tree, IdedExpr, LiteralValue, SourceInfo, operators};
use cel::parser::Parser;

use super::names::{FIELDS, Names, Place, Uses, VARIABLES};
use super::{Arith, At, EvalError, ExprProblem, Scope, Val};
use crate::lang::nearest::nearest;
use crate::value::Value;

/// A compiled expression.
pub(super) type Eval = Box<dyn for<'a> Fn(&Scope<'a>) -> Result<Val<'a>, EvalError> + Send + Sync>;

/// Longest text of one expression, bytes.
const MOST_TEXT: usize = 8_192;
/// Deepest nesting, levels.
const MOST_DEPTH: u16 = 64;

/// What is known of a result before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Any,
    Null,
    Bool,
    Number,
    Text,
}

impl Type {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Any => "anything",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Number => "number",
            Self::Text => "string",
        }
    }

    fn may_be(self, other: Self) -> bool {
        matches!(self, Self::Any | Self::Null) || other == Self::Any || self == other
    }
}

/// A part of an expression.
pub(super) struct Node {
    pub(super) eval: Eval,
    pub(super) ty: Type,
    /// The value, where it is written out.
    pub(super) literal: Option<Value>,
    pub(super) range: Range<usize>,
    /// The variable `metric`, alone.
    metric: bool,
}

impl Node {
    pub(super) fn new(ty: Type, range: Range<usize>, eval: Eval) -> Self {
        Self {
            eval,
            ty,
            literal: None,
            range,
            metric: false,
        }
    }
}

/// An expression that is ready to run.
pub(crate) struct Expr {
    eval: Eval,
    text: Arc<str>,
    pub(crate) uses: Uses,
}

impl std::fmt::Debug for Expr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expr({})", self.text)
    }
}

impl Expr {
    /// The expression as it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Its value.
    pub(crate) fn value<'a>(&self, scope: &Scope<'a>) -> Result<Val<'a>, EvalError> {
        (self.eval)(scope)
    }

    /// Whether it holds: null counts as false.
    pub(crate) fn holds(&self, scope: &Scope<'_>) -> Result<bool, EvalError> {
        truth("condition", &(self.eval)(scope)?)
    }
}

pub(super) fn truth(operation: &'static str, value: &Val<'_>) -> Result<bool, EvalError> {
    match value {
        Val::Bool(v) => Ok(*v),
        Val::Null => Ok(false),
        other => Err(EvalError::WrongType {
            operation,
            needed: "bool",
            found: other.kind(),
        }),
    }
}

/// Compiles a text. `condition`: its result must be a truth value.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn compile(text: &str, names: &Names, condition: bool) -> Result<Expr, Vec<At>> {
    let whole = 0..text.len();
    if text.len() > MOST_TEXT {
        return Err(vec![At {
            problem: ExprProblem::Unsupported {
                what: "an expression of more than 8192 bytes",
            },
            range: 0..1,
        }]);
    }
    let parser = Parser::new().max_recursion_depth(MOST_DEPTH);
    let (tree, info) = parser.parse_with_source_info(text).map_err(|errors| {
        let errors = errors.errors.into_iter();
        errors
            .map(|error| At {
                range: offset(text, error.pos),
                problem: ExprProblem::Syntax { detail: error.msg },
            })
            .collect::<Vec<_>>()
    })?;
    let mut compiler = Compiler {
        text,
        names,
        info: &info,
        problems: Vec::new(),
        uses: Uses {
            aggregates: names.aggregates.clone(),
            ..Uses::default()
        },
    };
    let node = compiler.node(&tree);
    if condition && !node.ty.may_be(Type::Bool) {
        compiler.problem(
            whole,
            ExprProblem::Type {
                operation: "condition".to_owned(),
                needed: "bool",
                found: node.ty.word(),
            },
        );
    }
    if !compiler.problems.is_empty() {
        return Err(compiler.problems);
    }
    Ok(Expr {
        eval: node.eval,
        text: text.into(),
        uses: compiler.uses,
    })
}

/// Bytes of the character at line and column, both from 1 (the column from 0 in the parser's own
/// errors; one off is harmless, as only the caret moves).
fn offset(text: &str, (line, column): (isize, isize)) -> Range<usize> {
    let (Ok(line), Ok(column)) = (usize::try_from(line - 1), usize::try_from(column - 1)) else {
        return 0..text.len();
    };
    let before: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    let rest = text.get(before..).unwrap_or_default();
    let at = rest.char_indices().nth(column).map_or(rest.len(), |c| c.0);
    let start = before + at;
    let width = text
        .get(start..)
        .and_then(|t| t.chars().next())
        .map_or(0, char::len_utf8);
    start..start + width
}

pub(super) struct Compiler<'c> {
    text: &'c str,
    pub(super) names: &'c Names,
    info: &'c SourceInfo,
    problems: Vec<At>,
    pub(super) uses: Uses,
}

impl Compiler<'_> {
    pub(super) fn problem(&mut self, range: Range<usize>, problem: ExprProblem) {
        self.problems.push(At { problem, range });
    }

    /// Something to go on with after a problem.
    pub(super) fn dead(&self, range: Range<usize>) -> Node {
        Node::new(Type::Any, range, Box::new(|_| Ok(Val::Null)))
    }

    pub(super) fn refuse(&mut self, range: Range<usize>, problem: ExprProblem) -> Node {
        self.problem(range.clone(), problem);
        self.dead(range)
    }

    /// Bytes of an expression's own token.
    pub(super) fn range(&self, id: u64) -> Range<usize> {
        let Some((start, last)) = self.info.offset_for(id) else {
            return 0..self.text.len();
        };
        let boundary = |at: u32| {
            let end = self.text.len();
            let at = usize::try_from(at).unwrap_or(end);
            (at..=end)
                .find(|at| self.text.is_char_boundary(*at))
                .unwrap_or(end)
        };
        let start = boundary(start);
        start..boundary(last.saturating_add(1)).max(start)
    }

    pub(super) fn node(&mut self, tree: &IdedExpr) -> Node {
        let range = self.range(tree.id);
        match &tree.expr {
            Tree::Literal(literal) => literal_node(literal, range),
            Tree::Ident(name) => self.variable(name, range),
            Tree::Select(select) => self.field(select, range),
            Tree::Call(call) => self.call(call, range),
            Tree::List(_) => self.unsupported(range, "a list outside of `in`"),
            Tree::Comprehension(_) => self.unsupported(range, "a loop over a list"),
            Tree::Map(_) | Tree::Struct(_) => self.unsupported(range, "a map or message"),
            Tree::Unspecified => self.unsupported(range, "an empty expression"),
        }
    }

    fn unsupported(&mut self, range: Range<usize>, what: &'static str) -> Node {
        self.refuse(range, ExprProblem::Unsupported { what })
    }

    fn variable(&mut self, name: &str, range: Range<usize>) -> Node {
        if let Some(number) = self.names.column_number(name) {
            return Node::new(
                Type::Any,
                range,
                Box::new(move |s| Ok(s.results.get(number).map_or(Val::Null, Val::from))),
            );
        }
        if self.names.stage(name).is_some() {
            let stage = name.to_owned();
            return self.refuse(range, ExprProblem::BareStage { stage });
        }
        if !self.names.variables().any(|known| known == name) {
            let nearest = nearest(name, self.names.variables());
            let name = name.to_owned();
            return self.refuse(range, ExprProblem::UnknownName { name, nearest });
        }
        self.uses.metric |= name == "metric";
        let (ty, eval): (_, Eval) = match name {
            "metric" => (
                Type::Text,
                Box::new(|s| Ok(s.event.map_or(Val::Null, |e| Val::Str(&e.metric)))),
            ),
            "value" => (
                Type::Any,
                Box::new(|s| Ok(s.event.map_or(Val::Null, |e| Val::from(&e.value)))),
            ),
            "type" => (
                Type::Text,
                Box::new(|s| Ok(s.event.map_or(Val::Null, |e| Val::Str(e.datatype)))),
            ),
            "quality" => (
                Type::Number,
                Box::new(|s| {
                    Ok(s.event
                        .map_or(Val::Null, |e| Val::Int(i128::from(e.quality))))
                }),
            ),
            "time" => (
                Type::Number,
                Box::new(|s| {
                    Ok(s.event
                        .map_or(Val::Null, |e| Val::Int(i128::from(e.time_ms))))
                }),
            ),
            "historical" => (
                Type::Bool,
                Box::new(|s| Ok(s.event.map_or(Val::Null, |e| Val::Bool(e.historical)))),
            ),
            "group" => (Type::Text, Box::new(|s| Ok(Val::Str(&s.source().group)))),
            "node" => (Type::Text, Box::new(|s| Ok(Val::Str(&s.source().node)))),
            _ => (
                Type::Text,
                Box::new(|s| Ok(Val::Str(s.source().device_name()))),
            ),
        };
        Node {
            metric: name == "metric",
            ..Node::new(ty, range, eval)
        }
    }

    /// `stage.field`, and `has(stage.field)`.
    fn field(&mut self, select: &cel::common::ast::SelectExpr, range: Range<usize>) -> Node {
        let stage = match &select.operand.expr {
            Tree::Ident(name) => match self.names.stage(name) {
                Some(stage) => stage,
                None => {
                    let known = self.names.stages.iter().map(String::as_str);
                    let nearest = nearest(name, known);
                    let range = self.range(select.operand.id);
                    let name = name.clone();
                    return self.refuse(range, ExprProblem::UnknownName { name, nearest });
                }
            },
            _ => return self.unsupported(range, "a field of something that is not a stage"),
        };
        self.uses.stages.insert(stage);
        let Some((ty, read)) = stage_field(&select.field) else {
            let nearest = nearest(&select.field, FIELDS);
            let field = select.field.clone();
            return self.refuse(range, ExprProblem::UnknownField { field, nearest });
        };
        if select.test {
            return Node::new(
                Type::Bool,
                range,
                Box::new(move |s| {
                    let value = s.stages.last(stage).map(read);
                    Ok(Val::Bool(!matches!(value, None | Some(Val::Null))))
                }),
            );
        }
        Node::new(
            ty,
            range,
            Box::new(move |s| Ok(s.stages.last(stage).map_or(Val::Null, read))),
        )
    }

    /// Each operand, its type checked.
    pub(super) fn operands(
        &mut self,
        operation: &str,
        args: &[IdedExpr],
        needed: Type,
    ) -> Vec<Node> {
        let nodes: Vec<Node> = args.iter().map(|arg| self.node(arg)).collect();
        for node in &nodes {
            self.expect(operation, node, needed);
        }
        nodes
    }

    pub(super) fn expect(&mut self, operation: &str, node: &Node, needed: Type) {
        if !node.ty.may_be(needed) {
            self.problem(
                node.range.clone(),
                ExprProblem::Type {
                    operation: operation.to_owned(),
                    needed: needed.word(),
                    found: node.ty.word(),
                },
            );
        }
    }

    fn call(&mut self, call: &CallExpr, range: Range<usize>) -> Node {
        if let Some(target) = &call.target {
            return self.method(call, target, range);
        }
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::LOGICAL_AND, [a, b]) => self.logic("&&", a, b, false, range),
            (operators::LOGICAL_OR, [a, b]) => self.logic("||", a, b, true, range),
            (operators::LOGICAL_NOT, [a]) => {
                let a = self.node(a);
                self.expect("!", &a, Type::Bool);
                let a = a.eval;
                let eval: Eval = Box::new(move |s| Ok(Val::Bool(!truth("!", &a(s)?)?)));
                Node::new(Type::Bool, range, eval)
            }
            (operators::CONDITIONAL, [test, yes, no]) => self.conditional(test, yes, no, range),
            (operators::NEGATE, [a]) => self.negate(a, range),
            (operators::IN, [item, list]) => self.contained(item, list, range),
            (operators::EQUALS, [a, b]) => self.equality(a, b, true, range),
            (operators::NOT_EQUALS, [a, b]) => self.equality(a, b, false, range),
            (operators::ADD, [a, b]) => self.arithmetic(Arith::Add, a, b, range),
            (operators::SUBSTRACT, [a, b]) => self.arithmetic(Arith::Sub, a, b, range),
            (operators::MULTIPLY, [a, b]) => self.arithmetic(Arith::Mul, a, b, range),
            (operators::DIVIDE, [a, b]) => self.arithmetic(Arith::Div, a, b, range),
            (operators::MODULO, [a, b]) => self.arithmetic(Arith::Rem, a, b, range),
            (operator, [a, b]) if comparison(operator).is_some() => {
                self.comparison(operator, a, b, range)
            }
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, _) => {
                self.unsupported(range, "an index")
            }
            _ => self.function(call, range),
        }
    }

    /// `&&` and `||`: `decisive` from either side is the result, whatever the other side does.
    fn logic(
        &mut self,
        word: &'static str,
        a: &IdedExpr,
        b: &IdedExpr,
        decisive: bool,
        range: Range<usize>,
    ) -> Node {
        let (a, b) = (self.node(a), self.node(b));
        self.expect(word, &a, Type::Bool);
        self.expect(word, &b, Type::Bool);
        let (a, b) = (a.eval, b.eval);
        let eval: Eval = Box::new(move |s| {
            let left = a(s).and_then(|v| truth(word, &v));
            if left == Ok(decisive) {
                return Ok(Val::Bool(decisive));
            }
            let right = b(s).and_then(|v| truth(word, &v))?;
            if right == decisive {
                return Ok(Val::Bool(decisive));
            }
            left.map(Val::Bool)
        });
        Node::new(Type::Bool, range, eval)
    }

    fn conditional(
        &mut self,
        test: &IdedExpr,
        yes: &IdedExpr,
        no: &IdedExpr,
        range: Range<usize>,
    ) -> Node {
        let (test, yes, no) = (self.node(test), self.node(yes), self.node(no));
        self.expect("?", &test, Type::Bool);
        let ty = if yes.ty == no.ty { yes.ty } else { Type::Any };
        let (test, yes, no) = (test.eval, yes.eval, no.eval);
        let eval: Eval = Box::new(move |s| {
            if truth("?", &test(s)?)? {
                yes(s)
            } else {
                no(s)
            }
        });
        Node::new(ty, range, eval)
    }

    fn negate(&mut self, a: &IdedExpr, range: Range<usize>) -> Node {
        let a = self.node(a);
        self.expect("-", &a, Type::Number);
        let eval = a.eval;
        let eval: Eval = Box::new(move |s| match eval(s)? {
            Val::Null => Ok(Val::Null),
            Val::Int(v) => Ok(v.checked_neg().map_or(Val::Null, Val::Int)),
            Val::Double(v) => Ok(Val::Double(-v)),
            other => Err(EvalError::WrongType {
                operation: "-",
                needed: "number",
                found: other.kind(),
            }),
        });
        Node {
            literal: match a.literal {
                Some(Value::Int(v)) => v.checked_neg().map(Value::Int),
                Some(Value::Double(v)) => Some(Value::Double(-v)),
                _ => None,
            },
            ..Node::new(Type::Number, range, eval)
        }
    }

    fn arithmetic(
        &mut self,
        operation: Arith,
        a: &IdedExpr,
        b: &IdedExpr,
        range: Range<usize>,
    ) -> Node {
        let (a, b) = (self.node(a), self.node(b));
        let ty = match (operation, a.ty, b.ty) {
            (Arith::Add, Type::Text, Type::Text | Type::Any)
            | (Arith::Add, Type::Any, Type::Text) => Type::Text,
            (Arith::Add, Type::Any, Type::Any) => Type::Any,
            _ => {
                self.expect(operation.word(), &a, Type::Number);
                self.expect(operation.word(), &b, Type::Number);
                Type::Number
            }
        };
        let (a, b) = (a.eval, b.eval);
        Node::new(
            ty,
            range,
            Box::new(move |s| operation.apply(&a(s)?, &b(s)?)),
        )
    }

    fn comparison(
        &mut self,
        operator: &str,
        a: &IdedExpr,
        b: &IdedExpr,
        range: Range<usize>,
    ) -> Node {
        let Some((word, test)) = comparison(operator) else {
            return self.dead(range);
        };
        let (a, b) = (self.node(a), self.node(b));
        for node in [&a, &b] {
            if node.ty == Type::Bool {
                self.expect(word, node, Type::Number);
            }
        }
        if a.ty == Type::Number || b.ty == Type::Text {
            self.expect(word, &b, a.ty);
        } else if b.ty == Type::Number || a.ty == Type::Text {
            self.expect(word, &a, b.ty);
        }
        let eval: Eval = match (&a.literal, &b.literal) {
            (None, Some(Value::Double(limit))) => {
                let (a, limit) = (a.eval, *limit);
                Box::new(move |s| {
                    let order = match a(s)? {
                        Val::Double(v) => v.partial_cmp(&limit),
                        other => other.order(&Val::Double(limit))?,
                    };
                    Ok(Val::Bool(order.is_some_and(test)))
                })
            }
            _ => {
                let (a, b) = (a.eval, b.eval);
                Box::new(move |s| Ok(Val::Bool(a(s)?.order(&b(s)?)?.is_some_and(test))))
            }
        };
        Node::new(Type::Bool, range, eval)
    }

    fn equality(&mut self, a: &IdedExpr, b: &IdedExpr, wanted: bool, range: Range<usize>) -> Node {
        let (a, b) = (self.node(a), self.node(b));
        for (one, other) in [(&a, &b), (&b, &a)] {
            if let (true, Some(Value::String(name))) = (one.metric, &other.literal) {
                self.uses.metrics.insert(name.clone());
            }
        }
        let word = if wanted { "==" } else { "!=" };
        if a.ty != Type::Null && b.ty != Type::Null && a.ty != Type::Any {
            self.expect(word, &b, a.ty);
        }
        // The word `null` asks whether there is a value; anything else is never equal to null.
        let eval: Eval = match (a.ty == Type::Null, b.ty == Type::Null) {
            (true, true) => Box::new(move |_| Ok(Val::Bool(wanted))),
            (true, false) => is_null(b.eval, wanted),
            (false, true) => is_null(a.eval, wanted),
            (false, false) => match (a.metric, &b.literal, a.eval, b.eval) {
                (true, Some(Value::String(name)), _, _) => {
                    let name = name.clone();
                    Box::new(move |s| {
                        Ok(Val::Bool(
                            s.event.is_some_and(|e| (*e.metric == *name) == wanted),
                        ))
                    })
                }
                (_, _, a, b) => Box::new(move |s| {
                    let (a, b) = (a(s)?, b(s)?);
                    let known = a.comparable() && b.comparable();
                    Ok(Val::Bool(known && a.equals(&b) == wanted))
                }),
            },
        };
        Node::new(Type::Bool, range, eval)
    }

    /// `item in [..]`: the list must be written out.
    fn contained(&mut self, item: &IdedExpr, list: &IdedExpr, range: Range<usize>) -> Node {
        let item = self.node(item);
        let Tree::List(list) = &list.expr else {
            return self.unsupported(range, "`in` without a list written out");
        };
        let elements: Vec<Node> = list.elements.iter().map(|e| self.node(e)).collect();
        for element in &elements {
            self.expect("in", element, item.ty);
            if let (true, Some(Value::String(name))) = (item.metric, &element.literal) {
                self.uses.metrics.insert(name.clone());
            }
        }
        let item = item.eval;
        let elements: Vec<Eval> = elements.into_iter().map(|e| e.eval).collect();
        let eval: Eval = Box::new(move |s| {
            let item = item(s)?;
            for element in &elements {
                if item.equals(&element(s)?) {
                    return Ok(Val::Bool(true));
                }
            }
            Ok(Val::Bool(false))
        });
        Node::new(Type::Bool, range, eval)
    }

    /// Whether the names are those of an event.
    pub(super) fn on_event(&self) -> bool {
        self.names.place == Place::Event
    }
}

fn is_null(eval: Eval, wanted: bool) -> Eval {
    Box::new(move |s| Ok(Val::Bool(matches!(eval(s)?, Val::Null) == wanted)))
}

fn literal_node(literal: &LiteralValue, range: Range<usize>) -> Node {
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

type Test = fn(std::cmp::Ordering) -> bool;

fn comparison(operator: &str) -> Option<(&'static str, Test)> {
    use std::cmp::Ordering;
    Some(match operator {
        operators::LESS => ("<", Ordering::is_lt),
        operators::LESS_EQUALS => ("<=", Ordering::is_le),
        operators::GREATER => (">", Ordering::is_gt),
        operators::GREATER_EQUALS => (">=", Ordering::is_ge),
        _ => return None,
    })
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
