//! From the syntax tree to closures.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use cel::common::ast::{CallExpr, Expr as Tree, IdedExpr, SourceInfo, operators};
use cel::parser::Parser;

use super::leaf::{literal_node, stage_field};
use super::names::{FIELDS, Names, Place, Uses};
use super::operators::comparison;
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

    pub(super) fn may_be(self, other: Self) -> bool {
        matches!(self, Self::Any | Self::Null) || other == Self::Any || self == other
    }
}

/// Whose value an operand is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The event's, whichever metric it is of.
    Event,
    /// Of one of these metrics.
    Metrics(BTreeSet<Arc<str>>),
    /// Of an event that a stage holds.
    Stage(u16),
}

/// What an expression takes a value for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) subject: Subject,
    /// `number`, `string` or `bool`.
    pub(crate) needed: &'static str,
}

/// A part of an expression.
pub(super) struct Node {
    pub(super) eval: Eval,
    pub(super) ty: Type,
    /// The value, where it is written out.
    pub(super) literal: Option<Value>,
    pub(super) range: Range<usize>,
    /// The variable `metric`, alone.
    pub(super) metric: bool,
    /// A metric's value, alone, of which nothing is known yet.
    pub(super) subject: Option<Subject>,
    /// Metrics of which the event is one wherever this holds.
    pub(super) guard: Option<BTreeSet<Arc<str>>>,
}

impl Node {
    pub(super) fn new(ty: Type, range: Range<usize>, eval: Eval) -> Self {
        Self {
            eval,
            ty,
            literal: None,
            range,
            metric: false,
            subject: None,
            guard: None,
        }
    }
}

/// An expression that is ready to run.
pub(crate) struct Expr {
    eval: Eval,
    text: Arc<str>,
    pub(crate) uses: Uses,
    /// What it takes values for.
    pub(crate) wants: Vec<Want>,
    /// Metrics of which the event is one wherever it holds.
    pub(crate) guard: Option<BTreeSet<Arc<str>>>,
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
        wants: Vec::new(),
        uses: Uses {
            aggregates: names.aggregates.clone(),
            ..Uses::default()
        },
    };
    let node = compiler.node(&tree);
    if condition {
        compiler.want(&node, Type::Bool);
    }
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
        wants: compiler.wants,
        guard: node.guard,
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
    pub(super) wants: Vec<Want>,
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

    pub(super) fn unsupported(&mut self, range: Range<usize>, what: &'static str) -> Node {
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
            subject: (name == "value" && self.names.place == Place::Event)
                .then_some(Subject::Event),
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
        let eval: Eval = Box::new(move |s| Ok(s.stages.last(stage).map_or(Val::Null, read)));
        Node {
            subject: (select.field == "value").then_some(Subject::Stage(stage)),
            ..Node::new(ty, range, eval)
        }
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

    /// Notes what a metric's value is taken for.
    pub(super) fn want(&mut self, node: &Node, needed: Type) {
        let telling = matches!(needed, Type::Bool | Type::Number | Type::Text);
        if let (Some(subject), true) = (&node.subject, telling) {
            let want = Want {
                subject: subject.clone(),
                needed: needed.word(),
            };
            if !self.wants.contains(&want) {
                self.wants.push(want);
            }
        }
    }

    pub(super) fn expect(&mut self, operation: &str, node: &Node, needed: Type) {
        self.want(node, needed);
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

    /// Whether the names are those of an event.
    pub(super) fn on_event(&self) -> bool {
        self.names.place == Place::Event
    }
}
