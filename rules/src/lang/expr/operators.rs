//! Operators: logic, arithmetic, comparisons.

use std::collections::BTreeSet;
use std::ops::Range;

use cel::common::ast::{Expr as Tree, IdedExpr, operators};

use super::compile::{Compiler, Eval, Node, Subject, Type, truth};
use super::{Arith, EvalError, Val};
use crate::value::Value;

impl Compiler<'_> {
    /// `&&` and `||`: `decisive` from either side is the result, whatever the other side does.
    pub(super) fn logic(
        &mut self,
        word: &'static str,
        a: &IdedExpr,
        b: &IdedExpr,
        decisive: bool,
        range: Range<usize>,
    ) -> Node {
        let first = self.wants.len();
        let (a, b) = (self.node(a), self.node(b));
        self.expect(word, &a, Type::Bool);
        self.expect(word, &b, Type::Bool);
        let guard = match (decisive, a.guard, b.guard) {
            (false, Some(guard), _) | (false, None, Some(guard)) => Some(guard),
            (true, Some(a), Some(b)) => Some(&a | &b),
            (false, None, None) | (true, _, _) => None,
        };
        // `metric == "T" && value > 3`: what is said of the event's value is said of T.
        if let (false, Some(guard)) = (decisive, &guard) {
            for want in self.wants.iter_mut().skip(first) {
                if want.subject == Subject::Event {
                    want.subject = Subject::Metrics(guard.clone());
                }
            }
        }
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
        Node {
            guard,
            ..Node::new(Type::Bool, range, eval)
        }
    }

    pub(super) fn conditional(
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

    pub(super) fn negate(&mut self, a: &IdedExpr, range: Range<usize>) -> Node {
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

    pub(super) fn arithmetic(
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

    pub(super) fn comparison(
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
        self.want(&a, b.ty);
        self.want(&b, a.ty);
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

    pub(super) fn equality(
        &mut self,
        a: &IdedExpr,
        b: &IdedExpr,
        wanted: bool,
        range: Range<usize>,
    ) -> Node {
        let (a, b) = (self.node(a), self.node(b));
        let mut guard = None;
        for (one, other) in [(&a, &b), (&b, &a)] {
            self.want(one, other.ty);
            if let (true, Some(Value::String(name))) = (one.metric, &other.literal) {
                self.uses.metrics.insert(name.clone());
                guard = wanted.then(|| BTreeSet::from([name.clone()]));
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
        Node {
            guard,
            ..Node::new(Type::Bool, range, eval)
        }
    }

    /// `item in [..]`: the list must be written out.
    pub(super) fn contained(
        &mut self,
        item: &IdedExpr,
        list: &IdedExpr,
        range: Range<usize>,
    ) -> Node {
        let item = self.node(item);
        let Tree::List(list) = &list.expr else {
            return self.unsupported(range, "`in` without a list written out");
        };
        let elements: Vec<Node> = list.elements.iter().map(|e| self.node(e)).collect();
        let mut guard = item.metric.then(BTreeSet::new);
        for element in &elements {
            self.expect("in", element, item.ty);
            self.want(&item, element.ty);
            if let (true, Some(Value::String(name))) = (item.metric, &element.literal) {
                self.uses.metrics.insert(name.clone());
                guard.get_or_insert_default().insert(name.clone());
            } else {
                guard = None;
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
        Node {
            guard,
            ..Node::new(Type::Bool, range, eval)
        }
    }
}

fn is_null(eval: Eval, wanted: bool) -> Eval {
    Box::new(move |s| Ok(Val::Bool(matches!(eval(s)?, Val::Null) == wanted)))
}

type Test = fn(std::cmp::Ordering) -> bool;

pub(super) fn comparison(operator: &str) -> Option<(&'static str, Test)> {
    use std::cmp::Ordering;
    Some(match operator {
        operators::LESS => ("<", Ordering::is_lt),
        operators::LESS_EQUALS => ("<=", Ordering::is_le),
        operators::GREATER => (">", Ordering::is_gt),
        operators::GREATER_EQUALS => (">=", Ordering::is_ge),
        _ => return None,
    })
}
